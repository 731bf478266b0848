package tail_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/tail"
)

// table is an outbox of committed rows. Deletes do not see the hidden ones.
type table struct {
	mu     sync.Mutex
	rows   []*source.Event
	snap   source.Snapshot
	hidden map[int64]bool
	reads  int
	err    error
}

func (t *table) Read(context.Context, *source.Read) (*source.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reads++
	if t.err != nil {
		return nil, t.err
	}
	return &source.Page{Events: slices.Clone(t.rows), Snapshot: t.snap}, nil
}

func (t *table) DeleteRows(_ context.Context, ids []int64, _ func(uint64)) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, id := range ids {
		if !t.hidden[id] {
			n++
		}
	}
	return n, t.err
}

func snapshot(x uint64) source.Snapshot { return source.Snapshot{Xmin: x, Xmax: x} }

func event(id int64) *source.Event {
	return &source.Event{ID: id, Topic: "t", Key: []byte("k"), Lane: source.Lane(id % 4)}
}

func everything(known ...int64) *source.Read {
	return &source.Read{Floor: -1 << 63, Known: known, Limit: 100, Bytes: 1 << 20}
}

func read(t *testing.T, m *tail.Mirror, r *source.Read) []int64 {
	t.Helper()
	page, err := m.Read(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	ids := []int64{}
	for _, ev := range page.Events {
		ids = append(ids, ev.ID)
	}
	return ids
}

func expect(t *testing.T, got []int64, want ...int64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got the rows %v, want %v", got, want)
	}
}

func appendRows(t *testing.T, m *tail.Mirror, xid uint64, ids ...int64) {
	t.Helper()
	var events []*source.Event
	for _, id := range ids {
		if ev := event(id); m.Wants(ev.Lane) {
			events = append(events, ev)
		}
	}
	if err := m.Append(t.Context(), xid, events, len(events) < len(ids)); err != nil {
		t.Fatal(err)
	}
}

// TestMirrorServesFromMemory is the life of a mirror in short.
func TestMirrorServesFromMemory(t *testing.T) {
	tb := &table{rows: []*source.Event{event(1)}, snap: snapshot(100)}
	m := tail.NewMirror(tail.Config{}, tb)
	m.Attach(90)
	appendRows(t, m, 99, 1) // the table read will show it
	appendRows(t, m, 120, 2)
	expect(t, read(t, m, everything()), 1)
	if s := m.Stats(); !s.Complete || !s.Attached || s.Waiting != 1 || s.Out != 1 {
		t.Fatalf("after a table read the mirror has %+v", s)
	}
	<-m.Wake()
	expect(t, read(t, m, everything(1)), 2)
	appendRows(t, m, 98, 1) // late in the log
	appendRows(t, m, 121, 3)
	<-m.Wake()
	expect(t, read(t, m, everything(1, 2)), 3)
	if s := m.Stats(); tb.reads != 1 || s.TableReads != 1 || s.Covered != 1 || s.Memory != 2 {
		t.Errorf("the table was read %d times: %+v", tb.reads, s)
	}
	m.Detach()
	read(t, m, everything(1, 2, 3))
	if tb.reads != 2 {
		t.Error("without a log the table was not read")
	}
}

// TestNewLogKnowsNoSnapshot: after a failover a transaction may have the xid of one that an
// earlier snapshot showed.
func TestNewLogKnowsNoSnapshot(t *testing.T) {
	tb := &table{snap: snapshot(200)}
	m := tail.NewMirror(tail.Config{}, tb)
	m.Attach(0)
	read(t, m, everything())
	m.Detach()
	m.Attach(0)
	tb.snap = snapshot(150)
	appendRows(t, m, 160, 1)
	expect(t, read(t, m, everything()))
	expect(t, read(t, m, everything()), 1)
}

// TestDeleteBeforeItsRowIsVisible: a row that waits for a synchronous standby is delivered from
// the log, and its delete finds nothing.
func TestDeleteBeforeItsRowIsVisible(t *testing.T) {
	tb := &table{snap: snapshot(100), hidden: map[int64]bool{1: true}}
	m := tail.NewMirror(tail.Config{}, tb)
	m.Attach(0)
	read(t, m, everything())
	appendRows(t, m, 150, 1)
	expect(t, read(t, m, everything()), 1)
	if err := m.Delete(t.Context(), []int64{1}, func(uint64) {}); err != nil {
		t.Fatal(err)
	}
	rescan := everything()
	rescan.Rescan = true
	expect(t, read(t, m, rescan)) // the standby is still silent
	tb.snap, tb.hidden, tb.rows = snapshot(151), nil, []*source.Event{event(1)}
	expect(t, read(t, m, rescan))
	expect(t, read(t, m, rescan))
	if s := m.Stats(); tb.reads != 3 || s.Unseen != 1 {
		t.Errorf("after %d reads the row was not deleted again, or still is waited for: %+v", tb.reads, s)
	}
}

