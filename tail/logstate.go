package tail

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/outbox-forwarder/forwarder/checkpoint"
	"github.com/outbox-forwarder/forwarder/source"
)

// logState is what a Log knows, as a value without lock.
//
// An entry is named by the position of its transaction and its number in that. What the log
// repeats is known by that name: all that was appended up to last is delivered, but for what is
// listed in undone.
type logState[P cmp.Ordered] struct {
	queue   queue[entry[P]]
	tracker checkpoint.Tracker[P]
	next    int64 // the ID of the last event

	tx     *span[P] // the transaction that is being appended, nil between two
	n      int      // entries of it so far
	last   name[P]  // the furthest entry that was ever appended
	begun  bool     // there was one
	undone map[name[P]]int64

	skip map[int64]bool // rows that are skipped when the log brings them
	// The scan of the table, while not all of it is delivered and deleted, and what was confirmed
	// before.
	scan    *span[P]
	scanEnd bool // it has no more rows
	before  P
	reached bool

	skipped uint64
}

type name[P cmp.Ordered] struct {
	pos P
	n   int // from 1 on
}

func (a name[P]) compare(b name[P]) int {
	return cmp.Or(cmp.Compare(a.pos, b.pos), cmp.Compare(a.n, b.n))
}

// entry is what the queue knows of an event: its name, its row and its transaction, nil while
// that is not there again after a Reset.
type entry[P cmp.Ordered] struct {
	name name[P] // n is 0 for a row of the scan
	row  int64
	none bool // there is no row
	tx   *span[P]
}

// span is a transaction, or the scan, of which some entries are not deleted yet.
type span[P cmp.Ordered] struct {
	left int
	mark *checkpoint.Mark[P] // nil until its end was appended
}

func newLogState[P cmp.Ordered]() *logState[P] {
	return &logState[P]{queue: newQueue[entry[P]](), undone: make(map[name[P]]int64), skip: make(map[int64]bool)}
}

// append takes in entries of the transaction at pos, and reports whether there is something new
// to read.
func (s *logState[P]) append(pos P, end bool, entries []Entry) bool {
	if s.tx == nil {
		s.tx = &span[P]{}
		s.n = 0
	}
	added := false
	for i := range entries {
		s.n++
		e := entry[P]{name: name[P]{pos, s.n}, row: entries[i].Event.ID, none: entries[i].NoRow, tx: s.tx}
		if s.brings(&e) {
			s.add(entries[i].Event, e)
			added = true
		} else {
			s.skipped++
		}
	}
	if end {
		s.tx.mark = s.tracker.Add(pos)
		if s.tx.left == 0 {
			s.tracker.Finish(s.tx.mark)
		}
		s.tx = nil
	}
	return added
}

// brings reports whether an entry is to be delivered. One that the forwarder has already joins
// its transaction again.
func (s *logState[P]) brings(e *entry[P]) bool {
	if s.begun && e.name.compare(s.last) <= 0 {
		id, undone := s.undone[e.name]
		if !undone {
			return false
		}
		delete(s.undone, e.name)
		if r := s.queue.rows.Get(id); r != nil {
			r.note.tx = e.tx
			e.tx.left++
			return false
		}
	} else {
		// What the log did not repeat was delivered by another process, or is still to be.
		clear(s.undone)
		s.last, s.begun = e.name, true
	}
	if !e.none && s.skip[e.row] {
		delete(s.skip, e.row)
		return false
	}
	return true
}

// add queues an event under an ID of its own.
func (s *logState[P]) add(from *source.Event, e entry[P]) {
	ev := *from
	if ev.Ref == "" {
		ev.Ref = strconv.FormatInt(ev.ID, 10)
	}
	s.next++
	ev.ID = s.next
	e.tx.left++
	s.queue.add(&ev, e)
}

// idle says that there is nothing up to pos but what was appended.
func (s *logState[P]) idle(pos P) {
	if s.tx == nil {
		s.tracker.Pass(pos)
	}
}

