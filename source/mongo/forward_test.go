package mongo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// recorder is a broker that notes what it acknowledged, by key.
type recorder struct {
	mu    sync.Mutex
	acked map[string][]int // the payloads, numbers
	n     int
	bad   []string
}

func newRecorder() *recorder { return &recorder{acked: make(map[string][]int)} }

func (r *recorder) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range runs {
		for _, ev := range run {
			n, err := strconv.Atoi(string(ev.Payload))
			if err != nil {
				r.bad = append(r.bad, fmt.Sprintf("%s: %q", ev.Ref, ev.Payload))
			}
			r.acked[string(ev.Key)] = append(r.acked[string(ev.Key)], n)
			r.n++
			report([]source.Outcome{{ID: ev.ID, Class: source.Acked}})
		}
	}
}

func (r *recorder) Recall() {}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// check compares what was acknowledged with how far each key was written: 1, 2 ... with
// repeated suffixes, which it counts.
func (r *recorder) check(t testing.TB, written map[string]int) (repeats int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.bad {
		t.Error(b)
	}
	for key, n := range written {
		newest, last := 0, 0
		for i, got := range r.acked[key] {
			switch {
			case got == newest+1 && last == newest:
				newest = got
			case got <= newest:
				repeats++
			default:
				t.Errorf("%s: %v, number %d", key, r.acked[key], i)
				newest = max(newest, got)
			}
			last = got
		}
		if newest != n {
			t.Errorf("%s: %d of %d", key, newest, n)
		}
	}
	if len(r.acked) > len(written) {
		t.Errorf("%d keys, and %d were written", len(r.acked), len(written))
	}
	return repeats
}

// forward runs a forwarder over the source until stop is called, once.
func forward(t testing.TB, s *Source, sink lanes.Sink, owner lanes.Owner, change ...func(*lanes.Config)) (f *lanes.Forwarder, stop func()) {
	t.Helper()
	cfg := lanes.Config{Lanes: s.Lanes()}
	for _, c := range change {
		c(&cfg)
	}
	f, err := lanes.NewForwarder(cfg, s, sink, s.log, patience)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, owner) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the forwarder ended with: %v", err)
		}
	})
	t.Cleanup(stop)
	return f, stop
}

// writers write until they are stopped, each transaction one to three events of a key, which
// counts its events in a document of its own: so the writers of a key wait for each other.
type writers struct {
	*world
	counters *driver.Collection
	stopped  atomic.Bool
	wg       sync.WaitGroup
}

func (w *world) startWriters(n, keys int) *writers {
	ws := &writers{world: w, counters: w.db.Collection("counters")}
	for k := range keys {
		if _, err := ws.counters.InsertOne(w.t.Context(), bson.D{{Key: "_id", Value: fmt.Sprintf("k%d", k)}, {Key: "n", Value: 0}}); err != nil {
			w.t.Fatal(err)
		}
	}
	for range n {
		ws.wg.Go(func() {
			for !ws.stopped.Load() {
				ws.write(fmt.Sprintf("k%d", rand.IntN(keys)), 1+rand.IntN(3), time.Duration(rand.IntN(20)*rand.IntN(2))*time.Millisecond)
			}
		})
	}
	w.t.Cleanup(func() { ws.stop() })
	return ws
}

func (ws *writers) write(key string, events int, open time.Duration) {
	ctx := context.Background()
	session, err := ws.client.StartSession()
	if err != nil {
		ws.t.Error(err)
		return
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		var counter struct{ N int }
		err := ws.counters.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: key}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: events}}}}).Decode(&counter)
		if err != nil {
			return nil, err
		}
		for i := range events {
			if _, err := ws.outbox.InsertOne(ctx, doc(bson.NewObjectID(), key, strconv.Itoa(counter.N+i+1))); err != nil {
				return nil, err
			}
			time.Sleep(open) // the transaction commits late
		}
		return nil, nil
	}, options.Transaction().SetWriteConcern(writeconcern.Majority()))
	if err != nil && !ws.stopped.Load() {
		ws.t.Logf("a writer: %v", err)
	}
}

// stop ends the writers and returns how far each key has come.
func (ws *writers) stop() map[string]int {
	ws.stopped.Store(true)
	ws.wg.Wait()
	written := make(map[string]int)
	if ws.t.Context().Err() != nil {
		return written
	}
	cursor, err := ws.counters.Find(ws.t.Context(), bson.D{})
	if err != nil {
		ws.t.Fatal(err)
	}
	var docs []struct {
		ID string `bson:"_id"`
		N  int
	}
	if err := cursor.All(ws.t.Context(), &docs); err != nil {
		ws.t.Fatal(err)
	}
	for _, d := range docs {
		written[d.ID] = d.N
	}
	return written
}

func total(written map[string]int) (n int) {
	for _, m := range written {
		n += m
	}
	return n
}

// TestForward: the whole forwarder over concurrent writers whose transactions commit in another
// order than they insert: everything once, and in order.
func TestForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	sink := newRecorder()
	forward(t, s, sink, lanes.Sole{Lanes: s.Lanes()})
	ws := w.startWriters(8, 20)
	eventually(t, "500 events acknowledged", func() bool { return sink.count() >= 500 })
	written := ws.stop()
	eventually(t, "the outbox is empty", func() bool { return w.count(bson.D{}) == 0 })
	if repeats := sink.check(t, written); repeats != 0 || sink.count() != total(written) {
		t.Errorf("%d events of %d, %d repeats", sink.count(), total(written), repeats)
	}
	t.Logf("%d events", sink.count())
}

