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

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// few is a sink that acknowledges a number of events, and the others when it is released.
type few struct {
	*recorder
	mu     sync.Mutex
	left   int
	kept   []*source.Event
	report func([]source.Outcome)
}

func (f *few) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report = report
	for _, run := range runs {
		for _, ev := range run {
			if f.left == 0 {
				f.kept = append(f.kept, ev)
				continue
			}
			f.left--
			f.recorder.Submit([][]*source.Event{{ev}}, report)
		}
	}
}

// giveBack says that what is kept was not produced, and takes everything from now on.
func (f *few) giveBack() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = 1 << 30
	for _, ev := range f.kept {
		f.report([]source.Outcome{{ID: ev.ID, Class: source.HeldBack, Err: errors.New("not produced")}})
	}
	f.kept = nil
}

func everyLane() (all []source.Lane) {
	for lane := range lanes.DefaultLanes {
		all = append(all, source.Lane(lane))
	}
	return all
}

// fickle owns all lanes while its channel says so.
type fickle struct{ owns chan bool }

func (o fickle) Own(ctx context.Context, h lanes.Holder) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case yes := <-o.owns:
			if yes {
				h.Gain(everyLane())
			} else {
				h.Lose(everyLane())
			}
		}
	}
}

func (o fickle) Retire() {}

// decided is an owner whose word the test gives itself.
type decided struct{ holder chan lanes.Holder }

func (o decided) Own(ctx context.Context, h lanes.Holder) error {
	o.holder <- h
	<-ctx.Done()
	return nil
}

func (o decided) Retire() {}

// run runs a forwarder over a durable stream until the returned function is called.
func (w *world) run(d *Durable, sink lanes.Sink, owner lanes.Owner) (stop func()) {
	w.t.Helper()
	forwarder, err := lanes.NewForwarder(lanes.Config{Lanes: d.Lanes()}, d, sink, w.logged.logger(), time.Millisecond)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = forwarder.Run(ctx, d.Owner(owner)) })
	work.Go(func() { _ = d.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		work.Wait()
		d.Close()
	})
	w.t.Cleanup(stop)
	return stop
}