// addScan takes in rows of the table, but for those that the forwarder has, and reports whether
// there is something new to read.
func (s *logState[P]) addScan(rows []*source.Event, end bool) bool {
	if s.scan == nil {
		s.before, s.reached = s.tracker.Prefix()
		s.scan = &span[P]{}
		s.scanEnd = false
	}
	held := make(map[int64]*row[entry[P]])
	for _, r := range s.queue.rows.All() {
		if !r.note.none {
			held[r.note.row] = r
		}
	}
	added := false
	for _, ev := range rows {
		s.skip[ev.ID] = true
		switch r := held[ev.ID]; {
		case r == nil:
			s.add(ev, entry[P]{row: ev.ID, tx: s.scan})
			added = true
		case r.note.tx == nil:
			r.note.tx = s.scan
			s.scan.left++
		}
	}
	s.scanEnd = end
	s.finishScan()
	return added
}

// finishScan ends the scan when nothing of it is left.
func (s *logState[P]) finishScan() {
	if s.scanEnd && s.scan.left == 0 {
		s.scan = nil
	}
}

// confirmed is where the log may start again.
func (s *logState[P]) confirmed() (P, bool) {
	if s.scan != nil {
		return s.before, s.reached
	}
	return s.tracker.Prefix()
}

// holding is the first event that is not deleted, and nil where it is acknowledged.
func (s *logState[P]) holding() (*source.Event, P) {
	var first *row[entry[P]]
	for _, r := range s.queue.rows.All() {
		if r.note.tx != nil && (first == nil || cmp.Or(r.note.name.compare(first.note.name), cmp.Compare(r.id, first.id)) < 0) {
			first = r
		}
	}
	if first == nil {
		var none P
		return nil, none
	}
	return first.ev, first.note.name.pos
}

// scanning reports whether the log may still bring what a scan brought.
func (s *logState[P]) scanning() bool { return s.scan != nil || len(s.skip) > 0 }

// idles reports whether everything was delivered and deleted.
func (s *logState[P]) idles() bool {
	return s.queue.waiting.n+s.queue.out.n+s.queue.ghosts.n == 0
}

// reset forgets what the forwarder does not have.
func (s *logState[P]) reset(other bool) {
	for id, r := range s.queue.rows.All() {
		if r.note.name.n > 0 {
			s.undone[r.note.name] = id
		}
		if r.out {
			r.note.tx = nil
		} else {
			s.queue.remove(r)
		}
	}
	pos, reached := s.confirmed()
	s.tracker = checkpoint.Tracker[P]{}
	s.tx, s.scan = nil, nil
	if other {
		clear(s.undone)
		clear(s.skip)
		s.begun = false
		for _, r := range s.queue.rows.All() {
			r.note.name = name[P]{}
		}
	} else if reached {
		s.tracker.Pass(pos)
	}
}

// take answers a read.
func (s *logState[P]) take(read *source.Read) *source.Page {
	if read.Dropped {
		s.queue.takeBack(s.queue.listed(read.Known))
		s.dropLoose()
	}
	return s.queue.take(read)
}

// dropLoose drops what the forwarder has dropped since the last reset, before the log brought it
// again: another process may have it.
func (s *logState[P]) dropLoose() {
	for r := s.queue.waiting.first; r != nil; {
		next := r.next
		if r.note.tx == nil {
			s.queue.remove(r)
		}
		r = next
	}
}

// deleting says that events are delivered, and returns their rows in ascending order.
func (s *logState[P]) deleting(ids []int64) []int64 {
	var rows []int64
	for _, id := range ids {
		r := s.queue.rows.Get(id)
		if r == nil {
			continue
		}
		if r.out && r.ev != nil {
			s.queue.forget(r)
		}
		if !r.note.none {
			rows = append(rows, r.note.row)
		}
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// deleted says that their rows are deleted.
func (s *logState[P]) deleted(ids []int64) {
	for _, id := range ids {
		r := s.queue.rows.Get(id)
		if r == nil {
			continue
		}
		e := r.note
		s.queue.remove(r)
		if e.tx == nil {
			delete(s.undone, e.name)
			continue
		}
		e.tx.left--
		switch {
		case e.tx.left > 0:
		case e.tx == s.scan:
			s.finishScan()
		case e.tx.mark != nil:
			s.tracker.Finish(e.tx.mark)
		}
	}
}