// TestForwardBacklog: a backlog that is larger than what may be in memory is drained in order.
func TestForwardBacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	const n, keys = 12_000, 50
	written := make(map[string]int)
	var docs []any
	for i := range n {
		key := fmt.Sprintf("k%d", i%keys)
		written[key]++
		docs = append(docs, doc(bson.NewObjectID(), key, strconv.Itoa(written[key])))
	}
	for part := range slices.Chunk(docs, 4000) {
		if _, err := w.outbox.InsertMany(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	sink := newRecorder()
	begun := time.Now()
	f, stop := forward(t, s, sink, lanes.Sole{Lanes: s.Lanes()}, func(cfg *lanes.Config) { cfg.MaxEvents, cfg.PageEvents = 2000, 500 })
	eventually(t, "everything is deleted", func() bool { return f.Stats().Deleted >= n })
	t.Logf("%.0f events/s", n/time.Since(begun).Seconds())
	stop()
	if repeats := sink.check(t, written); repeats != 0 || sink.count() != n {
		t.Errorf("%d events, %d repeats", sink.count(), repeats)
	}
	read(t, s, all())
	if s.handles.size() != 0 {
		t.Errorf("%d handles are left", s.handles.size())
	}
}

// TestC63Election: two replicas share the lanes while the primary steps down, is killed and comes
// back, is silent, and all members are silent or dead for a while. Nothing is lost, each key stays in order, and
// all goes on by itself.
func TestC63Election(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{Members: 3})
	w.init()
	sink := newRecorder()
	var keepers []*lanes.Keeper
	for range 2 {
		s := w.open()
		l := w.leases()
		k := lanes.NewKeeper(lanes.KeeperConfig{Host: "r", TTL: 5 * time.Second, Logger: s.log}, l, s.Lanes())
		keepers = append(keepers, k)
		forward(t, s, sink, k)
	}
	ws := w.startWriters(4, 12)
	more := func(n int) {
		t.Helper()
		at := sink.count()
		eventually(t, fmt.Sprintf("%d more events", n), func() bool { return sink.count() >= at+n })
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	primary := func() *servers.MongoMember {
		t.Helper()
		member, err := m.Primary(t.Context())
		must(err)
		return member
	}
	more(100)
	must(m.StepDown(t.Context()))
	more(100)
	killed := primary()
	must(killed.Kill())
	more(100)
	must(killed.Start(t.Context()))
	for _, member := range m.Members() {
		must(member.Pause())
	}
	time.Sleep(time.Second) // silence is what is tested
	for _, member := range m.Members() {
		must(member.Resume())
	}
	more(100)
	paused := primary()
	must(paused.Pause())
	more(100)
	must(paused.Resume())
	more(100)
	for _, member := range m.Members() {
		must(member.Kill())
	}
	for _, member := range m.Members() {
		must(member.Start(t.Context()))
	}
	more(100)
	written := ws.stop()
	eventually(t, "the outbox is empty", func() bool { return w.count(bson.D{}) == 0 })
	repeats := sink.check(t, written)
	t.Logf("%d events, %d repeats", sink.count(), repeats)
	for _, k := range keepers {
		if k.Member() == "" {
			t.Error("a replica is no member")
		}
	}
}

// TestC65RolledBack: a document that no majority has is not published, and it never is when the
// primary that had it is lost.
func TestC65RolledBack(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{Members: 3})
	w.init()
	s, reads := w.open(), w.open()
	sink := newRecorder()
	f, _ := forward(t, s, sink, lanes.Sole{Lanes: s.Lanes()})
	w.insert(doc("kept", "a", "1"))
	eventually(t, "the first event", func() bool { return sink.count() == 1 && f.Stats().Deleted == 1 })
	primary, err := m.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	others := slices.DeleteFunc(slices.Clone(m.Members()), func(member *servers.MongoMember) bool { return member == primary })
	// Killed, not paused: what had reached a paused member is replicated when it goes on.
	for _, member := range others {
		if err := member.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	one := w.outbox.Clone(options.Collection().SetWriteConcern(writeconcern.W1()))
	if _, err := one.InsertOne(t.Context(), doc("undone", "b", "1")); err != nil {
		t.Fatal(err)
	}
	if n := w.count(bson.D{}); n != 1 { // by read concern local
		t.Fatalf("the primary has %d documents", n)
	}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		page, err := reads.Read(ctx, all())
		cancel()
		if err == nil && len(page.Events) != 0 {
			t.Fatalf("read what no majority has: %s", refs(page.Events))
		}
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, member := range others {
		if err := member.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Primary(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := primary.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.insert(doc("later", "a", "2"))
	eventually(t, "the last event", func() bool { return sink.count() >= 2 })
	eventually(t, "the outbox is empty", func() bool { return w.count(bson.D{}) == 0 })
	if repeats := sink.check(t, map[string]int{"a": 2}); repeats != 0 {
		t.Errorf("%d repeats", repeats)
	}
}
