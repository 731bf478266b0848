package lanes

import (
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// floorStory reads a table by a floor alone and delivers at once what it reads.
type floorStory struct {
	t     *testing.T
	now   time.Time
	floor *Floor[source.Lane]
	table *table
	limit int
}

func newFloorStory(t *testing.T) *floorStory {
	return &floorStory{t: t, now: epoch, floor: NewFloor[source.Lane](time.Second), table: newTable(), limit: 100}
}

// insert adds a row of a key to an open transaction.
func (s *floorStory) insert(tx *transaction, key string) int64 {
	s.t.Helper()
	r, ok := s.table.insert(tx, &source.Event{Key: []byte(key)}, true)
	if !ok {
		s.t.Fatalf("another transaction holds key %q", key)
	}
	return r.ID
}

// commit adds a row in a transaction of its own.
func (s *floorStory) commit(key string) int64 {
	s.t.Helper()
	tx := &transaction{}
	id := s.insert(tx, key)
	s.table.end(tx, true)
	return id
}

// expect reads once, delivers what comes, and compares it.
func (s *floorStory) expect(want ...int64) {
	s.t.Helper()
	page := s.table.read(&source.Read{Floor: s.floor.At(), Limit: s.limit, Bytes: 1 << 20, Fence: true})
	var got []int64
	if s.floor.Observe(s.now, page) {
		for _, ev := range page.Events {
			got = append(got, ev.ID)
			s.table.remove(s.table.byID[ev.ID])
		}
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("the read brought %v, want %v", got, want)
	}
}

// expectThrownAway reads once, and the page must not be used.
func (s *floorStory) expectThrownAway() {
	s.t.Helper()
	if s.floor.Observe(s.now, s.table.read(&source.Read{Floor: s.floor.At(), Limit: s.limit, Bytes: 1 << 20, Fence: true})) {
		s.t.Fatal("the page was accepted")
	}
}

func (s *floorStory) expectAt(want int64) {
	s.t.Helper()
	if at := s.floor.At(); at != want {
		s.t.Fatalf("the floor is at %d, want %d", at, want)
	}
}

// Id 1 is taken first and committed last: it is found, once, by the next read.
func TestC01LateCommit(t *testing.T) {
	s := newFloorStory(t)
	first := &transaction{}
	s.insert(first, "a")
	s.commit("b")
	s.expect(2)
	s.expect()
	s.expect()
	s.table.end(first, true)
	s.expect(1)
	s.expect()
	s.expectAt(2)
}

// The youngest transaction is in no snapshot: its xid is not below xmax. Its row's id is lower
// than that of a row that is out, and still must come before a later one of its key.
func TestC01YoungestTransactionTakesLowerID(t *testing.T) {
	s := newFloorStory(t)
	older, younger := &transaction{}, &transaction{}
	s.table.takeXid(older)
	s.table.takeXid(younger)
	s.insert(younger, "a")
	s.insert(older, "b")
	s.table.end(older, true)
	s.expect(2)
	s.expect()
	s.expect()
	s.table.end(younger, true)
	s.commit("a")
	s.expect(1, 3)
	s.expect()
	s.expectAt(3)
}

// Ids of a transaction that rolled back are gaps: nothing waits for them.
func TestC01GapsAreNotWaitedFor(t *testing.T) {
	s := newFloorStory(t)
	lost := &transaction{}
	for range 3 {
		s.insert(lost, "a")
	}
	s.commit("b")
	s.table.end(lost, false)
	s.expect(4)
	s.expect()
	s.expectAt(4)
}

// A transaction stays open elsewhere for ten minutes: rows are delivered at once, and a second
// after a snapshot has shown it, it holds the floor no longer.
func TestC02LongTransactionElsewhere(t *testing.T) {
	s := newFloorStory(t)
	migration := &transaction{}
	s.table.takeXid(migration)
	s.expect()
	last := int64(0)
	for range 600 {
		s.now = s.now.Add(time.Second)
		id := s.commit("a")
		s.expect(id)
		s.expect()
		if s.now.Sub(epoch) > 3*time.Second {
			s.expectAt(id)
		}
		last = id
	}
	s.table.end(migration, true)
	s.expectThrownAway() // it might have left rows
	s.expect()
	s.expect()
	s.expectAt(last)
	s.expect()
	if len(s.floor.aside) != 0 || len(s.floor.born) != 0 {
		t.Errorf("ended transactions are remembered: %v %v", s.floor.aside, s.floor.born)
	}
}

// A transaction that was set aside ends and leaves two rows of a key, one on each side of the
// floor: neither may come before the other's elder.
func TestSetAsideTransactionEnds(t *testing.T) {
	s := newFloorStory(t)
	s.commit("x")
	s.expect(1)
	s.expect()
	s.expectAt(1)
	long := &transaction{}
	s.insert(long, "a")
	s.expect()
	s.expect() // the first snapshot that shows it
	s.now = s.now.Add(2 * time.Second)
	s.commit("b")
	s.expect(3)
	s.expect()
	s.expectAt(3)
	s.insert(long, "a")
	s.table.end(long, true)
	s.floor.Hold(7, 100) // a part that fell behind meanwhile
	s.expectThrownAway()
	s.expectAt(1)
	if at, _ := s.floor.Held(7); at != 1 {
		t.Errorf("a part behind remembers %d, want 1", at)
	}
	s.expect(2, 4)
	s.expect()
	s.expectAt(4)
}

// A full page covers no more than its last row, whatever earlier pages have seen.
func TestFullPageCoversUpToItsLastRow(t *testing.T) {
	s := newFloorStory(t)
	for range 5 {
		s.commit("a")
	}
	s.expect(1, 2, 3, 4, 5)
	s.expect()
	s.expectAt(5)
	s.floor.Hold(7, 1)
	for range 3 {
		s.table.remove(s.table.byID[s.commit("a")])
	}
	s.commit("a")
	s.expect(9)
	s.floor.Release(7)
	s.expectAt(0)
	s.limit = 2
	for _, id := range []int64{1, 2, 3, 4} { // they were of the part
		r := s.table.byID[id]
		r.deleted = false
		s.table.rows = append(s.table.rows, r)
	}
	slices.SortFunc(s.table.rows, func(a, b *row) int { return int(a.ID - b.ID) })
	s.expect(1, 2)
	s.expectAt(2)
	s.expect(3, 4)
	s.expectAt(4)
	s.expect()
	s.expectAt(9)
}

// An id is taken before its transaction writes for the first time: the row is found when the
// table is read from its start.
func TestIDTakenBeforeTheTransactionHasAnXid(t *testing.T) {
	s := newFloorStory(t)
	early := &transaction{taken: []int64{s.table.takeID()}}
	s.commit("b")
	s.expect(2)
	s.expect()
	s.expectAt(2)
	ev := &source.Event{ID: early.taken[0], Key: []byte("a")}
	if _, ok := s.table.insert(early, ev, false); !ok {
		t.Fatal("the row was not inserted")
	}
	s.table.end(early, true)
	s.expect()
	s.floor.Reset()
	s.expectAt(Start)
	s.expect(1)
	s.expect()
	s.expectAt(2)
}

// TestFenceOfAnEarlierDelete: the xid of a delete that was sent before a read is no fence for what that
// read covered, since a writer with a higher one may have been running.
func TestFenceOfAnEarlierDelete(t *testing.T) {
	f := NewFloor[int](time.Hour)
	observe := func(snap source.Snapshot, ids ...int64) {
		t.Helper()
		page := &source.Page{Snapshot: snap}
		for _, id := range ids {
			page.Events = append(page.Events, &source.Event{ID: id})
		}
		if !f.Observe(epoch, page) {
			t.Fatal("the page is thrown away")
		}
	}
	observe(source.Snapshot{Xmin: 100, Xmax: 100}, 5)
	sent := f.Reads() // a delete is sent, and will be transaction 100
	// 101 takes id 6 and stays open, and 102 commits id 7.
	observe(source.Snapshot{Xmin: 100, Xmax: 103, Running: []uint64{100, 101}}, 7)
	f.Ours(100)
	f.Fence(sent, 100)
	observe(source.Snapshot{Xmin: 101, Xmax: 103, Running: []uint64{101}})
	if f.At() != 5 {
		t.Errorf("the floor is at %d, and id 6 is not there yet", f.At())
	}
	// A fence that was taken after the read is one.
	f.Fence(f.Reads(), 103)
	observe(source.Snapshot{Xmin: 104, Xmax: 104}, 6)
	if f.At() != 7 {
		t.Errorf("the floor is at %d after everything has ended", f.At())
	}
}
