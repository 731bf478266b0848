package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/outbox-forwarder/forwarder/source"
)

// changes is a change stream of the outbox. It is used by one goroutine.
type changes struct {
	src     *Source
	stream  *driver.ChangeStream // nil while it is interrupted
	decoder decoder
	token   bson.Raw       // of where to go on
	start   bson.Timestamp // where to begin while there is no token
	what    string         // what was done to the collection
	limit   time.Duration  // of a call
	cursor  int64          // the server's number for the stream, 0 before the first
	server  string         // the primary at its time
	resumed func()         // told when the stream went on with another cursor
}

// change is a document that was inserted.
type change struct {
	at  bson.Timestamp // when its transaction was committed
	doc bson.Raw
}

const (
	// awaitChanges is how long the server waits for something new before it answers.
	awaitChanges = time.Second
	// longestCall bounds calls after some that took too long.
	longestCall = 10 * time.Minute
)

// changes returns a stream that begins at a cluster time. It is opened by the first next.
func (s *Source) changes(start bson.Timestamp) *changes {
	return &changes{src: s, decoder: newDecoder(s.cfg, s.lanes), start: start, limit: s.cfg.Timeout + awaitChanges, resumed: func() {}}
}

// pipeline chooses what is told, and of it what is needed.
func (c Config) pipeline() driver.Pipeline {
	project := bson.D{{Key: "operationType", Value: 1}, {Key: "clusterTime", Value: 1}, {Key: "to", Value: 1}}
	for _, f := range []string{"_id", c.Fields.Topic, c.Fields.Key, c.Fields.Payload, c.Fields.Headers, c.Fields.CreatedAt} {
		if f != "" {
			project = append(project, bson.E{Key: "fullDocument." + f, Value: 1})
		}
	}
	return driver.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "operationType", Value: bson.D{{Key: "$in", Value: bson.A{"insert", "drop", "rename", "dropDatabase", "invalidate"}}}}}}},
		{{Key: "$project", Value: project}},
	}
}

// open begins the stream, or goes on with it.
func (c *changes) open(ctx context.Context) error {
	opts := options.ChangeStream().SetMaxAwaitTime(awaitChanges)
	if c.token != nil {
		opts.SetStartAfter(c.token) // which also goes on behind the end of a collection
	} else {
		opts.SetStartAtOperationTime(&c.start)
	}
	once, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	outbox := c.src.outbox.Clone(options.Collection().SetReadConcern(readconcern.Majority()))
	stream, err := outbox.Watch(once, c.src.cfg.pipeline(), opts)
	if err != nil {
		return c.classify(ctx, err)
	}
	c.stream, c.server = stream, c.src.primary.last()
	return nil
}

func (c *changes) close() {
	if c.stream == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.stream.Close(ctx)
	c.stream = nil
}

// next waits for the next change; ok is false when there was none for a while. After an
// interruptedError the stream goes on where it was with the next call.
func (c *changes) next(ctx context.Context) (got change, ok bool, err error) {
	if c.stream != nil && !c.more() && c.server != c.src.primary.last() {
		c.close()
	}
	if c.stream == nil {
		if err := c.open(ctx); err != nil {
			return change{}, false, err
		}
	}
	for {
		ok := c.advance(ctx)
		if err := c.stream.Err(); err != nil {
			if err = c.classify(ctx, err); code(err) == invalidToken {
				err = &interruptedError{err} // the driver cannot go on behind the end of a collection
			}
			c.close()
			return change{}, false, err
		}
		c.limit = c.src.cfg.Timeout + awaitChanges
		c.token = c.stream.ResumeToken()
		c.went(c.stream.ID())
		if !ok {
			if c.stream.ID() == 0 {
				return change{}, false, &invalidatedError{c.what}
			}
			return change{}, false, nil
		}
		got, insert, err := c.read(c.stream.Current)
		if insert || err != nil {
			return got, insert, err
		}
	}
}

// advance goes to the next event, for which the server may have to be asked.
func (c *changes) advance(ctx context.Context) bool {
	if !c.more() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.limit)
		defer cancel()
	}
	return c.stream.TryNext(ctx)
}

// went notes by which cursor the server has answered. The driver goes on by itself after most
// interruptions.
func (c *changes) went(cursor int64) {
	if cursor == 0 || cursor == c.cursor {
		return
	}
	again := c.cursor != 0
	c.server = c.src.primary.last()
	if c.cursor = cursor; again {
		c.resumed()
	}
}

// more reports whether the next change is here already.
func (c *changes) more() bool { return c.stream != nil && c.stream.RemainingBatchLength() > 0 }

// read reads an event of the stream.
func (c *changes) read(event bson.Raw) (got change, insert bool, err error) {
	kind, _ := event.Lookup("operationType").StringValueOK()
	switch kind {
	case "insert":
		t, i, ok := event.Lookup("clusterTime").TimestampOK()
		doc, isDoc := event.Lookup("fullDocument").DocumentOK()
		if !ok || !isDoc {
			return change{}, false, errors.New("the change stream tells of an insert without its time or document")
		}
		return change{at: bson.Timestamp{T: t, I: i}, doc: doc}, true, nil
	case "drop":
		c.what = "the collection was dropped"
	case "dropDatabase":
		c.what = "the database was dropped"
	case "rename":
		c.what = "the collection was renamed"
		if to, ok := event.Lookup("to", "coll").StringValueOK(); ok && to == c.src.cfg.Collection {
			c.what = "another collection was renamed to be the outbox"
		}
	case "invalidate":
		return change{}, false, &invalidatedError{c.what}
	}
	return change{}, false, nil
}

// event returns the event of a change, whose lane must be wanted: it is nil otherwise.
func (c *changes) event(got change, wants func(source.Lane) bool) *source.Event {
	id := got.doc.Lookup("_id")
	key, err := keyBytes(c.decoder.optional(got.doc, c.decoder.fields.Key))
	if err != nil {
		key = nil // as the event has it
	}
	if wants != nil && !wants(c.decoder.lane(id, key)) {
		return nil
	}
	return c.decoder.event(got.doc)
}

// invalidatedError says that there is nothing more to be told of the collection.
type invalidatedError struct{ what string }

func (e *invalidatedError) Error() string {
	if e.what == "" {
		return "the change stream was invalidated"
	}
	return e.what
}

// interruptedError says that the stream can go on where it was.
type interruptedError struct{ error }

func (e *interruptedError) Unwrap() error { return e.error }

// classify tells apart what ends a stream and what only interrupts it.
func (c *changes) classify(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var server driver.ServerError
	switch {
	case errors.Is(err, context.DeadlineExceeded), driver.IsTimeout(err):
		// A log that takes long to walk through must not be begun again and again.
		c.limit = min(2*c.limit, longestCall)
		return &interruptedError{err}
	case retriable(err), driver.IsNetworkError(err), code(err) == cursorNotFound, code(err) == cursorKilled,
		errors.As(err, &server) && server.HasErrorLabel("ResumableChangeStreamError"):
		return &interruptedError{err}
	}
	return err
}

// now returns the cluster time of the primary's last operation.
func (s *Source) now(ctx context.Context) (bson.Timestamp, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var reply struct {
		Time bson.Timestamp `bson:"operationTime"`
	}
	if err := s.client.Database("admin").RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Decode(&reply); err != nil {
		return bson.Timestamp{}, fmt.Errorf("asking for the cluster time: %w", err)
	}
	if reply.Time.IsZero() {
		return bson.Timestamp{}, errors.New("the server does not tell its cluster time")
	}
	return reply.Time, nil
}
