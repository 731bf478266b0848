package tail

import (
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// recall answers a read from memory, or returns nil and has changed nothing: then the table must
// be read, which begins with ask.
//
// The floor says whether the forwarder has thrown away the page of the last table read: it then
// reads from further down, and must get what lies there.
func (s *state) recall(now time.Time, read *source.Read) *source.Page {
	if s.complete && !read.Gained && read.Floor >= s.floor && !(read.Rescan && s.stale(now, read)) &&
		!s.evicted.asked(read) && (!read.Dropped || s.takeBack(read)) {
		s.forgetGone()
		page := s.queue.take(read)
		s.boundOut()
		s.stats.Memory++
		return page
	}
	return nil
}

// ask says that the table is about to be read. Answer or failed must be called.
func (s *state) ask(now time.Time, read *source.Read) {
	s.forgetGone()
	s.setComplete(now, false)
	if s.evicted.asked(read) {
		s.missed.take(&s.others)
	}
	s.evicted.set(read)
	s.reading = s.attached
	s.readAt, s.soon = now, false
	s.stats.TableReads++
}

// forgetGone says that a read was sent after what was deleted before.
func (s *state) forgetGone() { s.gone, s.goneBefore = s.goneBefore[:0], s.gone }

// resyncLate is how many times Resync the table goes unread at most.
const resyncLate = 10

// stale reports whether the table is to be read at a rescan. While deletes are not done, each
// one looks whether their rows are visible. Else it is put off while there is a backlog, more than a
// page or half of what memory holds: the page would not be all, and everything behind it would come
// from the table, too.
func (s *state) stale(now time.Time, read *source.Read) bool {
	age := now.Sub(s.readAt)
	return s.soon || len(s.unseen) > 0 || age >= resyncLate*s.cfg.Resync || age >= s.cfg.Resync && s.queue.waiting.n < min(read.Limit, s.cfg.MaxEvents/2)
}

// takeBack lets rows wait again that the forwarder had and has dropped. It returns false when one
// of them is not in memory here.
func (s *state) takeBack(read *source.Read) bool {
	listed := s.queue.listed(read.Known)
	for r := s.queue.ghosts.first; r != nil; r = r.next {
		if !listed[r.id] {
			return false
		}
	}
	s.queue.takeBack(listed)
	return true
}

// boundOut drops events that the forwarder has and that take too much memory, for it may have
// dropped them itself. Their ids stay.
func (s *state) boundOut() {
	for out := &s.queue.out; out.bytes > s.cfg.MaxBytes; {
		s.queue.forget(out.first)
	}
}

// failed says that the table read has no answer.
func (s *state) failed() { s.reading = false }

// answer takes in the page of a table read, and returns what the forwarder gets of it, and the
// rows to delete again: their first delete could not see them yet.
func (s *state) answer(now time.Time, read *source.Read, page *source.Page) (again []int64) {
	snap := page.Snapshot
	if s.cfg.Head {
		page.Snapshot = source.Snapshot{}
	}
	for id, xid := range s.unseen {
		if snap.Shows(xid) {
			again = append(again, id)
		}
	}
	slices.Sort(again)
	if len(again) > 0 {
		page.Events = slices.DeleteFunc(page.Events, func(ev *source.Event) bool {
			_, deleted := s.unseen[ev.ID]
			return deleted
		})
	}
	if !s.reading {
		return again
	}
	s.reading = false
	s.seen = snap
	s.missed.prune(&snap)
	s.others.prune(&snap)
	// A read may have been put together before the forwarder heard of a delete.
	listed := s.queue.listed(read.Known)
	for _, id := range slices.Concat(s.goneBefore, s.gone) {
		delete(listed, id)
	}
	s.sweep(listed)
	if page.Full || snap.Xmin < s.fence || !s.missed.empty() {
		return again
	}
	s.floor = read.Floor
	s.dropEvicted()
	for _, ev := range page.Events {
		s.queue.addOut(ev.ID, ev, 0)
	}
	for _, id := range read.Known {
		if listed[id] && s.queue.rows.Get(id) == nil {
			s.queue.addOut(id, nil, 0)
		}
	}
	s.boundOut()
	s.setComplete(now, true)
	return again
}

// sweep compares the queue with a table read whose snapshot is seen, and with the ids that it
// listed. What it shows and what is not listed was in the page, or is in a later one, or is deleted.
func (s *state) sweep(listed map[int64]bool) {
	var back []*row[uint64]
	for id, r := range s.queue.rows.All() {
		shown := s.shows(r.note)
		if listed[id] && !r.out {
			// The log has brought it only now. It may have been deleted before that, of which the
			// forwarder is yet to hear: only its id stays, so that it never comes from memory.
			s.queue.handOut(r)
			s.queue.forget(r)
		}
		switch {
		case listed[id]:
			if shown && !r.end {
				r.note, r.seq = 0, 0
			}
		case shown:
			s.queue.remove(r)
		case !r.out:
			// It waits on.
		case r.ev == nil:
			s.letGo(r, &s.missed)
		default:
			back = append(back, r)
		}
	}
	s.queue.giveBack(back)
}

// deleting says that rows are being deleted: the forwarder will not ask for them again.
func (s *state) deleting(ids []int64) {
	for _, id := range ids {
		r := s.queue.rows.Get(id)
		if r == nil || !r.out {
			continue // the log has brought it only now
		}
		r.end = true // with the xid, for the statement may run before the next table read
		if r.ev != nil {
			s.queue.forget(r)
		}
	}
}

// deleted says that rows were deleted, n of which the statement found.
func (s *state) deleted(ids []int64, n int) {
	s.gone = append(s.gone, ids...)
	for _, id := range ids {
		r := s.queue.rows.Get(id)
		if r == nil {
			continue
		}
		if n < len(ids) && r.note != 0 {
			s.unseen[id] = r.note
		}
		s.queue.remove(r)
	}
}

// deletedAgain says that rows were deleted at last, n of which were there.
func (s *state) deletedAgain(ids []int64, n int) {
	for _, id := range ids {
		delete(s.unseen, id)
	}
	s.stats.Unseen += uint64(n)
}
