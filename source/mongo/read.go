package mongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/outbox-forwarder/forwarder/source"
)

// readTries bounds how often a read is sent whose snapshot was of no use, before the caller
// waits for longer.
const readTries = 5

// Read implements lanes.Source. The page's Snapshot is zero: a read always starts at the head.
func (s *Source) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	page, _, err := s.read(ctx, read)
	return page, err
}

// read answers a read, and tells the cluster time of the snapshot that the page shows.
func (s *Source) read(ctx context.Context, read *source.Read) (*source.Page, bson.Timestamp, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if err := s.pace.wait(ctx); err != nil {
		return nil, bson.Timestamp{}, err
	}
	if err := s.awaitGained(ctx, read); err != nil {
		return nil, bson.Timestamp{}, err
	}
	s.handles.begin(read.Known)
	defer s.handles.finish()
	var err error
	for try := range readTries {
		if try > 0 {
			if err := pause(ctx, time.Duration(try)*10*time.Millisecond); err != nil {
				return nil, bson.Timestamp{}, err
			}
		}
		var page *source.Page
		var shown bson.Timestamp
		if page, shown, err = s.page(ctx, read); err == nil {
			return page, shown, nil
		}
		if code(err) == badValue {
			if err := s.findIndex(ctx); err != nil {
				return nil, bson.Timestamp{}, err
			}
		} else if !retriable(err) && !errors.Is(err, errBehind) {
			break
		}
	}
	return nil, bson.Timestamp{}, fmt.Errorf("reading a page of %s: %w", s.Table(), err)
}

// awaitGained makes sure that no snapshot is used which is older than the lanes that are read now
// and were not before: their last owner may have deleted documents a moment ago, and a new
// primary may not know yet that a majority has that. An empty delete waits for a majority to
// have everything up to now.
func (s *Source) awaitGained(ctx context.Context, read *source.Read) error {
	current := make([]bool, s.lanes)
	gained := read.Gained
	note := func(lane source.Lane) {
		current[lane] = true
		gained = gained || !s.live[lane]
	}
	for _, lane := range read.Lanes {
		note(lane)
	}
	if read.Lanes == nil {
		for lane := range s.lanes {
			note(source.Lane(lane))
		}
	}
	if gained {
		if _, err := s.deleteSome(ctx, bson.A{}); err != nil {
			return fmt.Errorf("waiting for a majority: %w", err)
		}
	}
	s.live = current
	return nil
}

