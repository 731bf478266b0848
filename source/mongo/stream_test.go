package mongo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// streaming is a forwarder over a stream.
type streaming struct {
	*Stream
	w         *world
	forwarder *lanes.Forwarder
	sink      *recorder
	stop      func() // ends both in order, once
}

// stream opens the outbox as a stream and forwards it until the test ends.
func (w *world) stream(sink *recorder, owner lanes.Owner, change ...func(*Config)) *streaming {
	w.t.Helper()
	st := &streaming{w: w, sink: sink}
	var err error
	if st.Stream, err = OpenStream(w.t.Context(), w.config(change...)); err != nil {
		w.t.Fatal(err)
	}
	if owner == nil {
		owner = lanes.Sole{Lanes: st.Lanes()}
	}
	st.forwarder, err = lanes.NewForwarder(lanes.Config{Lanes: st.Lanes()}, st.Stream, sink, w.logged.logger(), patience)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if err := st.forwarder.Run(ctx, owner); err != nil {
			w.t.Errorf("the forwarder ended with: %v", err)
		}
	})
	work.Go(func() {
		if err := st.Run(ctx); err != nil {
			w.t.Errorf("the stream ended with: %v", err)
		}
	})
	st.stop = sync.OnceFunc(func() {
		cancel()
		work.Wait()
		st.Close()
	})
	w.t.Cleanup(func() {
		st.stop()
		if w.t.Failed() {
			w.t.Logf("log:\n%s", w.logged)
		}
	})
	return st
}

// live waits until reads are answered from memory.
func (st *streaming) live() {
	st.w.t.Helper()
	eventually(st.w.t, "the outbox is streamed", func() bool {
		stats := st.Stats()
		return stats.Streaming && stats.Complete
	})
}

// emptied waits until the outbox is empty.
func (w *world) emptied() {
	w.t.Helper()
	eventually(w.t, "the outbox is empty", func() bool { return w.count(bson.D{}) == 0 })
}

// memory reads what was told, without a forwarder: the stream must be live.
func (st *feed) memory(n int) (events []*source.Event) {
	st.t.Helper()
	eventually(st.t, fmt.Sprintf("%d events are told", n), func() bool {
		r := all()
		r.Known = ids(events)
		page, err := st.Read(st.t.Context(), r)
		if err != nil {
			st.t.Fatal(err)
		}
		events = append(events, page.Events...)
		return len(events) >= n
	})
	return events
}

// feed is a stream that the test reads by itself.
type feed struct {
	*Stream
	t testing.TB
}

// feed opens a stream and makes it live.
func (w *world) feed(change ...func(*Config)) *feed {
	w.t.Helper()
	s, err := OpenStream(w.t.Context(), w.config(change...))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	w.t.Cleanup(func() {
		cancel()
		work.Wait()
		s.Close()
	})
	f := &feed{Stream: s, t: w.t}
	eventually(w.t, "the outbox is streamed", func() bool {
		if _, err := f.Read(w.t.Context(), all()); err != nil {
			w.t.Fatal(err)
		}
		return s.Stats().Complete
	})
	return f
}

// TestStreamUnderLoad: nothing is lost, doubled or out of order while transactions that commit in
// another order than they insert run before the stream begins, while it runs, and while its
// cursor is killed.
func TestStreamUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sink := newRecorder()
	ws := w.startWriters(8, 20)
	eventually(t, "a backlog", func() bool { return w.count(bson.D{}) > 200 })
	st := w.stream(sink, nil)
	st.live()
	for range 5 {
		at := sink.count()
		eventually(t, "300 more events", func() bool { return sink.count() >= at+300 })
		w.killCursors()
	}
	written := ws.stop()
	w.emptied()
	if repeats := sink.check(t, written); repeats != 0 || sink.count() != total(written) {
		t.Errorf("%d events of %d, %d repeats", sink.count(), total(written), repeats)
	}
	stats := st.Stats()
	t.Logf("%d events, %+v", sink.count(), stats)
	if stats.Begun != 1 || stats.Memory < 100 {
		t.Errorf("the outbox was not streamed: %+v", stats)
	}
	st.stop()
	if n := st.handles.size(); n > 100 {
		t.Errorf("%d handles are left", n)
	}
}