// TestResyncWaitsForABacklog: while more waits than a page holds, the table is not read by the clock,
// but for a look now and then.
func TestResyncWaitsForABacklog(t *testing.T) {
	now := time.Now()
	tb := &table{snap: snapshot(100)}
	m := tail.NewMirror(tail.Config{Resync: time.Minute, Now: func() time.Time { return now }}, tb)
	m.Attach(0)
	rescan := everything()
	rescan.Rescan, rescan.Limit = true, 2
	reads := func(want int) {
		t.Helper()
		if tb.reads != want {
			t.Errorf("the table was read %d times, want %d", tb.reads, want)
		}
	}
	read(t, m, rescan)
	appendRows(t, m, 150, 1, 2, 3, 4, 5)
	now = now.Add(time.Minute)
	expect(t, read(t, m, rescan), 1, 2)
	reads(1)
	now = now.Add(9 * time.Minute)
	rescan.Known = []int64{1, 2}
	read(t, m, rescan)
	reads(2)
	expect(t, read(t, m, rescan), 3, 4)
	reads(2)
	now = now.Add(time.Minute)
	rescan.Known = []int64{1, 2, 3, 4}
	read(t, m, rescan)
	reads(3)
}

// TestDroppedRowThatIsNotVisible: what the forwarder has dropped comes again from memory, though
// the table was read meanwhile, which does not show it yet.
func TestDroppedRowThatIsNotVisible(t *testing.T) {
	tb := &table{snap: snapshot(100)}
	m := tail.NewMirror(tail.Config{}, tb)
	m.Attach(0)
	read(t, m, everything())
	appendRows(t, m, 150, 1)
	expect(t, read(t, m, everything()), 1)
	gained := everything()
	gained.Dropped, gained.Gained = true, true
	expect(t, read(t, m, gained))
	expect(t, read(t, m, everything()), 1)
	if tb.reads != 2 {
		t.Errorf("the table was read %d times", tb.reads)
	}
}

// TestLogBringsARowAfterItsDelete: a new log tells of a row that was read from the table, delivered
// and deleted before the log came to it, while the forwarder has not heard of the delete. Whatever
// the forwarder has dropped, the row does not come again.
func TestLogBringsARowAfterItsDelete(t *testing.T) {
	for reads := range 2 {
		tb := &table{rows: []*source.Event{event(1)}, snap: snapshot(100)}
		m := tail.NewMirror(tail.Config{}, tb)
		expect(t, read(t, m, everything()), 1)
		if err := m.Delete(t.Context(), []int64{1}, func(uint64) {}); err != nil {
			t.Fatal(err)
		}
		tb.rows = nil
		for range reads {
			expect(t, read(t, m, everything(1)))
		}
		m.Attach(0)
		appendRows(t, m, 99, 1)
		expect(t, read(t, m, everything(1)))
		if s := m.Stats(); !s.Complete || s.Waiting != 0 || s.Out != reads { // known for long: who knows
			t.Errorf("after %d reads the mirror has %+v", reads, s)
		}
		dropped := everything()
		dropped.Dropped = true
		expect(t, read(t, m, dropped))
		if s := m.Stats(); !s.Complete || s.Out != 0 {
			t.Errorf("the row is kept: %+v", s)
		}
	}
}

// TestAppendBlocks: a full memory slows the log, and is made free in the end.
func TestAppendBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := tail.NewMirror(tail.Config{MaxEvents: 2, Patience: time.Second}, &table{snap: snapshot(100)})
		m.Attach(0)
		read(t, m, everything())
		appendRows(t, m, 101, 1, 2, 3)
		start := time.Now()
		go func() {
			time.Sleep(900 * time.Millisecond)
			read(t, m, &source.Read{Floor: -1 << 63, Limit: 1, Bytes: 1})
		}()
		appendRows(t, m, 102, 4)
		if waited := time.Since(start); waited != 900*time.Millisecond {
			t.Errorf("an append waited for %v", waited)
		}
		start = time.Now()
		appendRows(t, m, 103, 5)
		if waited := time.Since(start); waited != time.Second || m.Stats().Complete {
			t.Errorf("an append waited for %v, and the mirror has %+v", waited, m.Stats())
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := m.Append(ctx, 104, []*source.Event{event(6)}, false); err != nil {
			t.Errorf("an append to a mirror that is not complete: %v", err)
		}
	})
}

