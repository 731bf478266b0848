package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// gate is a recorder that acknowledges nothing while it is shut.
type gate struct {
	*recorder
	key    string // while it is shut, nothing of this key; empty is all keys
	mu     sync.Mutex
	shut   bool
	kept   [][]*source.Event
	report func([]source.Outcome)
}

func (g *gate) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, run := range runs {
		if g.shut && (g.key == "" || string(run[0].Key) == g.key) {
			g.kept, g.report = append(g.kept, run), report
		} else {
			g.recorder.Submit([][]*source.Event{run}, report)
		}
	}
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	if !shut && len(g.kept) > 0 {
		g.recorder.Submit(g.kept, g.report)
		g.kept = nil
	}
}

// inFlight counts what is not acknowledged.
func (g *gate) inFlight() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, run := range g.kept {
		n += len(run)
	}
	return n
}

// lasting is a forwarder over a durable stream.
type lasting struct {
	*Durable
	w         *world
	forwarder *lanes.Forwarder
	sink      *gate
	stop      func() // ends both in order, once
	crash     func() // ends both at once, as far as a goroutine can be ended
}

func wantDurable(c *Config) { c.Durable = true }

// durable opens the outbox with a durable position and forwards it until the test ends.
func (w *world) durable(sink *recorder, owner lanes.Owner, change ...func(*Config)) *lasting {
	w.t.Helper()
	l := &lasting{w: w, sink: &gate{recorder: sink, key: w.held, shut: w.held != ""}}
	var err error
	if l.Durable, err = OpenDurable(w.t.Context(), w.config(change...)); err != nil {
		w.t.Fatal(err)
	}
	if w.opened != nil {
		w.opened()
	}
	l.forwarder, err = lanes.NewForwarder(lanes.Config{Lanes: l.Lanes()}, l.Durable, l.sink, w.logged.logger(), patience)
	if err != nil {
		w.t.Fatal(err)
	}
	if owner == nil {
		owner = lanes.Sole{Lanes: l.Lanes()}
	}
	ctx, cancel := context.WithCancel(context.Background())
	reading, unread := context.WithCancel(context.Background())
	var forwarding, streaming sync.WaitGroup
	forwarding.Go(func() {
		if err := l.forwarder.Run(ctx, l.Owner(owner)); err != nil && !errors.Is(err, lanes.ErrGrace) {
			w.t.Errorf("the forwarder ended with: %v", err)
		}
	})
	streaming.Go(func() {
		if err := l.Run(reading); err != nil {
			w.t.Errorf("the stream ended with: %v", err)
		}
	})
	l.stop = sync.OnceFunc(func() {
		cancel()
		forwarding.Wait()
		unread()
		streaming.Wait()
		l.Close()
	})
	l.crash = func() {
		unread()
		streaming.Wait()
	}
	w.t.Cleanup(func() {
		l.sink.set(false)
		l.stop()
		if w.t.Failed() {
			w.t.Logf("log:\n%s", w.logged)
		}
	})
	return l
}

func (l *lasting) live() {
	l.w.t.Helper()
	eventually(l.w.t, "the outbox is streamed", func() bool { return l.Stats().Streaming })
}

// checkpoint is what is recorded.
func (w *world) checkpoint() (cp checkpoint) {
	w.t.Helper()
	err := w.db.Collection("outbox_checkpoint").FindOne(context.WithoutCancel(w.t.Context()), bson.D{{Key: "_id", Value: checkpointID}}).Decode(&cp)
	if err != nil && !errors.Is(err, driver.ErrNoDocuments) {
		w.t.Fatal(err)
	}
	return cp
}

// TestDurableUnderLoad: documents from before the stream, under load, through killed cursors and a
// clean restart: every event once, in the order of its key.
func TestDurableUnderLoad(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	sink := newRecorder()
	ws := w.startWriters(6, 20)
	eventually(t, "a backlog", func() bool { return w.count(bson.D{}) > 200 })
	l := w.durable(sink, nil)
	for i := range 4 {
		at := sink.count()
		eventually(t, "300 more events", func() bool { return sink.count() >= at+300 })
		if i == 2 {
			l.stop()
			l = w.durable(sink, nil)
			continue
		}
		w.killCursors()
	}
	written := ws.stop()
	w.emptied()
	if repeats := sink.check(t, written); repeats != 0 || sink.count() != total(written) {
		t.Errorf("%d events of %d, %d repeats", sink.count(), total(written), repeats)
	}
	t.Logf("%d events, %+v", sink.count(), l.Stats())
	eventually(t, "nothing is held", func() bool { return l.handles.size() == 0 })
}