// killCursors kills the cursors of change streams of the world's database.
func (w *world) killCursors() {
	w.t.Helper()
	cursor, err := w.client.Database("admin").Aggregate(w.t.Context(), bson.A{
		bson.D{{Key: "$currentOp", Value: bson.D{{Key: "idleCursors", Value: true}, {Key: "allUsers", Value: true}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "ns", Value: w.db.Name() + ".outbox"}, {Key: "cursor.cursorId", Value: bson.D{{Key: "$exists", Value: true}}}}}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	var list []struct {
		Cursor struct {
			ID int64 `bson:"cursorId"`
		} `bson:"cursor"`
	}
	if err := cursor.All(w.t.Context(), &list); err != nil {
		w.t.Fatal(err)
	}
	var ids bson.A
	for _, c := range list {
		ids = append(ids, c.Cursor.ID)
	}
	if err := w.db.RunCommand(w.t.Context(), bson.D{{Key: "killCursors", Value: "outbox"}, {Key: "cursors", Value: ids}}).Err(); err != nil {
		w.t.Fatal(err)
	}
}

// TestStreamBytes: what is told is byte for byte what is read (C37, C67, C84, C85), for every
// kind of document.
func TestStreamBytes(t *testing.T) {
	t.Parallel()
	for _, canonical := range []bool{false, true} {
		w := newWorld(t)
		change := func(c *Config) { c.Canonical = canonical }
		f := w.feed(change)
		docs := kindsOfDocuments()
		w.insert(docs...)
		told := f.memory(len(docs))
		if f.Stats().TableReads > 1 && f.Stats().Memory == 0 {
			t.Fatalf("the events were read: %+v", f.Stats())
		}
		page := read(t, w.open(change), all())
		byRef := func(a, b *source.Event) int {
			if a.Ref < b.Ref {
				return -1
			}
			return 1
		}
		slices.SortFunc(told, byRef)
		slices.SortFunc(page.Events, byRef)
		if len(told) != len(page.Events) {
			t.Fatalf("%d events were told, %d read", len(told), len(page.Events))
		}
		for i, want := range page.Events {
			a, b := *told[i], *want
			a.ID, b.ID = 0, 0
			if got, want := fmt.Sprintf("%#v %v", a, a.Defect), fmt.Sprintf("%#v %v", b, b.Defect); stripPointer(got) != stripPointer(want) {
				t.Errorf("told:\n%s\nread:\n%s", got, want)
			}
			if a.Payload == nil != (b.Payload == nil) || a.Key == nil != (b.Key == nil) {
				t.Errorf("%s: null and empty differ", a.Ref)
			}
		}
	}
}

// stripPointer removes the address of a defect.
func stripPointer(s string) string {
	for i := 0; i+2 < len(s); i++ {
		if s[i] == '0' && s[i+1] == 'x' && i > 0 && s[i-1] == '(' {
			end := i
			for end < len(s) && s[end] != ')' {
				end++
			}
			s = s[:i] + s[end:]
		}
	}
	return s
}

// kindsOfDocuments are documents with every kind of value that an outbox may hold.
func kindsOfDocuments() (docs []bson.D) {
	decimal, _ := bson.ParseDecimal128("0.10")
	values := []any{
		nil, "", "x", "a\x00b", "ü", bson.Binary{}, bson.Binary{Data: []byte{0, 255}}, bson.NewObjectID(), int32(-7), int64(1) << 60, 1.5, true,
		decimal, bson.D{}, bson.D{{Key: "b", Value: 1}, {Key: "a", Value: bson.A{int64(1), nil, "z"}}}, bson.A{}, bson.A{1, "x"},
		bson.Timestamp{T: 5, I: 6}, bson.DateTime(-1), bson.DateTime(568971820800000), bson.Regex{Pattern: "a.b", Options: "i"}, bson.Undefined{}, bson.MinKey{},
	}
	n := 0
	add := func(id, key, payload any, more ...bson.E) {
		docs = append(docs, doc(id, key, payload, append(more, bson.E{Key: "n", Value: n})...))
		n++
	}
	for i, v := range values {
		add(fmt.Sprintf("payload%d", i), "k", v)
		add(fmt.Sprintf("key%d", i), v, "p")
		add(fmt.Sprintf("headers%d", i), "k", "p", bson.E{Key: "headers", Value: bson.D{{Key: "h", Value: v}, {Key: "h", Value: v}}})
		add(fmt.Sprintf("badheaders%d", i), "k", "p", bson.E{Key: "headers", Value: v})
		add(fmt.Sprintf("topic%d", i), "k", "p", bson.E{Key: "topic", Value: v})
		add(fmt.Sprintf("created%d", i), "k", "p", bson.E{Key: "createdAt", Value: v})
		switch v.(type) {
		case nil, bson.A, bson.Regex, bson.Undefined:
		default:
			add(v, "k", "an id")
		}
	}
	for _, field := range []string{"key", "payload", "topic", "seq"} {
		add("without "+field, "k", "p", bson.E{Key: field})
	}
	deep := bson.D{{Key: "end", Value: 1}}
	for range 150 {
		deep = bson.D{{Key: "d", Value: deep}}
	}
	add("deep", "k", deep)
	return docs
}

// TestStreamC31: only inserts are events, once each. A document that changes before it is
// delivered is delivered once; one that its writer deletes is as if it had never been, or is
// delivered as it was.
func TestStreamC31(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.feed()
	w.insert(doc("a", "k", "1"), doc("b", "k", "2"))
	if _, err := w.outbox.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "payload", Value: "9"}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.outbox.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: "b"}}, doc("b", "k", "9")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.outbox.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}); err != nil {
		t.Fatal(err)
	}
	w.insert(doc("c", "k", "3"))
	events := f.memory(3)
	if got := refs(events); got != "a b c" {
		t.Errorf("told of %s", got)
	}
	if string(events[0].Payload) != "1" || string(events[1].Payload) != "2" {
		t.Errorf("payloads %q %q", events[0].Payload, events[1].Payload)
	}
}