// TestEvictionKeepsTheRest: when memory is full, what is not read goes first.
func TestEvictionKeepsTheRest(t *testing.T) {
	tb := &table{snap: snapshot(100)}
	m := tail.NewMirror(tail.Config{MaxEvents: 2, Patience: -1}, tb)
	m.Attach(0)
	read(t, m, everything())
	appendRows(t, m, 101, 1, 2, 5)
	some := everything(2)
	some.Lanes = []source.Lane{2}
	expect(t, read(t, m, some), 2)
	appendRows(t, m, 102, 9, 6)
	appendRows(t, m, 103, 10)
	if s := m.Stats(); !s.Complete || s.Evictions != 1 || m.Wants(1) || !m.Wants(2) {
		t.Fatalf("after an eviction the mirror has %+v", s)
	}
	expect(t, read(t, m, some), 6, 10)
	tb.snap = snapshot(104)
	tb.rows = []*source.Event{event(1), event(5), event(9)}
	expect(t, read(t, m, everything(2, 6, 10)), 1, 5, 9)
	if tb.reads != 2 {
		t.Errorf("the table was read %d times", tb.reads)
	}
}

// TestTableErrorsArePassedOn: also when the mirror was complete.
func TestTableErrorsArePassedOn(t *testing.T) {
	broken := errors.New("no connection")
	tb := &table{snap: snapshot(100), err: broken}
	m := tail.NewMirror(tail.Config{}, tb)
	m.Attach(0)
	if _, err := m.Read(t.Context(), everything()); !errors.Is(err, broken) {
		t.Errorf("a read returned %v", err)
	}
	if err := m.Delete(t.Context(), []int64{1}, func(uint64) {}); !errors.Is(err, broken) {
		t.Errorf("a delete returned %v", err)
	}
	if m.Stats().Complete {
		t.Error("the mirror is complete without a page")
	}
}

// TestHeadHidesTheSnapshot: an engine without floors gets pages without a snapshot.
func TestHeadHidesTheSnapshot(t *testing.T) {
	m := tail.NewMirror(tail.Config{Head: true}, &table{rows: []*source.Event{event(1)}, snap: snapshot(7 << 32)})
	m.Attach(6 << 32)
	page, err := m.Read(t.Context(), everything())
	if err != nil || page.Snapshot.Xmax != 0 || len(page.Events) != 1 || !m.Stats().Complete {
		t.Errorf("a read returned %+v, %v, and the mirror has %+v", page, err, m.Stats())
	}
}

// BenchmarkMirror is a drain: small pages while much is in memory and known.
func BenchmarkMirror(b *testing.B) {
	m := tail.NewMirror(tail.Config{MaxEvents: 1 << 20, MaxBytes: 1 << 30}, &table{snap: snapshot(100)})
	m.Attach(0)
	if _, err := m.Read(b.Context(), everything()); err != nil {
		b.Fatal(err)
	}
	const depth, known, page = 20_000, 10_000, 100
	events := make([]*source.Event, depth+known)
	for i := range events {
		events[i] = event(int64(i))
	}
	next, first := int64(0), int64(0)
	feed := func(n int) {
		batch := make([]*source.Event, n)
		for i := range batch {
			e := *events[int(next)%len(events)]
			e.ID = next
			batch[i] = &e
			next++
		}
		if err := m.Append(b.Context(), uint64(1000+next), batch, false); err != nil {
			b.Fatal(err)
		}
	}
	feed(depth)
	r := everything()
	r.Known = make([]int64, known)
	r.Limit = page
	ids := make([]int64, page)
	b.ReportAllocs()
	for b.Loop() {
		feed(page)
		p, err := m.Read(b.Context(), r)
		if err != nil || len(p.Events) != page {
			b.Fatal(err, len(p.Events))
		}
		for i := range ids {
			ids[i] = first
			first++
		}
		if first > known {
			if err := m.Delete(b.Context(), ids, func(uint64) {}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(page)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
