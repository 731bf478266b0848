package lanes

import (
	"errors"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// A partition without leader must not hold up the lanes that have events in it: only their keys
// wait. The engine knows no partitions, but it sees that a run waits for some of its events while
// the broker acknowledges others. Such a run is split, and the lane goes on without them.

// ErrStalled is the error of events that the broker does not acknowledge while it acknowledges
// others.
var ErrStalled = errors.New("the broker does not acknowledge it, while it acknowledges others: its partition may have no leader")

// againFaster is how many times sooner a run stalls when events of the topic that it waits for
// have stalled already: each further key of the partition costs its lane that much less.
const againFaster = 10

// paceFactor is how many times longer than the average acknowledgement a run must take to stall:
// where the broker is slow for everyone, nothing is gained by giving it more at once.
const paceFactor = 4

// keepPace takes in that an event of a run that was sent then is acknowledged.
func (e *Engine) keepPace(now, sent time.Time) {
	e.answered = now
	if sent.After(e.reached) {
		e.reached = sent
	}
	// Bounded, so that what an outage held up does not hide the next trouble for long.
	e.pace += (min(now.Sub(sent), e.cfg.StallAfter) - e.pace) / 8
}

// stallDue is when the lane's run stalls if nothing happens before; zero for never. All of the
// broker may be gone while nothing is acknowledged that was sent with the run or later, and while
// what was sent last has no answer and nothing else had one just now.
func (e *Engine) stallDue(now time.Time, l *lane) time.Time {
	r := l.run
	if r == nil || l.ownership != owned || e.reached.Before(r.sent) {
		return time.Time{}
	}
	wait := e.cfg.StallAfter
	if e.stalls[r.first().ev.Topic] > 0 {
		wait /= againFaster
	}
	due := r.sent.Add(max(wait, paceFactor*e.pace))
	if fresh := e.answered.Add(e.cfg.StallAfter / 4); e.sent.After(e.reached) && (due.After(fresh) || now.After(fresh)) {
		return time.Time{}
	}
	return due
}

// checkStalls splits the runs that have stalled, and those that are due because others have.
func (e *Engine) checkStalls(now time.Time) {
	e.freed = false
	for again := e.flying > e.stalled; again; {
		again = false
		for id := range e.busy.all {
			l := &e.lanes[id]
			if due := e.stallDue(now, l); !due.IsZero() && !now.Before(due) && e.split(now, id, l) {
				again = true
			}
		}
	}
}

// split parts a run by key. What has its outcomes is settled; each key that has not becomes a run
// of its own, behind which the key waits, and so does each row without a key, for which nobody
// waits. Past the bounds on keys that wait and on memory the lane waits for them instead, and the
// answer is no.
func (e *Engine) split(now time.Time, id source.Lane, l *lane) bool {
	whole := l.run
	stalled, ok := e.partStalled(whole)
	if !ok {
		return false
	}
	kept := whole.items[:0]
	for _, it := range whole.items {
		if it.run == whole {
			kept = append(kept, it)
		}
	}
	clear(whole.items[len(kept):])
	whole.items, whole.left = kept, 0
	for _, r := range stalled {
		e.stall(now, l, r)
	}
	e.settle(now, id, l, whole)
	return true
}

// partStalled moves the events of a run that have no outcome, and with them the others of their
// keys, to runs of their own. It moves nothing and says no when there is no room for so many.
func (e *Engine) partStalled(whole *run) (stalled []*run, ok bool) {
	keys := make(map[source.TopicKey]*run)
	events, bytes, parts := 0, 0, 0
	for _, it := range whole.items {
		if it.state != flying {
			continue
		}
		events++
		bytes += int(it.size)
		if it.ev.Key != nil && keys[it.ev.TopicKey()] == nil {
			keys[it.ev.TopicKey()] = &run{}
			if e.parts[keyPart(it.ev)] == nil {
				parts++
			}
		}
	}
	if e.kinds[OneKey]+e.kinds[OneRow]+parts > e.cfg.MaxParts ||
		e.stalled+events > e.cfg.MaxEvents/4 || e.stalledBytes+bytes > e.cfg.MaxBytes/4 {
		return nil, false
	}
	for _, it := range whole.items {
		var r *run
		switch {
		case it.ev.Key != nil:
			r = keys[it.ev.TopicKey()]
		case it.state == flying:
			r = &run{}
		}
		if r == nil {
			continue
		}
		if len(r.items) == 0 {
			stalled = append(stalled, r)
		}
		r.items = append(r.items, it)
		it.run = r
		r.sent, r.lone, r.stalled = whole.sent, whole.lone, true
		switch it.state {
		case flying:
			r.left++
		case settled:
			r.failed = true
		default:
			it.ev = nameOnly(it.ev)
		}
	}
	return stalled, true
}

// stall counts a run that was split off and puts its key behind.
func (e *Engine) stall(now time.Time, l *lane, r *run) {
	for _, it := range r.items {
		if it.state == flying {
			e.stalledBytes += int(it.size)
		}
	}
	first := r.first()
	e.stalled += r.left
	topic := first.ev.Topic
	if e.stalls[topic] == 0 {
		e.note(Note{Kind: Stalled, Part: topicPart(topic), Event: first.id, Name: first.ev.Name(), Err: ErrStalled})
	}
	e.stalls[topic] += r.left
	if first.ev.Key == nil {
		return
	}
	part := keyPart(first.ev)
	w := e.parts[part]
	switch {
	case w == nil:
		w = e.wait(now, part)
	case w.trial:
		e.trial--
		w.trial, w.room = false, true
	}
	e.cool(w)
	w.stalled, r.behind = r, w
	e.floor.Hold(part, e.floor.At()+1) // from the floor of now
	e.dropQueued(l, w)
}

// unstall takes in that an event of a run that was split off has its outcome.
func (e *Engine) unstall(it *item) {
	e.stalled--
	e.stalledBytes -= int(it.size)
	topic := it.ev.Topic
	if e.stalls[topic]--; e.stalls[topic] == 0 {
		delete(e.stalls, topic)
		e.note(Note{Kind: Flowing, Part: topicPart(topic)})
	}
	if it.state == acknowledged {
		it.ev = nameOnly(it.ev)
	}
}

// unblock ends a key's wait for a run that was split off.
func (e *Engine) unblock(now time.Time, l *lane, w *waiting) {
	w.stalled = nil
	if l.ownership != owned && e.parts[w.part] == w {
		e.unwait(w) // if the lane stays ours it is read from the start
	}
	e.nextRead = now
}

// nameOnly is what must be remembered of an event that is acknowledged, while others of its key
// are not: it may take long, and memory is bounded without it.
func nameOnly(ev *source.Event) *source.Event {
	return &source.Event{ID: ev.ID, Ref: ev.Ref, Lane: ev.Lane, Topic: ev.Topic, Key: ev.Key}
}