// transaction inserts documents with the key k and the numbers 1 to n.
func (w *world) transaction(n int) {
	w.t.Helper()
	session, err := w.client.StartSession()
	if err != nil {
		w.t.Fatal(err)
	}
	defer session.EndSession(w.t.Context())
	_, err = session.WithTransaction(w.t.Context(), func(ctx context.Context) (any, error) {
		for i := range n {
			if _, err := w.outbox.InsertOne(ctx, doc(int32(i), "k", fmt.Sprint(i+1))); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestDurableLanesLost: when lanes are lost between the documents of a transaction and come back,
// the rest of it comes, and nothing else.
func TestDurableLanesLost(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	d, err := OpenDurable(t.Context(), w.config())
	if err != nil {
		t.Fatal(err)
	}
	sink := &few{recorder: newRecorder(), left: 2}
	owner := fickle{make(chan bool)}
	w.run(d, sink, owner)
	owner.owns <- true
	eventually(t, "the outbox is streamed", func() bool { return d.Stats().Streaming })
	w.transaction(5)
	eventually(t, "two are delivered and recorded", func() bool { return sink.count() == 2 && w.checkpoint().Number == 2 })
	owner.owns <- false
	eventually(t, "the stream is let go of", func() bool { return !d.Stats().Streaming })
	sink.giveBack()
	owner.owns <- true
	eventually(t, "the rest", func() bool { return sink.count() >= 5 })
	w.emptied()
	if repeats := sink.check(t, map[string]int{"k": 5}); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// TestDurableStaleOwner: a replica whose lease has ended without its knowledge leaves the change
// stream to the one that has taken it, and goes on when its lease is renewed.
func TestDurableStaleOwner(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	d, err := OpenDurable(t.Context(), w.config())
	if err != nil {
		t.Fatal(err)
	}
	sink := newRecorder()
	owner := decided{make(chan lanes.Holder, 1)}
	w.run(d, sink, owner)
	h := <-owner.holder
	h.Trust(time.Now().Add(time.Hour))
	h.Gain(everyLane())
	eventually(t, "the outbox is streamed", func() bool { return d.Stats().Streaming })
	h.Trust(time.Now())
	other, err := newKeeper(w.open()).claim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is superseded", func() bool {
		return d.Stats().Waits == leaseEnded || w.checkpoint().Epoch != other.Epoch
	})
	if cp := w.checkpoint(); cp.Epoch != other.Epoch {
		t.Errorf("epoch %d, and the other one has claimed %d", cp.Epoch, other.Epoch)
	}
	h.Trust(time.Now().Add(time.Hour))
	w.transaction(3)
	eventually(t, "the documents", func() bool { return sink.count() >= 3 })
	w.emptied()
	if repeats := sink.check(t, map[string]int{"k": 3}); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// TestDurableC62: a crash between the documents of a transaction repeats none of it or some, and
// never leaves out the rest.
func TestDurableC62(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	first, err := OpenDurable(t.Context(), w.config())
	if err != nil {
		t.Fatal(err)
	}
	half := &few{recorder: newRecorder(), left: 2}
	stop := w.run(first, half, lanes.Sole{Lanes: first.Lanes()})
	eventually(t, "the outbox is streamed", func() bool { return first.Stats().Streaming })
	w.transaction(5)
	eventually(t, "two are delivered and recorded", func() bool { return half.count() == 2 && w.checkpoint().Number == 2 })
	stop()
	sink := newRecorder()
	w.durable(sink, nil)
	eventually(t, "the rest", func() bool { return sink.count() >= 3 })
	w.emptied()
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if got := sink.acked["k"]; !slices.Equal(got, []int{3, 4, 5}) {
		t.Errorf("delivered %v after the crash", got)
	}
}

// TestDurableC63Election: two replicas, one of which streams, while the primary steps down, is
// killed, is silent and comes back.
func TestDurableC63Election(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{Members: 3})
	w.init(wantDurable)
	sink := newRecorder()
	var replicas []*lasting
	for range 2 {
		k := lanes.NewKeeper(lanes.KeeperConfig{Host: "r", TTL: 5 * time.Second, Exclusive: true, Logger: w.logged.logger()}, w.leases(), lanes.DefaultLanes)
		replicas = append(replicas, w.durable(sink, k))
	}
	ws := w.startWriters(4, 12)
	more, must := moreOf(t, sink), noError(t)
	troublePrimaries(t, m, more)
	for _, member := range m.Members() {
		must(member.Kill())
	}
	for _, member := range m.Members() {
		must(member.Start(t.Context()))
	}
	more()
	written := ws.stop()
	w.emptied()
	repeats := sink.check(t, written)
	t.Logf("%d events, %d repeats", sink.count(), repeats)
	for _, l := range replicas {
		t.Logf("%+v", l.Stats())
	}
}

// TestDurableTooLarge: a document of which a change stream cannot tell is delivered by a scan, and
// what comes behind it by the stream.
func TestDurableTooLarge(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	sink := newRecorder()
	l := w.durable(sink, nil)
	l.live()
	w.insert(doc("before", "k", "1"), doc(strings.Repeat("i", 7<<20), "k", "2"), doc("small", "k", "3"))
	eventually(t, "three events", func() bool { return sink.count() >= 3 })
	w.insert(doc("behind", "k", "4"))
	eventually(t, "the one behind", func() bool { return sink.count() >= 4 })
	w.emptied()
	if repeats := sink.check(t, map[string]int{"k": 4}); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
	if !strings.Contains(w.logged.String(), "too large for a change stream") {
		t.Error("it was not said")
	}
}

// TestDurableScanIsRepeated: a scan that was cut short by a crash is made again, and what came
// meanwhile comes once.
func TestDurableScanIsRepeated(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(wantDurable)
	w.many(0, 5000)
	l := w.durable(newRecorder(), nil)
	l.sink.set(true)
	eventually(t, "the scan has begun", func() bool { return l.sink.inFlight() > 0 })
	l.crash()
	if cp := w.checkpoint(); cp.Scanned {
		t.Errorf("%+v", cp)
	}
	left := w.count(bson.D{})
	if left == 0 {
		t.Fatal("everything was delivered")
	}
	w.insert(doc("new", "new", "1"))
	sink := newRecorder()
	second := w.durable(sink, nil)
	eventually(t, "the rest", func() bool { return sink.count() >= left+1 })
	w.emptied()
	if sink.count() != left+1 {
		t.Errorf("%d events of %d", sink.count(), left+1)
	}
	eventually(t, "the scan's end is recorded", func() bool { return w.checkpoint().Scanned })
	eventually(t, "nothing is held", func() bool { return second.handles.size() == 0 })
}

// TestDurableNeedsInit: the collection for the position is there only where init was asked for it.
func TestDurableNeedsInit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := OpenDurable(t.Context(), w.config())
	wantProblem(t, setupProblems(t, err), "outbox_checkpoint", "keeps the position", "forwarder init")
	list, err := Statements(w.config(wantDurable))
	if err != nil || !strings.Contains(strings.Join(list, "\n"), "outbox_checkpoint") {
		t.Errorf("%v, %v", list, err)
	}
}
