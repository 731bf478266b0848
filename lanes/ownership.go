package lanes

import (
	"fmt"
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// ownership of a lane by this process.
type ownership uint8

const (
	notOurs   ownership = iota
	owned               // we read and submit
	draining            // what is in flight is finished, nothing is begun
	suspended           // ours again, if the trust in the leases is renewed in time
	awaiting            // ours again, once what was in flight when we lost it has its outcomes
)

// Gain makes lanes ours. Their rows are read from the start of the table. A lane that was
// lost with events in flight waits for the outcomes: another replica may have delivered those
// events meanwhile, and what came after them, so none of them may be put back.
func (e *Engine) Gain(now time.Time, gained ...source.Lane) {
	for _, id := range gained {
		l := &e.lanes[id]
		if l.ownership == owned || l.ownership == suspended && e.suspended {
			continue
		}
		// It may have been drained since the last Ready.
		e.drained = slices.DeleteFunc(e.drained, func(other source.Lane) bool { return other == id })
		if l.lost {
			e.turn(l, awaiting)
			continue
		}
		if e.suspended {
			e.turn(l, suspended)
			continue
		}
		e.turn(l, owned)
		if l.behind != nil {
			panic(fmt.Sprintf("lanes: lane %d was behind while it was not ours", id))
		}
		l.behind = e.wait(now, lanePart(id))
		l.behind.gained = true
		e.floor.Hold(l.behind.part, Start)
	}
	e.nextRead = now
}

// Lose takes lanes away at once: what is queued is dropped, what is on the wire is left to
// its outcome, and what was acknowledged is still deleted.
func (e *Engine) Lose(lost ...source.Lane) { e.giveUp(notOurs, lost) }

// Drain begins to give lanes up: nothing of them is submitted any more, and once what is in
// flight has its outcome and what was acknowledged is deleted, Ready.Drained names them; also
// lanes that are not ours any more, since Stop has drained them already.
func (e *Engine) Drain(lanes ...source.Lane) {
	e.giveUp(draining, lanes)
	for _, id := range lanes {
		if l := &e.lanes[id]; l.ownership == notOurs && !slices.Contains(e.drained, id) {
			e.turn(l, draining)
			e.checkDrained(id)
		}
	}
}

// turn changes who owns a lane.
func (e *Engine) turn(l *lane, to ownership) {
	e.owns[l.ownership]--
	e.owns[to]++
	l.ownership = to
}

func (e *Engine) giveUp(to ownership, given []source.Lane) {
	for _, id := range given {
		l := &e.lanes[id]
		if l.ownership == notOurs || l.ownership == to {
			continue
		}
		e.turn(l, to)
		l.lost = l.lost || to == notOurs && l.flying > 0
		for _, it := range l.queue[l.head:] {
			e.drop(it)
		}
		l.queue, l.head, l.bytes = l.queue[:0], 0, 0
		for part, w := range e.parts {
			// A key whose events are on the wire must still wait for them if the lane stays ours.
			if part.Kind != WholeTopic && part.Lane == id && (to == notOurs || w.stalled == nil) {
				e.unwait(w)
			}
		}
		e.checkDrained(id)
	}
	if e.owns[owned] == 0 {
		// Every lane that comes is read from the start of the table.
		for part, w := range e.parts {
			if part.Kind == WholeTopic {
				e.unwait(w)
			}
		}
	}
}

func (e *Engine) checkDrained(id source.Lane) {
	l := &e.lanes[id]
	if l.ownership == draining && l.flying == 0 && l.undeleted == 0 {
		e.turn(l, notOurs)
		e.drained = append(e.drained, id)
	}
}

// Trust says until when the lanes are ours for certain. When that moment passes, everything
// that is not on the wire is dropped; a later Trust takes the lanes up again from the start
// of the table.
func (e *Engine) Trust(now, until time.Time) {
	e.trusted = until
	if !e.suspended || !now.Before(until) {
		return
	}
	e.suspended = false
	for id := range e.lanes {
		if e.lanes[id].ownership == suspended {
			e.Gain(now, source.Lane(id))
		}
	}
}

// checkTrust suspends every lane when the trust in the leases has ended.
func (e *Engine) checkTrust(now time.Time) {
	if e.trusted.IsZero() || e.suspended || now.Before(e.trusted) {
		return
	}
	e.suspended = true
	n := 0
	for id := range e.lanes {
		if e.lanes[id].ownership == owned {
			e.giveUp(suspended, []source.Lane{source.Lane(id)})
			n++
		}
	}
	e.stats.LeasesEnded++
	e.note(Note{Kind: LeaseEnded, Count: n})
}
