package lanes

import (
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Ready is what the engine wants done. Each Read and each element of Delete is answered by
// one input; each submitted event by one outcome.
type Ready struct {
	// Read is the next page to ask for, or nil. At most one is on its way. Its slices stay
	// valid until the page is handed in.
	Read *source.Read
	// Submit holds at most one run for each lane: its events in order.
	Submit [][]*source.Event
	// Delete holds sets of ids in ascending order, each for one statement.
	Delete [][]int64
	// Drained names the lanes given to Drain that are finished.
	Drained []source.Lane
	// Notes are changes of state worth a log line.
	Notes []Note
	// Next is when Ready should be called again if no input comes before; zero for never.
	Next time.Time
}

// Note is a change of state.
type Note struct {
	Kind  NoteKind
	Part  Part
	Class source.Class
	Err   error
	Event int64 // the row that could not be delivered, or has no outcome yet
	Later int64 // Violation: the row of the same key that was acknowledged before it
	// Name and LaterName are what users call the two.
	Name, LaterName string
	Size            int
	Attempts        int
	Count           int
	RetryAt         time.Time
}

// NoteKind says what a Note tells.
type NoteKind uint8

// The kinds of note.
const (
	Blocked    NoteKind = iota // Part waits: Event could not be delivered
	Healed                     // Part is delivered again
	Paused                     // nothing is submitted until RetryAt: the broker side is in trouble
	Resumed                    // the broker acknowledges again
	LeaseEnded                 // the trust in the leases ended: Count lanes are suspended
	Violation                  // a later event of a key was acknowledged before an earlier one
	Stalled                    // Event and maybe more of its topic have no outcome while others have: their keys wait
	Flowing                    // nothing of the topic is Stalled any more
)

func (e *Engine) note(n Note) { e.notes = append(e.notes, n) }

// Ready returns what is to be done now.
func (e *Engine) Ready(now time.Time) Ready {
	e.checkTrust(now)
	e.checkStalls(now)
	r := Ready{
		Submit:  e.runs(now),
		Delete:  e.deletes(now),
		Read:    e.read(now),
		Drained: e.drained,
		Notes:   e.notes,
	}
	e.drained, e.notes = nil, nil
	r.Next = e.next(now)
	return r
}

// next is the earliest moment at which time alone changes what Ready returns.
func (e *Engine) next(now time.Time) time.Time {
	var next time.Time
	at := func(t time.Time) {
		if t.Before(now) {
			t = now
		}
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if !e.stopping {
		if !e.reading && e.room() {
			at(e.readDue())
		}
		if e.queued > 0 && now.Before(e.pausedUntil) {
			at(e.pausedUntil)
		}
	}
	if !e.trusted.IsZero() && !e.suspended {
		at(e.trusted)
	}
	for id := range e.busy.all {
		// What was due already found no room, and has none until something else changes.
		if due := e.stallDue(now, &e.lanes[id]); due.After(now) || e.freed && !due.IsZero() {
			at(due)
		}
	}
	for i := range e.shards {
		if sh := &e.shards[i]; len(sh.acked) > 0 && !sh.out {
			at(e.deleteDue(sh))
		}
	}
	return next
}

// runs forms a run for each lane that has something queued and nothing in flight.
func (e *Engine) runs(now time.Time) [][]*source.Event {
	if e.queued == 0 || e.stopping || now.Before(e.pausedUntil) || e.undeleted >= max(e.cfg.MaxEvents/2, 1) {
		return nil
	}
	var runs [][]*source.Event
	for id := range e.busy.all {
		l := &e.lanes[id]
		if l.waiting() == 0 && l.run == nil {
			e.busy.remove(id)
		}
		if l.waiting() == 0 || l.run != nil || l.ownership != owned {
			continue
		}
		r := &run{sent: now}
		if len(e.careful) > 0 {
			e.formCareful(l, r)
		} else {
			e.form(l, r)
		}
		if len(r.items) == 0 {
			continue
		}
		events := make([]*source.Event, len(r.items))
		for i, it := range r.items {
			events[i] = it.ev
			it.state, it.run = flying, r
			if it.again {
				e.stats.Repeated++
			}
			l.bytes -= int(it.size)
		}
		n := len(events)
		l.run, r.left = r, n
		e.sent = now
		l.flying += n
		e.queued -= n
		e.flying += n
		e.stats.Submitted += uint64(n)
		runs = append(runs, events)
		if e.hasRoom(now, l) {
			e.nextRead = now
		}
	}
	return runs
}

// form moves the head of the queue into the run.
func (e *Engine) form(l *lane, r *run) {
	r.items = make([]*item, 0, min(l.waiting(), e.cfg.RunEvents))
	size := 0
	for l.head < len(l.queue) && len(r.items) < e.cfg.RunEvents {
		it := l.queue[l.head]
		size += int(it.size)
		if size > e.cfg.RunBytes && len(r.items) > 0 {
			break
		}
		r.items = append(r.items, it)
		l.queue[l.head] = nil
		l.head++
	}
	switch {
	case l.head == len(l.queue):
		l.queue, l.head = l.queue[:0], 0
	case l.head > len(l.queue)/2:
		n := copy(l.queue, l.queue[l.head:])
		clear(l.queue[n:])
		l.queue, l.head = l.queue[:n], 0
	}
}

// formCareful is form while some topic has an inquest. A suspect goes alone, once nothing
// else of its topic is in flight; other events of the topic wait, and everything else goes on.
func (e *Engine) formCareful(l *lane, r *run) {
	size := 0
	kept := l.queue[:0]
	for i, it := range l.queue[l.head:] {
		q := e.careful[it.ev.Topic]
		switch {
		case r.lone || len(r.items) >= e.cfg.RunEvents || size > e.cfg.RunBytes:
			kept = append(kept, it)
		case q == nil:
			r.items = append(r.items, it)
			size += int(it.size)
		case it.suspect && q.flying == 0 && len(r.items) == 0 && i == 0:
			r.items = append(r.items, it)
			r.lone = true
			q.flying++
		default:
			kept = append(kept, it)
		}
	}
	clear(l.queue[len(kept):])
	l.queue, l.head = kept, 0
}

// room reports whether memory has room for another page.
func (e *Engine) room() bool {
	return e.known.Len() <= e.cfg.MaxEvents*3/4 && e.bytes <= e.cfg.MaxBytes*3/4
}

// fenceEvery is how long the floor waits for the fence that a delete brings before a read takes
// one. Under load, with page after full page, it does not wait: one xid for a page is nothing,
// and the sooner the floor rises, the fewer known rows the next read passes over.
const fenceEvery = time.Second

// While much is on its way, or comes with each page, what is new waits for company: a page, a batch
// and a delete of a thousand events cost little more than those of a hundred. From one page to the next
// that makes 25,000 events a second.
const (
	much    = 512
	company = 20 * time.Millisecond
)

// readDue is when the next page may be asked for.
func (e *Engine) readDue() time.Time {
	if !e.full && max(e.flying+e.queued, e.brought) >= much {
		if due := e.readAt.Add(company); due.After(e.nextRead) {
			return due
		}
	}
	return e.nextRead
}

// read builds the next read, with everything that is due to come back.
func (e *Engine) read(now time.Time) *source.Read {
	if e.reading || e.stopping || now.Before(e.readDue()) || !e.room() {
		return nil
	}
	if e.scanDue(now) {
		e.floor.Reset()
		e.rescanned = true
	}
	for _, w := range e.parts {
		if !w.trial && e.due(now, w) {
			e.release(w)
		}
	}
	r := &source.Read{Floor: e.floor.At(), Rescan: e.rescanned, Gained: e.gained, Dropped: e.dropped}
	if e.owns[owned] < len(e.lanes) || e.kinds[WholeLane] > 0 {
		r.Lanes = e.readLanes[:0]
		for id := range e.lanes {
			if l := &e.lanes[id]; l.ownership == owned && (l.behind == nil || l.behind.trial) {
				r.Lanes = append(r.Lanes, source.Lane(id))
			}
		}
		e.readLanes = r.Lanes
		switch len(r.Lanes) {
		case 0:
			e.rescanned = false
			e.nextRead = now.Add(e.cfg.MaxPoll)
			return nil
		case len(e.lanes):
			r.Lanes = nil
		}
	}
	known := e.readKnown[:0]
	known = append(known, e.ids...)
	for part, w := range e.parts {
		if w.trial {
			continue
		}
		switch part.Kind {
		case WholeTopic:
			r.Topics = append(r.Topics, part.Topic)
		case OneKey:
			r.Keys = append(r.Keys, source.TopicKey{Topic: part.Topic, Key: part.Key})
		case OneRow:
			known = append(known, part.ID)
		}
	}
	e.readKnown, r.Known = known, known
	if e.full || !now.Before(e.fencedAt.Add(fenceEvery)) && e.floor.WantsFence() {
		r.Fence = true
		e.fencedAt = now
	}
	r.Bytes = max(min(2*e.cfg.PageBytes, e.cfg.MaxBytes-e.bytes), 1)
	r.Limit = min(e.cfg.PageEvents, e.cfg.MaxEvents-e.known.Len(), max(min(e.cfg.PageBytes, r.Bytes)/e.avgSize, 1))
	e.reading = true
	e.gained, e.dropped = false, false
	e.readAt = now
	return r
}

// scanDue reports whether the floor is to be pulled back to Start. Each replica walks past the rows of
// all, so a share of the lanes gives a share of the time.
func (e *Engine) scanDue(now time.Time) bool {
	since := now.Sub(e.scannedAt)
	if since < e.cfg.Rescan {
		return false
	}
	ours := max(e.owns[owned], 1)
	return since >= 20*e.scanCost*time.Duration((len(e.lanes)+ours/2)/ours)
}

// due reports whether a part behind may be live again.
func (e *Engine) due(now time.Time, w *waiting) bool {
	if w.stalled != nil {
		return false
	}
	if w.blocked() {
		return !now.Before(w.retryAt)
	}
	l := &e.lanes[w.part.Lane]
	return l.waiting() <= e.cfg.MaxEvents/8 && l.bytes <= e.cfg.MaxBytes/8
}

// hasRoom reports whether something of the lane that waited for room has it now.
func (e *Engine) hasRoom(now time.Time, l *lane) bool {
	return l.behind != nil && !l.behind.blocked() && e.due(now, l.behind) || l.hot != nil && e.due(now, l.hot)
}

// release makes a part live. Rows of it may belong to other parts that stay behind, and were
// passed over for both reasons: those parts must then be read from as far back.
func (e *Engine) release(w *waiting) {
	at := e.floor.Release(w.part)
	e.gained = e.gained || w.gained
	w.gained = false
	e.dropped = e.dropped || w.part.Kind == OneRow // it was among Known
	hold := func(other *waiting) {
		if other != nil && other != w && !other.trial && other.part.overlaps(w.part) {
			e.floor.Hold(other.part, at+1)
		}
	}
	if w.part.Kind >= OneKey {
		hold(e.lanes[w.part.Lane].behind) // a key or row shares rows with nothing else
		hold(e.parts[topicPart(w.part.Topic)])
	} else {
		for _, other := range e.parts {
			hold(other)
		}
	}
	if w.failed() {
		w.trial, w.room = true, false
		e.trial++
		e.cool(w)
		return
	}
	e.unwait(w)
}