// page tries to answer a read.
func (s *Source) page(ctx context.Context, read *source.Read) (*source.Page, bson.Timestamp, error) {
	session, err := s.client.StartSession(options.Session().SetSnapshot(true))
	if err != nil {
		return nil, bson.Timestamp{}, err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	ctx = driver.NewSessionContext(ctx, session)
	begun := time.Now()
	wanted, full, err := s.walk(ctx, session, read)
	if err != nil {
		return nil, bson.Timestamp{}, err
	}
	s.pace.note(time.Since(begun), len(wanted))
	events, err := s.fetch(ctx, wanted, read.Bytes)
	if err != nil {
		return nil, bson.Timestamp{}, err
	}
	page := &source.Page{Full: full || len(events) < len(wanted)}
	for i, ev := range events {
		ev.ID = s.handles.add(wanted[i], ev.Key == nil)
	}
	shown := session.SnapshotTime()
	s.handles.end(!page.Full, clusterTime(shown))
	s.seen.show(shown)
	// Only documents without a key can have kept an older number.
	slices.SortStableFunc(events, func(a, b *source.Event) int { return cmp.Compare(a.ID, b.ID) })
	page.Events = events
	return page, shown, nil
}

// collection is the outbox for reads in a snapshot session, which sets the read concern.
func (s *Source) collection() *driver.Collection {
	return s.outbox.Clone(options.Collection().SetReadConcern(&readconcern.ReadConcern{}))
}

// walkBatch bounds the index entries of one answer.
const walkBatch = 20000

// walk goes through the index from the head, and returns the docKeys of what is wanted, in
// order. It opens the session's snapshot.
func (s *Source) walk(ctx context.Context, session *driver.Session, read *source.Read) (wanted []string, full bool, err error) {
	f := s.cfg.Fields
	batch := min(len(read.Known)+read.Limit+1, walkBatch)
	opts := options.Find().SetSort(s.cfg.order()).SetProjection(s.cfg.projection(f.Seq, f.Key, f.Topic)).SetBatchSize(int32(batch))
	if index := *s.index.Load(); index != "" {
		opts.SetHint(index)
	}
	cursor, err := s.collection().Find(ctx, bson.D{}, opts)
	if err != nil {
		return nil, false, err
	}
	defer cursor.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the server ends it by itself
	at := session.SnapshotTime()
	if s.seen.beyond(at) {
		return nil, false, errBehind
	}
	pass := newFilter(read, s.lanes)
	var key []byte
	for cursor.Next(ctx) {
		if at.IsZero() { // which only a collection that does not exist leaves out
			return nil, false, errBehind
		}
		doc := cursor.Current
		id := doc.Lookup("_id")
		key = append(append(key[:0], byte(id.Type)), id.Value...)
		if s.handles.knows(key) || !pass.wants(&s.decoder, doc, id) {
			continue
		}
		if t, _, ok := doc.Lookup(f.Seq).TimestampOK(); !ok || t == 0 {
			s.noteUnordered(id)
		}
		if wanted = append(wanted, string(key)); len(wanted) >= read.Limit {
			return wanted, true, nil
		}
	}
	return wanted, false, cursor.Err()
}

// noteUnordered says once that documents have no place in the order of inserts.
func (s *Source) noteUnordered(id bson.RawValue) {
	s.unordered.Do(func() {
		s.log.Warn("a document has no timestamp by which the outbox is read: such documents come in the order of their _id, before the others; let writers insert it as Timestamp(0, 0), which the server fills in",
			"field", s.cfg.Fields.Seq, "id", refOf(id))
	})
}

// filter is what a read leaves out.
type filter struct {
	live   []bool // by lane; nil for all
	topics map[string]bool
	keys   map[source.TopicKey]bool
}

func newFilter(read *source.Read, n int) *filter {
	f := &filter{}
	if read.Lanes != nil {
		f.live = make([]bool, n)
		for _, lane := range read.Lanes {
			f.live[lane] = true
		}
	}
	if len(read.Topics) > 0 {
		f.topics = make(map[string]bool)
		for _, t := range read.Topics {
			f.topics[t] = true
		}
	}
	if len(read.Keys) > 0 {
		f.keys = make(map[source.TopicKey]bool)
		for _, k := range read.Keys {
			f.keys[k] = true
		}
	}
	return f
}

// wants reports whether a document belongs to a live part.
func (f *filter) wants(d *decoder, doc bson.Raw, id bson.RawValue) bool {
	if f.live == nil && f.topics == nil && f.keys == nil {
		return true
	}
	key, err := keyBytes(d.optional(doc, d.fields.Key))
	if err != nil {
		key = nil // as the event has it
	}
	if f.live != nil && !f.live[d.lane(id, key)] {
		return false
	}
	if f.topics == nil && f.keys == nil {
		return true
	}
	topic := ""
	if v := doc.Lookup(d.fields.Topic); v.Type == bson.TypeString {
		topic = d.topic(v)
	}
	return !f.topics[topic] && (key == nil || !f.keys[source.TopicKey{Topic: topic, Key: string(key)}])
}

// findIndex looks for the index again, after the server refused to read by the one that was
// there.
func (s *Source) findIndex(ctx context.Context) error {
	name, problems, err := findIndex(ctx, s.outbox, s.cfg)
	switch {
	case err != nil:
		return fmt.Errorf("listing the indexes of %s: %w", s.Table(), err)
	case len(problems) > 0:
		return errors.New(problems[0])
	}
	s.index.Store(&name)
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
