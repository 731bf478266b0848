package tail

import (
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// state is what a Mirror knows, as a value without clock or lock. Of the rows in its queue, note
// is the xid of the transaction, 0 where the last table read showed it.
//
// Invariants:
//
//	a waiting row is not shown by seen, and the forwarder does not have it
//	complete: every committed row that is not deleted, whose transaction is shown by seen or came
//	through the log, and that belongs to no evicted part, is in the queue
//	a row that is not in the queue and whose transaction is not shown by seen, though it came
//	through the log, is of an xid in missed, or of an evicted part and of an xid in others
type state struct {
	cfg   Config
	queue queue[uint64]

	attached bool
	fence    uint64
	complete bool
	since    time.Time // of complete
	floor    int64     // of the table read that made it complete
	seen     source.Snapshot

	// What the last table read left out, or was let go since. Rows of it are not kept.
	evicted filter
	// The transactions of rows that are not here and that no snapshot has shown yet: of parts that
	// the last table read asked for, and of those that it left out.
	missed, others xids

	reading bool // a table read is on its way, and may complete the mirror
	readAt  time.Time
	soon    bool // the table is to be read at the next rescan

	// Rows that are deleted and still were among Known, or may have been: since the last read
	// was asked, and between that and the one before.
	gone, goneBefore []int64
	// Rows whose delete found too few, with their xid: the delete may not have seen them.
	unseen map[int64]uint64

	stats Stats
}

func newState(cfg Config, now time.Time) *state {
	return &state{
		cfg: cfg, queue: newQueue[uint64](), since: now, unseen: make(map[int64]uint64),
	}
}

func (s *state) setComplete(now time.Time, complete bool) {
	if s.complete != complete {
		s.complete, s.since = complete, now
	}
}

func (s *state) attach(now time.Time, fence uint64) {
	s.detach(now)
	s.attached, s.fence = true, fence
	if fence == 0 {
		return
	}
	// An xid of a log before that is not below the fence belongs to another history of the
	// database, in which it may never be shown.
	for id, xid := range s.unseen {
		if xid >= fence {
			delete(s.unseen, id)
		}
	}
	for _, r := range s.queue.rows.All() {
		if r.note >= fence {
			r.note = 0
		}
	}
}

// detach forgets what the log told and the forwarder does not have. What it has stays known by
// its ids, so that a log that repeats a row does not bring it twice, and keeps its xid: a server
// that crashes may have sent the commit and show it only when it has recovered, after a delete.
func (s *state) detach(now time.Time) {
	s.attached, s.reading = false, false
	s.setComplete(now, false)
	s.seen = source.Snapshot{}
	s.missed.reset()
	s.others.reset()
	for _, r := range s.queue.rows.All() {
		if !r.out {
			s.queue.remove(r)
		} else if r.ev != nil {
			s.queue.forget(r)
		}
	}
}

// shows reports whether the last table read covered the transaction. A later one shows it, too.
func (s *state) shows(xid uint64) bool { return xid == 0 || s.seen.Shows(xid) }

// append takes in rows of a transaction and reports whether there is something new to read.
// denied are the lanes of the rows that were left out, nil where nobody knows.
func (s *state) append(now time.Time, xid uint64, events []*source.Event, skipped bool, denied []source.Lane) bool {
	if !s.attached {
		return false
	}
	if s.shows(xid) {
		s.stats.Covered += uint64(len(events))
		return false
	}
	if skipped {
		if len(denied) == 0 || slices.ContainsFunc(denied, s.evicted.reads) {
			// They were left out for a read before the last one to the table.
			s.missed.add(xid)
			s.setComplete(now, false)
		} else {
			s.others.add(xid)
		}
	}
	added := false
	for _, ev := range events {
		switch {
		case s.queue.rows.Get(ev.ID) != nil:
			// The log repeats itself, or a writer has chosen an id again.
			s.soon = true
		case s.evicted.covers(ev):
			s.others.add(xid)
		default:
			s.queue.add(ev, xid)
			added = true
		}
	}
	if !s.complete {
		s.trim()
	}
	return added && s.complete
}

// roomy reports whether the waiting rows are within bounds.
func (s *state) roomy() bool {
	w := &s.queue.waiting
	return w.n <= s.cfg.MaxEvents && w.bytes <= s.cfg.MaxBytes
}

// trim lets the oldest waiting rows go until the rest is within bounds.
func (s *state) trim() {
	if s.roomy() {
		return
	}
	s.stats.Evictions++
	for !s.roomy() {
		s.letGo(s.queue.waiting.first, &s.missed)
	}
}

// letGo takes a row out that the forwarder does not have. What the last table read did not show
// must be shown by a later one.
func (s *state) letGo(r *row[uint64], to *xids) {
	if r.note != 0 {
		to.add(r.note)
	}
	s.queue.remove(r)
}

// shed makes room while the mirror is complete: it lets go what the last read left out, the
// largest parts first, and if that does not suffice everything that is too much.
func (s *state) shed(now time.Time) {
	if !s.complete || s.roomy() {
		return
	}
	s.stats.Evictions++
	for !s.roomy() && s.evictLargest() {
	}
	if !s.roomy() {
		s.setComplete(now, false)
		s.trim()
	}
}

// evictLargest evicts the part with the most bytes among those that the last read left out.
func (s *state) evictLargest() bool {
	out := &s.queue.filter
	lanes := make(map[source.Lane]int)
	topics := make(map[string]int)
	keys := make(map[source.TopicKey]int)
	var evict func()
	most := 0
	for r := s.queue.waiting.first; r != nil; r = r.next {
		ev := r.ev
		if !out.covers(ev) {
			continue
		}
		switch {
		case !out.reads(ev.Lane):
			if lanes[ev.Lane] += r.size; lanes[ev.Lane] > most {
				most, evict = lanes[ev.Lane], func() { s.evicted.addLane(ev.Lane) }
			}
		case out.topics[ev.Topic]:
			if topics[ev.Topic] += r.size; topics[ev.Topic] > most {
				most, evict = topics[ev.Topic], func() { s.evicted.addTopic(ev.Topic) }
			}
		default:
			key := ev.TopicKey()
			if keys[key] += r.size; keys[key] > most {
				most, evict = keys[key], func() { s.evicted.addKey(key) }
			}
		}
	}
	if evict == nil {
		return false
	}
	evict()
	s.dropEvicted()
	return true
}

// dropEvicted lets the waiting rows of evicted parts go.
func (s *state) dropEvicted() {
	for r := s.queue.waiting.first; r != nil; {
		next := r.next
		if s.evicted.covers(r.ev) {
			s.letGo(r, &s.others)
		}
		r = next
	}
}
