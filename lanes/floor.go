package lanes

import (
	"math"
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Start is the floor from which a read sees the whole table.
const Start = math.MinInt64

// maxMarks bounds the marks that a floor keeps while one transaction holds it; past it
// every second one goes, which costs only that the floor rises in coarser steps.
const maxMarks = 40

// Floor is the id below which nothing can still appear for the parts that are live, and for
// each part behind the id from which it must be read again. It only makes reading cheaper:
// a floor that is too low costs a scan, and Start is always right.
//
// Ids are taken before their transaction commits, so the highest id seen says nothing about
// lower ones. The floor rises by marks: a read that covered everything up to id a leaves a
// mark with a fence, an xid that was assigned after the read's snapshot was taken. Every id up
// to a was taken by a transaction below the fence, so once a later snapshot shows that all of
// those have ended, a read in that snapshot has seen what they left, as far as it reached.
//
// A snapshot's own xmax is no fence: it is one above the last xid that has *ended*, and
// running transactions at or above it are in no snapshot. Fences come from our own deletes,
// which have an xid anyway, or where there is none for a while from a read that takes one. A read
// whose own snapshot shows that all below its fence have ended, but for transactions of forwarders,
// lifts the floor by itself.
//
// A transaction that stays open for longer than Age is set aside with the floor of that
// moment, and holds the floor no longer. When a page's snapshot shows that it has ended, the
// page is thrown away, for it was asked for with the higher floor and may hold a row whose
// older sibling lies below.
//
// It is a value without clock or lock.
type Floor[P comparable] struct {
	Age time.Duration

	at    int64                // every live part is covered up to here
	top   int64                // the highest id that any page returned
	marks []mark               // in the order of the reads
	reads uint64               // pages observed
	born  map[uint64]time.Time // when a running transaction was first seen
	aside map[uint64]int64     // transactions set aside, with the floor of that moment
	ours  []uint64             // transactions that insert nothing: deletes and fences of forwarders
	held  map[P]int64          // parts behind: covered up to here
}

type mark struct {
	id    int64
	fence uint64 // every transaction that took an id up to id is below it; 0 while unknown
	read  uint64 // the number of the read that left it
}

// settledFence is below every xid that can be running.
const settledFence = 1

// NewFloor returns a floor at Start.
func NewFloor[P comparable](age time.Duration) *Floor[P] {
	return &Floor[P]{
		Age:   age,
		at:    Start,
		top:   Start,
		born:  make(map[uint64]time.Time),
		aside: make(map[uint64]int64),
		held:  make(map[P]int64),
	}
}

// At is the floor that the next read must be sent with.
func (f *Floor[P]) At() int64 { return f.at }

// Top is the highest id that any page returned, Start before the first.
func (f *Floor[P]) Top() int64 { return f.top }

// Observe takes in the page of a read that was sent with At. It returns false when the page
// must be thrown away and read again from the floor that At has now.
func (f *Floor[P]) Observe(now time.Time, page *source.Page) bool {
	snap := &page.Snapshot
	if snap.Xmax == 0 {
		return true // a source whose reads always start at the head
	}
	if f.ended(snap) {
		return false
	}
	for _, xid := range page.Ours {
		f.Ours(xid)
	}
	sent := f.at
	oldest := f.holder(now, snap, sent)

	last := int64(Start)
	if n := len(page.Events); n > 0 {
		last = page.Events[n-1].ID
		f.top = max(f.top, last)
	}
	covered := f.top
	if page.Full {
		covered = last
	}
	if len(f.marks) >= maxMarks {
		kept := f.marks[:0]
		for i := 0; i < len(f.marks); i += 2 {
			kept = append(kept, f.marks[i])
		}
		f.marks = kept
	}
	f.reads++
	f.marks = append(f.marks, mark{covered, page.Fence, f.reads})
	f.rise(oldest, covered)
	return true
}

// Reads numbers the pages observed, for Fence.
func (f *Floor[P]) Reads() uint64 { return f.reads }

// Fence gives the marks of the first reads, by Reads, their fence: an xid that was assigned
// after the last of them was answered.
func (f *Floor[P]) Fence(reads, xid uint64) {
	for i := range f.marks {
		if m := &f.marks[i]; m.fence == 0 && m.read <= reads {
			m.fence = xid
		}
	}
}

// Ours says that a running transaction inserts nothing, so that nobody has to wait for it.
func (f *Floor[P]) Ours(xid uint64) {
	if !slices.Contains(f.ours, xid) {
		f.ours = append(f.ours, xid)
	}
}

// WantsFence reports whether the floor could rise if a mark had its fence.
func (f *Floor[P]) WantsFence() bool {
	return slices.ContainsFunc(f.marks, func(m mark) bool { return m.fence == 0 && m.id > f.at })
}

// pull lowers the floor. Where it stood was right and is right again as soon as a read from
// further down has covered it, so it stays as a mark.
func (f *Floor[P]) pull(to int64) {
	if to >= f.at {
		return
	}
	f.marks = append(f.marks, mark{f.at, settledFence, f.reads})
	f.at = to
}

// ended pulls every floor back to where the transactions that were set aside, and that the
// snapshot shows as ended, may have left rows.
func (f *Floor[P]) ended(snap *source.Snapshot) bool {
	found := false
	for xid, floor := range f.aside {
		if !snap.Shows(xid) {
			continue
		}
		found = true
		delete(f.aside, xid)
		delete(f.born, xid)
		f.pull(floor)
		for part, at := range f.held {
			f.held[part] = min(at, floor)
		}
	}
	return found
}

// holder returns the oldest transaction that holds the floor in this snapshot, or the lowest xid
// that the snapshot says nothing of, and sets those aside that have been open for too long.
func (f *Floor[P]) holder(now time.Time, snap *source.Snapshot, sent int64) uint64 {
	f.ours = slices.DeleteFunc(f.ours, snap.Shows) // not by Xmin, which a long transaction holds
	oldest := snap.Xmax
	for slices.Contains(f.ours, oldest) {
		oldest++
	}
	for _, xid := range snap.Running {
		if _, ok := f.aside[xid]; ok || slices.Contains(f.ours, xid) {
			continue
		}
		since, seen := f.born[xid]
		if !seen {
			f.born[xid] = now
		} else if now.Sub(since) > f.Age {
			f.aside[xid] = sent
			continue
		}
		oldest = min(oldest, xid)
	}
	if len(f.born) > len(snap.Running) {
		for xid := range f.born {
			if snap.Shows(xid) {
				delete(f.born, xid)
			}
		}
	}
	return oldest
}

// rise lifts the floor to the highest mark whose transactions have all ended, but not past
// what this read covered.
func (f *Floor[P]) rise(oldest uint64, covered int64) {
	best := int64(Start)
	for _, m := range f.marks {
		if m.fence != 0 && m.fence <= oldest {
			best = max(best, m.id)
		}
	}
	if best == Start {
		return
	}
	f.at = max(f.at, min(best, covered))
	f.marks = slices.DeleteFunc(f.marks, func(m mark) bool { return m.id <= f.at })
}

// Hold notes that a row of the part was dropped from memory or passed over: the part is
// behind, and must be read from just before id, or from the floor of now, whichever is lower.
func (f *Floor[P]) Hold(part P, id int64) {
	at, ok := f.held[part]
	if !ok {
		at = f.at
	}
	if id > Start {
		id--
	}
	f.held[part] = min(at, id)
}

// Release makes a part live again: the floor is pulled back to what the part remembered,
// which it returns. It may only be called while no read is on its way, for that read was
// asked for without the part.
func (f *Floor[P]) Release(part P) int64 {
	at, ok := f.held[part]
	if !ok {
		return f.at
	}
	delete(f.held, part)
	f.pull(at)
	return at
}

// Forget drops what is remembered for a part that is not ours any more.
func (f *Floor[P]) Forget(part P) { delete(f.held, part) }

// Held returns what a part behind remembers.
func (f *Floor[P]) Held(part P) (at int64, ok bool) {
	at, ok = f.held[part]
	return at, ok
}

// Reset pulls the floor back to the start of the table, for the rows whose id was taken
// before their transaction had an xid. As with Release, no read may be on its way.
func (f *Floor[P]) Reset() { f.pull(Start) }