// TestDurableDeliversWhatIsGone: a document that its writer deletes at once is delivered, as it
// was inserted (C31, C68).
func TestDurableDeliversWhatIsGone(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	sink := newRecorder()
	l := w.durable(sink, nil)
	l.live()
	for i := range 20 {
		session, err := w.client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
			if _, err := w.outbox.InsertOne(ctx, doc("again", "k", fmt.Sprint(i+1))); err != nil {
				return nil, err
			}
			if _, err := w.outbox.UpdateOne(ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "payload", Value: "0"}}}}); err != nil {
				return nil, err
			}
			return w.outbox.DeleteOne(ctx, bson.D{})
		})
		session.EndSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "20 events", func() bool { return sink.count() == 20 })
	sink.check(t, map[string]int{"k": 20})
}

// TestC58Position: the recorded position is never beyond what is delivered, never goes back, and
// leads to no repeats after a clean stop.
func TestC58Position(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	sink := newRecorder()
	l := w.durable(sink, nil)
	l.live()
	w.insert(doc(int32(1), "a", "1"))
	eventually(t, "the first is delivered", func() bool { return sink.count() == 1 && l.forwarder.Stats().Deleted == 1 })
	eventually(t, "its position is recorded", func() bool { return w.checkpoint().Number > 0 })
	first := w.checkpoint()
	l.sink.set(true)
	w.insert(doc(int32(2), "a", "2"), doc(int32(3), "b", "1"), doc(int32(4), "c", "1"))
	eventually(t, "three are in flight", func() bool { return l.sink.inFlight() == 3 })
	waited := time.Now().Add(3 * recordEvery)
	eventually(t, "the position was looked at", func() bool { return time.Now().After(waited) })
	if cp := w.checkpoint(); cp.Time != first.Time || cp.Number != first.Number {
		t.Errorf("the position moved from %+v to %+v, and nothing was delivered", first, cp)
	}
	l.crash()
	if cp := w.checkpoint(); cp.Time != first.Time {
		t.Errorf("the position is %+v at the end", cp)
	}
	again := newRecorder()
	second := w.durable(again, nil)
	eventually(t, "the three come again", func() bool { return again.count() == 3 })
	w.emptied()
	second.stop()
	for range 3 {
		none := newRecorder()
		l := w.durable(none, nil)
		l.live()
		w.insert(doc("last", "z", "1"))
		eventually(t, "what is new", func() bool { return none.count() >= 1 })
		w.emptied()
		l.stop()
		if none.count() != 1 {
			t.Errorf("%d events after a clean stop", none.count())
		}
	}
}

