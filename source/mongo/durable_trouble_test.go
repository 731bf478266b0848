package mongo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// one is a sink that acknowledges a number of events one by one, and nothing more.
type one struct {
	*recorder
	left int
}

func (o *one) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	for _, run := range runs {
		for _, ev := range run {
			if o.left == 0 {
				return
			}
			o.left--
			o.recorder.Submit([][]*source.Event{{ev}}, report)
		}
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
	defer first.Close()
	half := &one{recorder: newRecorder(), left: 2}
	forwarder, err := lanes.NewForwarder(lanes.Config{Lanes: first.Lanes()}, first, half, w.logged.logger(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- forwarder.Run(ctx, first.Owner(lanes.Sole{Lanes: first.Lanes()})) }()
	go func() { ended <- first.Run(ctx) }()
	eventually(t, "the outbox is streamed", func() bool { return first.Stats().Streaming })
	session, err := w.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(t.Context())
	_, err = session.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		for i := range 5 {
			if _, err := w.outbox.InsertOne(ctx, doc(int32(i), "k", fmt.Sprint(i+1))); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "two are delivered and recorded", func() bool { return half.count() == 2 && w.checkpoint().Number == 2 })
	cancel()
	<-ended
	<-ended
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
	more := func() {
		t.Helper()
		at := sink.count()
		eventually(t, "more events", func() bool { return sink.count() >= at+100 })
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	more()
	must(m.StepDown(t.Context()))
	more()
	killed, err := m.Primary(t.Context())
	must(err)
	must(killed.Kill())
	more()
	must(killed.Start(t.Context()))
	paused, err := m.Primary(t.Context())
	must(err)
	must(paused.Pause())
	more()
	must(paused.Resume())
	more()
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
