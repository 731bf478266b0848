package lanes

import (
	"fmt"
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Outcomes takes in what became of submitted events, in any order and number.
func (e *Engine) Outcomes(now time.Time, outcomes []source.Outcome) {
	for i := range outcomes {
		o := &outcomes[i]
		it := e.known.Get(o.ID)
		if it == nil || it.state != flying {
			panic(fmt.Sprintf("lanes: row %d has an outcome (%v) and is not in flight", o.ID, o.Class))
		}
		l := &e.lanes[it.lane]
		r := it.run
		e.flying--
		l.flying--
		r.left--
		if len(e.careful) > 0 {
			if q := e.careful[it.ev.Topic]; q != nil {
				q.flying--
			}
		}
		it.class = o.Class
		if o.Class == source.Acked {
			e.ack(now, l, it)
		} else {
			it.state, it.err = settled, o.Err
			r.failed = true
		}
		if r.stalled {
			e.unstall(it)
		} else if it.state == acknowledged {
			e.keepPace(now, r.sent)
		}
		if r.left == 0 {
			e.settle(now, it.lane, l, r)
		}
	}
}

func (e *Engine) ack(now time.Time, l *lane, it *item) {
	if !it.ev.Created.IsZero() {
		e.stats.Latency.add(now.Sub(it.ev.Created))
	}
	if e.trial > 0 {
		e.heal(it.ev)
	}
	if e.brokerFails > 0 {
		e.brokerFails = 0
		e.note(Note{Kind: Resumed})
	}
	e.clear(it)
	it.state = acknowledged
	e.bytes -= int(it.size)
	l.undeleted++
	e.undeleted++
	e.stats.Acked++
	sh := e.shard(it.lane)
	if len(sh.acked) == 0 {
		sh.since = now
	}
	sh.acked = append(sh.acked, it.id)
}

// settle ends a run: every event of it has its outcome.
func (e *Engine) settle(now time.Time, id source.Lane, l *lane, r *run) {
	if r.behind != nil {
		e.unblock(now, l, r.behind)
	}
	if r.failed {
		e.settleFailed(now, l, r)
	}
	for _, it := range r.items {
		it.run = nil
		if it.state == acknowledged {
			it.ev = nil // only its id is needed until it is deleted
		}
	}
	if l.run == r {
		l.run = nil
	}
	if l.flying > 0 {
		return
	}
	l.lost = false
	switch l.ownership {
	case draining:
		e.checkDrained(id)
	case awaiting:
		e.turn(l, notOurs)
		e.Gain(now, id)
	}
}

// settleFailed decides what waits, and puts back to the head of the queue what does not. Events
// ahead of the one that a key or lane waits for do not wait with it: they would meet the same
// event in every retry, and what became of them here would be forgotten each time.
func (e *Engine) settleFailed(now time.Time, l *lane, r *run) {
	e.countViolations(r)
	for _, it := range r.items {
		if it.state == settled && l.ownership == owned {
			e.judge(now, r, it)
		}
	}
	var back []*item
	var held []*waiting // the parts that an event of this run has put behind, so far
	for _, it := range r.items {
		if it.state != settled {
			continue
		}
		if l.ownership != owned {
			e.drop(it)
			continue
		}
		if w := e.holding(it.ev); w != nil {
			if it.class == source.Record && !slices.Contains(held, w) {
				held = append(held, w)
			}
			if w.part.Kind == WholeTopic || slices.Contains(held, w) {
				e.floor.Hold(w.part, it.id)
				e.drop(it)
				continue
			}
		}
		if e.careful[it.ev.Topic] != nil {
			e.suspect(it) // else a suspect behind it would overtake it
		}
		it.state = queued
		it.err = nil
		e.queued++
		l.bytes += int(it.size)
		back = append(back, it)
	}
	if len(back) > 0 {
		l.queue = append(back, l.queue[l.head:]...)
		l.head = 0
		e.busy.add(back[0].lane)
	}
}

// judge takes the consequence of one failed event for everything but the event itself.
func (e *Engine) judge(now time.Time, r *run, it *item) {
	switch it.class {
	case source.Broker:
		it.again = true
		if !now.Before(e.pausedUntil) {
			e.brokerFails++
			e.pausedUntil = now.Add(e.cfg.Broker.after(e.brokerFails, e.cfg.Rand))
			e.note(Note{Kind: Paused, Err: it.err, Attempts: e.brokerFails, RetryAt: e.pausedUntil})
		}
	case source.Topic:
		e.block(now, topicPart(it.ev.Topic), it)
	case source.Record:
		e.block(now, partOf(it.ev), it)
	case source.Suspect:
		if r.lone {
			it.class = source.Record
			e.block(now, partOf(it.ev), it)
		} else {
			e.suspect(it)
		}
	case source.HeldBack:
		// Its part waits with the event before it, or it follows that one.
	default:
		panic(fmt.Sprintf("lanes: row %d has the outcome %v", it.id, it.class))
	}
}

// suspect opens an inquest on the event's topic, or joins the one that is open: until every
// suspect was sent alone, nothing else of the topic is.
func (e *Engine) suspect(it *item) {
	if it.suspect {
		return
	}
	q := e.careful[it.ev.Topic]
	if q == nil {
		q = &inquest{}
		for _, other := range e.known.All() {
			if other.state == flying && other.ev.Topic == it.ev.Topic {
				q.flying++
			}
		}
		e.careful[it.ev.Topic] = q
	}
	it.suspect = true
	q.suspects++
}

// countViolations finds acknowledged events that an earlier event of their key, in the same
// run, did not get ahead of.
func (e *Engine) countViolations(r *run) {
	var failed map[source.TopicKey]*item
	for _, it := range r.items {
		if it.ev == nil || it.ev.Key == nil {
			continue
		}
		key := it.ev.TopicKey()
		if it.state == settled {
			if failed == nil {
				failed = make(map[source.TopicKey]*item)
			}
			if failed[key] == nil {
				failed[key] = it
			}
		} else if first := failed[key]; first != nil {
			e.stats.Violations++
			e.note(Note{Kind: Violation, Part: keyPart(it.ev), Err: first.err, Event: first.id, Later: it.id, Name: first.ev.Name(), LaterName: it.ev.Name()})
		}
	}
}

// block puts a part behind because the event could not be delivered, and drops what is
// queued of it. The event itself is dropped by settleFailed.
func (e *Engine) block(now time.Time, part Part, it *item) {
	w := e.parts[part]
	if w == nil && part.Kind >= OneKey && e.kinds[OneKey]+e.kinds[OneRow] >= e.cfg.MaxParts {
		part = lanePart(it.lane)
		w = e.parts[part]
	}
	switch {
	case w == nil:
		w = e.wait(now, part)
		if part.Kind == WholeLane {
			e.lanes[part.Lane].behind = w
		}
	case w.trial:
		w.trial = false
		e.trial--
	case w.blocked():
		if part.Kind != WholeTopic {
			e.dropQueued(&e.lanes[part.Lane], w) // what was ahead of the event before
		}
		return
	}
	// Here and not with the event, which another part behind may remember for both of them.
	e.floor.Hold(part, it.id)
	backoff := e.cfg.Record
	if it.class == source.Topic {
		backoff = e.cfg.Topic
	}
	e.cool(w)
	w.room = false
	w.class, w.err, w.event, w.name, w.size = it.class, it.err, it.id, it.ev.Name(), int(it.size)
	w.attempts++
	w.retryAt = now.Add(backoff.after(w.attempts, e.cfg.Rand))
	e.note(Note{Kind: Blocked, Part: part, Class: w.class, Err: w.err, Event: w.event, Name: w.name, Size: w.size, Attempts: w.attempts, RetryAt: w.retryAt})
	if part.Kind == WholeTopic {
		for i := range e.lanes {
			e.dropQueued(&e.lanes[i], w)
		}
	} else {
		e.dropQueued(&e.lanes[part.Lane], w)
	}
	if part.Kind < OneKey {
		e.absorb(part)
	}
}

// absorb forgets the keys and rows on trial inside a lane or topic that fell behind: they wait
// with it. Else they would use up MaxParts while nothing can come of their trials.
func (e *Engine) absorb(wide Part) {
	for part, w := range e.parts {
		if w.trial && part.Kind >= OneKey && part.overlaps(wide) {
			e.unwait(w)
		}
	}
}

// dropQueued drops what a lane has queued of a part that fell behind.
func (e *Engine) dropQueued(l *lane, w *waiting) {
	kept := l.queue[:l.head]
	for _, it := range l.queue[l.head:] {
		if !w.part.covers(it.ev) {
			kept = append(kept, it)
			continue
		}
		l.bytes -= int(it.size)
		e.floor.Hold(w.part, it.id)
		e.drop(it)
	}
	clear(l.queue[len(kept):])
	l.queue = kept
}

// holding returns the part behind that an event in memory belongs to, the topic first, since
// nothing of it can be delivered. A lane or key that only waits for room does not hold back what
// it has in memory.
func (e *Engine) holding(ev *source.Event) *waiting {
	if w := e.parts[topicPart(ev.Topic)]; w != nil && !w.trial {
		return w
	}
	if w := e.lanes[ev.Lane].behind; w != nil && !w.trial && w.blocked() {
		return w
	}
	if w := e.parts[partOf(ev)]; w != nil && !w.trial && w.blocked() {
		return w
	}
	return nil
}

// heal ends the waits that the acknowledged event was a trial of.
func (e *Engine) heal(ev *source.Event) {
	for _, part := range [...]Part{lanePart(ev.Lane), topicPart(ev.Topic), partOf(ev)} {
		if w := e.parts[part]; w != nil && w.trial {
			e.note(Note{Kind: Healed, Part: part, Class: w.class, Attempts: w.attempts})
			e.unwait(w)
		}
	}
}

// endTrials ends the waits that have nothing left to wait for: a read that began after they
// became live reached the end of the table, nothing of them is in memory, and nothing of them
// was left out because of a lane or topic that is behind.
func (e *Engine) endTrials() {
	pending := make(map[Part]bool)
	for _, it := range e.known.All() {
		if it.state != acknowledged {
			for _, part := range [...]Part{lanePart(it.lane), topicPart(it.ev.Topic), partOf(it.ev)} {
				pending[part] = true
			}
		}
	}
	var left []Part
	for part, w := range e.parts {
		if part.Kind < OneKey && !w.trial {
			left = append(left, part)
		}
	}
	for part, w := range e.parts {
		if w.trial && !pending[part] && !slices.ContainsFunc(left, part.overlaps) {
			e.note(Note{Kind: Healed, Part: part, Class: w.class, Attempts: w.attempts})
			e.unwait(w)
		}
	}
}

// wait adds a part that is behind, for room until block says otherwise.
func (e *Engine) wait(now time.Time, part Part) *waiting {
	w := &waiting{part: part, room: true, since: now}
	e.parts[part] = w
	e.kinds[part.Kind]++
	return w
}

// unwait forgets a part: it is live, or not ours.
func (e *Engine) unwait(w *waiting) {
	delete(e.parts, w.part)
	e.kinds[w.part.Kind]--
	e.dropped = e.dropped || w.part.Kind == OneRow // it may have been among Known
	e.freed = true
	if w.trial {
		e.trial--
	}
	if w.part.Kind == WholeLane {
		e.lanes[w.part.Lane].behind = nil
	}
	e.cool(w)
	e.floor.Forget(w.part)
}

// cool ends a key's wait for room in the stead of its lane.
func (e *Engine) cool(w *waiting) {
	if l := &e.lanes[w.part.Lane]; l.hot == w {
		l.hot = nil
	}
}