// TestC57Quiet: while the outbox is quiet and others write, the position moves on.
func TestC57Quiet(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	l := w.durable(newRecorder(), nil)
	l.live()
	w.insert(doc(int32(1), "a", "1"))
	w.emptied()
	eventually(t, "its position is recorded", func() bool { return w.checkpoint().Number > 0 })
	for range 3 {
		before := w.checkpoint()
		if _, err := w.db.Collection("other").InsertOne(t.Context(), bson.D{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the position moves", func() bool { return string(w.checkpoint().Token) != string(before.Token) })
	}
}

// TestDurableC56: a position that is not in the oplog any more is said once, with what may be
// lost, and what is in the outbox is delivered, in order, before what comes.
func TestDurableC56(t *testing.T) {
	t.Parallel()
	_, w := ownServer(t, testCommands)
	w.init(wantDurable)
	w.insert(doc(int32(0), "k", "1"))
	sink := newRecorder()
	l := w.durable(sink, nil)
	eventually(t, "the first event", func() bool { return sink.count() == 1 })
	l.stop()
	for i := 1; i < 100; i++ {
		w.insert(doc(int32(i), "k", fmt.Sprint(i+1)))
	}
	w.opened = func() { w.fail(1, historyLost, "aggregate") }
	l = w.durable(sink, nil)
	l.live()
	for i := 100; i < 150; i++ {
		w.insert(doc(int32(i), "k", fmt.Sprint(i+1)))
	}
	eventually(t, "the rest", func() bool { return sink.count() >= 150 })
	w.emptied()
	if repeats := sink.check(t, map[string]int{"k": 150}); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
	if n := strings.Count(w.logged.String(), "what is lost: documents that their writers have deleted"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
	eventually(t, "the scan's end is recorded", func() bool { return w.checkpoint().Scanned })
	// While it streams, with events on their way.
	l.sink.set(true)
	for i := 150; i < 160; i++ {
		w.insert(doc(int32(i), "k", fmt.Sprint(i+1)))
	}
	eventually(t, "some are in flight", func() bool { return l.sink.inFlight() > 0 })
	w.fail(1, historyLost, "getMore")
	eventually(t, "it was said again", func() bool {
		return strings.Count(w.logged.String(), "what is lost: documents that their writers have deleted") == 2
	})
	l.live()
	l.sink.set(false)
	eventually(t, "the rest", func() bool { return sink.count() >= 160 })
	w.emptied()
	if repeats := sink.check(t, map[string]int{"k": 160}); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// TestScanAfterACrashKeepsTheOrder: while the scan before a new position is not over, what the change
// stream tells is delivered and deleted; a crash then. The stream tells it again, and must not tell it
// behind what was written later and is in the outbox.
func TestScanAfterACrashKeepsTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.init(wantDurable)
	w.insert(doc(int32(1), "b", "1"))
	w.held = "b"
	first := newRecorder()
	l := w.durable(first, nil)
	l.live()
	w.insert(doc(int32(2), "a", "2"))
	eventually(t, "what the change stream told is delivered", func() bool { return first.count() == 1 && w.count(bson.D{}) == 1 })
	l.crash()
	if w.checkpoint().Scanned {
		t.Error("the scan is recorded as finished")
	}
	w.insert(doc(int32(3), "a", "3"))
	w.held = ""
	again := newRecorder()
	w.durable(again, nil)
	eventually(t, "all events", func() bool { return again.count() == 3 })
	w.emptied()
	again.mu.Lock()
	defer again.mu.Unlock()
	if got := again.acked["a"]; !slices.Equal(got, []int{2, 3}) {
		t.Errorf("delivered %v of the key", got)
	}
}

// TestDurableC59: a collection that is dropped or replaced ends the change stream, not the
// forwarding, and the position goes on behind it.
func TestDurableC59(t *testing.T) {
	t.Parallel()
	_, w := ownServer(t, servers.MongoConfig{})
	w.init(wantDurable)
	sink := newRecorder()
	l := w.durable(sink, nil)
	l.live()
	n := 0
	add := func(collection string) {
		t.Helper()
		n++
		if _, err := w.db.Collection(collection).InsertOne(t.Context(), doc(int32(n), "k", fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	delivered := func() {
		t.Helper()
		eventually(t, "all events", func() bool { return sink.count() >= n })
		w.emptied()
	}
	add("outbox")
	delivered()
	if err := w.outbox.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.init(wantDurable)
	add("outbox")
	delivered()
	if err := Init(t.Context(), w.config(func(c *Config) { c.Collection = "other" })); err != nil {
		t.Fatal(err)
	}
	add("other")
	err := w.client.Database("admin").RunCommand(t.Context(), bson.D{
		{Key: "renameCollection", Value: "app.other"}, {Key: "to", Value: "app.outbox"}, {Key: "dropTarget", Value: true},
	}).Err()
	if err != nil {
		t.Fatal(err)
	}
	delivered()
	add("outbox")
	delivered()
	eventually(t, "the scan's end is recorded", func() bool { return w.checkpoint().Scanned })
	l.stop()
	add("outbox")
	w.durable(sink, nil)
	delivered()
	if repeats := sink.check(t, map[string]int{"k": n}); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
	if strings.Contains(w.logged.String(), "what is lost") {
		t.Error("a position was given up")
	}
}

// TestDurableHandOver: one of two replicas streams; when it stops or dies, the other goes on.
func TestDurableHandOver(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	sink := newRecorder()
	replica := func() (*lasting, *lanes.Keeper) {
		k := lanes.NewKeeper(lanes.KeeperConfig{Host: "r", TTL: 3 * time.Second, Exclusive: true, Logger: w.logged.logger()}, w.leases(), lanes.DefaultLanes)
		return w.durable(sink, k), k
	}
	first, _ := replica()
	first.live()
	second, _ := replica()
	ws := w.startWriters(3, 10)
	more := func() {
		t.Helper()
		at := sink.count()
		eventually(t, "more events", func() bool { return sink.count() >= at+100 })
	}
	more()
	if second.Stats().Streaming {
		t.Error("both stream")
	}
	first.stop()
	eventually(t, "the second streams", func() bool { return second.Stats().Streaming })
	more()
	third, _ := replica()
	at := sink.count()
	second.stop()
	third.live()
	eventually(t, "more events", func() bool { return sink.count() >= at+100 })
	written := ws.stop()
	w.emptied()
	if repeats := sink.check(t, written); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// TestSuperseded: who has lost the change stream to another changes nothing any more.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	s := w.open()
	old, next := newKeeper(s), newKeeper(s)
	if _, err := old.claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := old.start(t.Context(), bson.Timestamp{T: 5}); err != nil {
		t.Fatal(err)
	}
	token, _ := bson.Marshal(bson.D{{Key: "_data", Value: "x"}})
	if err := old.advance(t.Context(), position{place{7 << 32, 2}, token}); err != nil {
		t.Fatal(err)
	}
	cp, err := next.claim(t.Context())
	if err != nil || cp.Time.T != 7 || cp.Number != 2 || cp.Scanned || string(cp.Token) != string(token) {
		t.Fatalf("claimed %+v: %v", cp, err)
	}
	if err := old.advance(t.Context(), position{place{9 << 32, 1}, token}); !errors.Is(err, errSuperseded) {
		t.Errorf("the old one wrote: %v", err)
	}
	if err := next.scanned(t.Context(), true); err != nil {
		t.Error(err)
	}
	if cp := w.checkpoint(); cp.Time.T != 7 || !cp.Scanned {
		t.Errorf("%+v", cp)
	}
}
