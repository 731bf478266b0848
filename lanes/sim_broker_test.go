package lanes

import (
	"errors"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// broker is a naive Kafka with its client: what one Submit brings to a partition is one
// request, which is written up to some record and fails from there on.
type broker struct {
	sim       *simulation
	downUntil time.Time
	missing   map[string]time.Time    // topics that do not exist until then
	dead      map[partition]time.Time // without leader until then: no answers
	written   map[source.TopicKey]int
	last      map[source.TopicKey]int // the place of the last row written, from 1
	once      map[int64]bool
	spoiled   map[source.TopicKey]bool // keys whose order the broker itself broke
	frayed    map[source.TopicKey]bool // keys whose repeats need not be suffixes
}

func newBroker(s *simulation) broker {
	return broker{
		sim:     s,
		missing: make(map[string]time.Time),
		dead:    make(map[partition]time.Time),
		written: make(map[source.TopicKey]int),
		last:    make(map[source.TopicKey]int),
		once:    make(map[int64]bool),
		spoiled: make(map[source.TopicKey]bool),
		frayed:  make(map[source.TopicKey]bool),
	}
}

// fray notes that a delete was done for an engine that was killed meanwhile: its successor may
// have read a part of the rows before.
func (b *broker) fray(generation int, ids []int64) {
	if generation == b.sim.generation {
		return
	}
	for _, id := range ids {
		b.frayed[b.sim.table.byID[id].TopicKey()] = true
	}
}

type partition struct {
	topic string
	n     byte
}

var errSimulated = errors.New("simulated")

// submit takes runs as a sink does: what the client refuses is out at once, with the rest of
// its key held back.
func (b *broker) submit(runs [][]*source.Event) {
	s := b.sim
	var partitions []partition
	requests := make(map[partition][]*source.Event)
	var refusedNow []source.Outcome
	for _, run := range runs {
		bad := make(map[source.TopicKey]bool)
		for _, ev := range run {
			r := s.table.byID[ev.ID]
			switch {
			case ev.Key != nil && bad[ev.TopicKey()]:
				refusedNow = append(refusedNow, source.Outcome{ID: ev.ID, Class: source.HeldBack, Err: errSimulated})
			case r.flaw.kind == tooLarge && r.flaw.holds(s.now):
				refusedNow = append(refusedNow, source.Outcome{ID: ev.ID, Class: source.Record, Err: errSimulated})
				if ev.Key != nil {
					bad[ev.TopicKey()] = true
				}
			default:
				p := partition{ev.Topic, byte(ev.ID % 3)}
				if ev.Key != nil {
					p.n = byte(Hash(ev.Key) >> 16 % 3)
				}
				if requests[p] == nil {
					partitions = append(partitions, p)
				}
				requests[p] = append(requests[p], ev)
			}
		}
	}
	b.report(0, refusedNow)
	for _, p := range partitions {
		generation := s.generation
		s.after(s.latency(), func() { b.arrive(generation, p, requests[p]) })
	}
}

// arrive brings a request to its partition, or lets it wait in the client while that is dead.
func (b *broker) arrive(generation int, p partition, request []*source.Event) {
	s := b.sim
	if s.plan.cuts > 0 && s.faulty(s.plan.cuts) && len(request) > 1 && !s.now.Before(b.dead[p]) && generation == s.generation {
		request = b.cut(p, request)
	}
	until := b.dead[p]
	switch {
	case !s.now.Before(until):
		b.produce(generation, request)
	case generation == s.generation: // else the client is gone too
		s.after(until.Sub(s.now), func() { b.arrive(generation, p, request) })
	}
}

// cut answers the first part of a request and lets its partition die, and returns the rest. In
// some worlds the client gives the first part up, and not what follows it.
func (b *broker) cut(p partition, request []*source.Event) []*source.Event {
	s := b.sim
	n := 1 + s.r.IntN(len(request)-1)
	first, rest := request[:n], request[n:]
	var outcomes []source.Outcome
	if s.plan.misordered > 0 {
		for _, ev := range first {
			outcomes = append(outcomes, source.Outcome{ID: ev.ID, Class: source.Broker, Err: errSimulated})
			b.spoiled[ev.TopicKey()] = true
		}
	} else {
		if s.now.Before(b.missing[p.topic]) || s.now.Before(b.downUntil) {
			return request
		}
		for _, ev := range first {
			if s.table.byID[ev.ID].flaw.holds(s.now) {
				return request
			}
		}
		b.write(s.generation, first)
		outcomes = b.acknowledge(outcomes, first)
	}
	b.report(s.latency(), outcomes)
	b.dead[p] = s.now.Add(s.spell())
	return rest
}

// produce decides on a request, in the order of its records.
func (b *broker) produce(generation int, request []*source.Event) {
	s := b.sim
	topic := request[0].Topic
	var outcomes []source.Outcome
	fail := func(events []*source.Event, class source.Class) {
		failed := make(map[source.TopicKey]bool)
		heldBack := class == source.Broker && chance(s.r, 0.3)
		for _, ev := range events {
			o := source.Outcome{ID: ev.ID, Class: class, Err: errSimulated}
			if heldBack && ev.Key != nil && failed[ev.TopicKey()] {
				o.Class = source.HeldBack
			}
			failed[ev.TopicKey()] = true
			outcomes = append(outcomes, o)
		}
	}
	bad := len(request)
	for i, ev := range request {
		if r := s.table.byID[ev.ID]; r.flaw.kind == refused && r.flaw.holds(s.now) {
			bad = i
			break
		}
	}
	batch := request // up to the record where the batches before the troubled one end
	if bad < len(request) {
		batch = nil
		if s.plan.splits {
			batch = request[:s.r.IntN(bad+1)]
		}
	}
	rest := request[len(batch):]
	switch {
	case s.now.Before(b.missing[topic]):
		fail(request, source.Topic)
	case s.now.Before(b.downUntil) || s.faulty(s.plan.brokerFails):
		fail(request, source.Broker)
	case s.faulty(s.plan.ackLost):
		n := s.r.IntN(len(batch) + 1)
		b.write(generation, batch[:n])
		fail(request, source.Broker)
	case s.faulty(s.plan.misordered) && len(batch) == len(request):
		i := s.r.IntN(len(request))
		outcomes = append(outcomes, source.Outcome{ID: request[i].ID, Class: source.Record, Err: errSimulated})
		if request[i].Key != nil {
			b.spoiled[request[i].TopicKey()] = true
		}
		b.write(generation, request[:i])
		b.write(generation, request[i+1:])
		outcomes = b.acknowledge(outcomes, request[:i])
		outcomes = b.acknowledge(outcomes, request[i+1:])
	case len(rest) == 1 && s.plan.knowsAlone:
		// The client knows that the record was alone.
		b.write(generation, batch)
		outcomes = b.acknowledge(outcomes, batch)
		fail(rest, source.Record)
	default:
		b.write(generation, batch)
		outcomes = b.acknowledge(outcomes, batch)
		fail(rest, source.Suspect)
	}
	if generation == s.generation {
		b.report(s.latency(), outcomes)
	}
}

func (b *broker) acknowledge(outcomes []source.Outcome, events []*source.Event) []source.Outcome {
	for _, ev := range events {
		outcomes = append(outcomes, source.Outcome{ID: ev.ID, Class: source.Acked})
	}
	return outcomes
}

// report hands outcomes to the engine in any number of calls, and in some worlds in any order.
func (b *broker) report(d time.Duration, outcomes []source.Outcome) {
	s := b.sim
	if s.plan.shuffles {
		s.r.Shuffle(len(outcomes), func(i, j int) { outcomes[i], outcomes[j] = outcomes[j], outcomes[i] })
	}
	for len(outcomes) > 0 {
		n := 1 + s.r.IntN(len(outcomes))
		part := outcomes[:n]
		outcomes = outcomes[n:]
		s.answer(s.generation, d, func() {
			for _, o := range part {
				s.record('o', o.ID, int64(o.Class))
			}
			s.ledger.outcomes(s, part)
			s.engine.Outcomes(s.now, part)
			s.ledger.settled(s)
		})
		d += s.latency()
	}
}

// write appends to the log. The first occurrences of a key must be in the order of its
// commits, without a gap, and a repeat goes on to where the key was before, unless outcomes
// come in any order: then what a crash leaves undeleted may be any of them.
func (b *broker) write(generation int, events []*source.Event) {
	for _, ev := range events {
		r := b.sim.table.byID[ev.ID]
		b.sim.record('w', ev.ID)
		if !r.committed {
			failf("row %d was written and is not committed", ev.ID)
		}
		key := r.TopicKey()
		if r.ordered && generation == b.sim.generation {
			if last := b.last[key]; r.place > last && !b.spoiled[key] && !b.frayed[key] && !b.sim.plan.shuffles {
				failf("row %d is number %d of key %q in %s, and was written after number %d", r.ID, r.place, r.Key, r.Topic, last-1)
			}
			b.last[key] = r.place + 1
		}
		if b.once[ev.ID] {
			continue
		}
		b.once[ev.ID] = true
		if !r.ordered {
			continue
		}
		if !b.spoiled[key] && r.place != b.written[key] {
			failf("row %d is number %d of key %q in %s, and was written after %d rows of it", r.ID, r.place, r.Key, r.Topic, b.written[key])
		}
		b.written[key]++
	}
}