// TestStreamC62: the documents of a transaction come in the order in which it inserted them, and
// nothing comes of one that was aborted.
func TestStreamC62(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.feed()
	insert := func(commit bool, names ...string) {
		t.Helper()
		session, err := w.client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		defer session.EndSession(t.Context())
		if err := session.StartTransaction(); err != nil {
			t.Fatal(err)
		}
		ctx := driver.NewSessionContext(t.Context(), session)
		for _, name := range names {
			if _, err := w.outbox.InsertOne(ctx, doc(name, "k", name)); err != nil {
				t.Fatal(err)
			}
		}
		end := session.AbortTransaction
		if commit {
			end = session.CommitTransaction
		}
		if err := end(ctx); err != nil {
			t.Fatal(err)
		}
	}
	insert(true, "c", "a", "b")
	insert(false, "x", "y", "z")
	insert(true, "2", "1", "3")
	if got := refs(f.memory(6)); got != "c a b 2 1 3" {
		t.Errorf("told of %s", got)
	}
}

// TestStreamLargeTransaction: a transaction of more than one entry of the oplog is told whole and
// in order.
func TestStreamLargeTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.feed()
	session, err := w.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(t.Context())
	const n = 3000 // more than a chunk, and more than one entry of the oplog
	pad := make([]byte, 10_000)
	_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		var docs []any
		for i := range n {
			docs = append(docs, doc(int32(i), "k", bson.Binary{Data: pad}))
		}
		_, err := w.outbox.InsertMany(ctx, docs)
		return nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
	events := f.memory(n)
	for i, ev := range events {
		if ev.Ref != fmt.Sprint(i) {
			t.Fatalf("number %d is %s", i, ev.Ref)
		}
	}
}

// TestStreamLatency logs how long an event takes from its insert to its acknowledgement.
func TestStreamLatency(t *testing.T) {
	w := newWorld(t)
	sink := newRecorder()
	st := w.stream(sink, nil)
	st.live()
	var took []time.Duration
	for i := range 200 {
		begun := time.Now()
		w.insert(doc(int32(i), "k", fmt.Sprint(i+1)))
		for sink.count() <= i {
			time.Sleep(100 * time.Microsecond)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	t.Logf("p50 %v, p99 %v", took[100], took[197])
	sink.check(t, map[string]int{"k": 200})
}
