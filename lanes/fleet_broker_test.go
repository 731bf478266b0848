package lanes

import (
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// fleetBroker is the log that all replicas write to.
type fleetBroker struct {
	w       *fleet
	written map[source.TopicKey]int
	once    map[int64]bool
	repeats int
}

func newFleetBroker(w *fleet) *fleetBroker {
	return &fleetBroker{w: w, written: make(map[source.TopicKey]int), once: make(map[int64]bool)}
}

// write appends to the log. The first occurrences of a key are in the order of its commits,
// without a gap, whoever writes them: also what was on the wire when a lease ended begins
// at the first row of its key that was not written before.
func (b *fleetBroker) write(events []*source.Event) {
	for _, ev := range events {
		r := b.w.table.byID[ev.ID]
		b.w.record('w', ev.ID)
		switch {
		case !r.committed:
			failf("row %d was written and is not committed", ev.ID)
		case b.once[ev.ID]:
			b.repeats++
			if b.repeats > b.w.allowance {
				failf("row %d is written again: %d repeats, and the faults account for %d", ev.ID, b.repeats, b.w.allowance)
			}
			continue
		}
		b.once[ev.ID] = true
		if !r.ordered {
			continue
		}
		key := r.TopicKey()
		if r.place != b.written[key] {
			failf("row %d is number %d of key %q, and was written after %d rows of it", r.ID, r.place, r.Key, b.written[key])
		}
		b.written[key]++
	}
}

// finish checks that nothing was lost.
func (b *fleetBroker) finish() {
	for _, r := range b.w.table.written {
		if !b.once[r.ID] || !r.deleted {
			failf("row %d is written %v, deleted %v", r.ID, b.once[r.ID], r.deleted)
		}
	}
}

// fleetSink is a process's client of the broker.
type fleetSink struct {
	p       *process
	submits int
	open    []*fleetRequest // without an outcome
}

// fleetRequest is what one Submit brings to one partition.
type fleetRequest struct {
	events  []*source.Event
	report  func([]source.Outcome)
	sent    bool
	settled bool // its outcomes were reported
}

func newFleetSink(p *process) *fleetSink { return &fleetSink{p: p} }

// Submit implements Sink. By the store's word, at this moment, the lanes must be ours.
func (s *fleetSink) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	s.submits++
	w := s.p.w
	var order []byte
	requests := make(map[byte]*fleetRequest)
	for _, run := range runs {
		s.check(run)
		for _, ev := range run {
			n := byte(Hash(ev.Key) >> 16 % 3)
			if requests[n] == nil {
				order = append(order, n)
				requests[n] = &fleetRequest{report: report}
			}
			requests[n].events = append(requests[n].events, ev)
		}
	}
	for _, n := range order {
		q := requests[n]
		s.open = append(s.open, q)
		s.p.after(w.some(w.plan.latency/10), func() {
			if q.settled {
				return // recalled
			}
			q.sent = true
			d := w.some(w.plan.ack)
			if w.faulty(w.plan.ackLate) {
				d += w.some(w.plan.ttl)
			}
			w.after(d/2, func() { s.arrive(q, d/2) })
		})
	}
}

func (s *fleetSink) check(run []*source.Event) {
	w, me := s.p.w, s.p.keeper.me
	lane := run[0].Lane
	w.record('S', int64(s.p.n), int64(lane), run[0].ID, int64(len(run)))
	if s.p.lanes != len(w.store.lanes) {
		return // those of the new count wait for it to leave: see fleet.checkHolders
	}
	l := w.store.lanes[lane]
	if l.Owner == "" && l.Epoch == 0 && s.p.changes < w.changes {
		return // made anew, and nobody's before we have noticed
	}
	if l.Owner != me || w.store.members[me] == nil {
		failf("%s submits lane %d, which %q owns (epoch %d, %v a member)", me, lane, l.Owner, l.Epoch, w.store.members[me] != nil)
	}
	for _, ev := range run {
		if at, gone := w.deletedAt[ev.ID]; gone && at.Before(s.p.gained[lane]) {
			failf("%s submits row %d, which was deleted before it took lane %d", me, ev.ID, lane)
		}
	}
}

// arrive is the broker's decision on a request. Its answer takes d.
func (s *fleetSink) arrive(q *fleetRequest, d time.Duration) {
	w := s.p.w
	outcomes := outcomesOf(q.events, source.Acked)
	if w.faulty(w.plan.brokerFails) {
		w.broker.write(q.events[:w.r.IntN(len(q.events)+1)])
		w.allowance += len(q.events)
		outcomes = outcomesOf(q.events, source.Broker)
	} else {
		w.broker.write(q.events)
	}
	s.p.after(d, func() {
		if !q.settled {
			q.settled = true
			s.open = slices.DeleteFunc(s.open, func(other *fleetRequest) bool { return other == q })
			q.report(outcomes)
		}
	})
}

func outcomesOf(events []*source.Event, class source.Class) []source.Outcome {
	outcomes := make([]source.Outcome, len(events))
	for i, ev := range events {
		outcomes[i] = source.Outcome{ID: ev.ID, Class: class}
		if class != source.Acked {
			outcomes[i].Err = errSimulated
		}
	}
	return outcomes
}

// Recall implements Sink: what was sent may still be written, and nobody hears of it.
func (s *fleetSink) Recall() {
	w := s.p.w
	for _, q := range s.open {
		if q.settled {
			continue
		}
		q.settled = true
		if q.sent {
			w.allowance += len(q.events)
		}
		s.p.after(w.some(w.plan.latency/20), func() { q.report(outcomesOf(q.events, source.Broker)) })
	}
	s.open = nil
}
