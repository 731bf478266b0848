package mongo

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/tail"
)

// Stream is an outbox whose new documents are told by a change stream. The collection stays the
// truth: while there is no change stream the collection is read, and nothing that happens to the
// stream can lose a document. The methods of Source that read and delete go through memory. Run
// must be running for it to stream; without it, it polls.
type Stream struct {
	*Source
	mirror *tail.Mirror
	link   *link
}

var (
	_ lanes.Source = (*Stream)(nil)
	_ lanes.Waker  = (*Stream)(nil)
	_ tail.Table   = table{}
)

// table is the outbox whose pages tell which changes they cover.
type table struct{ *Source }

// Read implements tail.Table.
func (t table) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	page, shown, err := t.Source.read(ctx, read)
	if err != nil {
		return nil, err
	}
	page.Snapshot = source.Snapshot{Xmin: clusterTime(shown) + 1, Xmax: clusterTime(shown) + 1}
	return page, nil
}

// OpenStream is Open, and checks that the outbox can be streamed. A source.SetupError lists
// everything that no retry mends.
func OpenStream(ctx context.Context, cfg Config) (*Stream, error) {
	src, err := openStreamed(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Stream{Source: src, mirror: tail.NewMirror(tail.Config{Head: true, MaxBytes: src.cfg.MemoryBytes}, table{src}), link: newLink(src)}, nil
}

// openStreamed opens an outbox that has a change stream.
func openStreamed(ctx context.Context, cfg Config) (*Source, error) {
	cfg.Stream = true
	src, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := src.checkStream(ctx); err != nil {
		src.Close()
		return nil, err
	}
	return src, nil
}

// checkStream tries to open a change stream.
func (s *Source) checkStream(ctx context.Context) error {
	start, err := s.now(ctx)
	if err != nil {
		return err
	}
	c := s.changes(start)
	defer c.close()
	err = c.open(ctx)
	var passing *interruptedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &passing), ctx.Err() != nil:
		return err
	}
	return &source.SetupError{Problems: []string{s.streamProblem(err)}}
}

// streamProblem says what an error of a change stream asks of an operator.
func (s *Source) streamProblem(err error) string {
	if code(err) == unauthorized {
		return missingRight("of source.mongo.url", s.cfg.Database, s.cfg.Collection, []string{"find", "changeStream"})
	}
	return "a change stream of " + s.Table() + " cannot be opened: " + err.Error()
}

// Read implements lanes.Source.
func (s *Stream) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	return s.mirror.Read(ctx, read)
}

// Delete implements lanes.Source.
func (s *Stream) Delete(ctx context.Context, ids []int64, began func(xid uint64)) error {
	return s.mirror.Delete(ctx, ids, began)
}

// Wake implements lanes.Waker.
func (s *Stream) Wake() <-chan struct{} { return s.mirror.Wake() }

// FromMemory implements lanes.Waker.
func (s *Stream) FromMemory(read *source.Read) *source.Page { return s.mirror.FromMemory(read) }

// Unready says what must be mended for the change stream to be read again.
func (s *Stream) Unready() []string { return s.link.unready() }

// Run streams until ctx is done, and begins anew whenever the change stream is lost. It may be
// called once, and returns nil.
func (s *Stream) Run(ctx context.Context) error {
	s.link.keep(ctx, func(ctx context.Context) error {
		defer s.mirror.Detach()
		return s.follow(ctx)
	})
	return nil
}

// resumeFor is how long a change stream that was interrupted is waited for, before new documents
// are looked for in the collection.
const resumeFor = 10 * time.Second

// follow reads a new change stream until it is lost.
func (s *Stream) follow(ctx context.Context) error {
	// What is committed from here on will be told. A read that shows this time shows the rest.
	start, err := s.now(ctx)
	if err != nil {
		return err
	}
	c := s.changes(start)
	defer c.close()
	if err := c.open(ctx); err != nil {
		return err
	}
	c.resumed = s.link.resumed
	s.mirror.Attach(clusterTime(start))
	s.link.gained()
	var since time.Time // when it was interrupted
	for {
		err := s.take(ctx, c)
		var interrupted *interruptedError
		switch {
		case err == nil:
			since = time.Time{}
			continue
		case !errors.As(err, &interrupted):
			return err
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > resumeFor:
			return err
		}
		s.link.interrupted(ctx, err)
		if err := pause(ctx, minReconnect); err != nil {
			return err
		}
	}
}

const (
	// chunkEvents and chunkBytes bound what is appended at once, one event beyond.
	chunkEvents = 512
	chunkBytes  = 1 << 20
)

// take waits for changes and appends those that came, a transaction at a time: its documents
// have one cluster time.
func (s *Stream) take(ctx context.Context, c *changes) error {
	var at bson.Timestamp
	var events []*source.Event
	size, skipped := 0, false
	flush := func() error {
		if len(events) == 0 && !skipped {
			return nil
		}
		err := s.mirror.Append(ctx, clusterTime(at), events, skipped)
		events, size, skipped = nil, 0, false
		return err
	}
	for {
		got, ok, err := c.next(ctx)
		if err != nil {
			return err
		}
		s.link.heard(got.at)
		if !ok {
			return flush()
		}
		if got.at != at || len(events) >= chunkEvents || size >= chunkBytes {
			if err := flush(); err != nil {
				return err
			}
			at = got.at
		}
		if ev := c.event(got, s.mirror.Wants); ev != nil {
			ev.ID = s.handles.told(docBytes(got.doc), ev.Key == nil, clusterTime(at))
			events = append(events, ev)
			size += ev.Size()
		} else {
			skipped = true
		}
		if !c.more() {
			return flush()
		}
	}
}

// docBytes is docKey of a document.
func docBytes(doc bson.Raw) []byte {
	id := doc.Lookup("_id")
	return append(append(make([]byte, 0, 32), byte(id.Type)), id.Value...)
}

// lossOf says what becomes of an outbox whose change stream has ended.
func lossOf(err error) (level slog.Level, message string) {
	var invalidated *invalidatedError
	switch {
	case errors.As(err, &invalidated):
		return slog.LevelWarn, "the change stream has ended with its collection, a new one is begun"
	case code(err) == historyLost, code(err) == cappedPositionLost, code(err) == fatalStreamError:
		return slog.LevelWarn, "the change stream's position is not in the oplog any more, a new one is begun"
	case code(err) == objectTooLarge:
		return slog.LevelWarn, "a document is too large for the change stream, a new one is begun behind it"
	}
	return slog.LevelWarn, "the change stream is lost, it is tried again"
}
