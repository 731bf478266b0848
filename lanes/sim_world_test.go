package lanes

import (
	"fmt"
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// flaw is why a row cannot be written.
type flaw struct {
	kind  flawKind
	until time.Time // zero: for ever
}

type flawKind uint8

const (
	sound    flawKind = iota
	tooLarge          // the client finds out before it produces
	refused           // the broker refuses the batch with it
)

func (f flaw) holds(now time.Time) bool {
	return f.kind != sound && (f.until.IsZero() || now.Before(f.until))
}

func (f flaw) forever() bool { return f.kind != sound && f.until.IsZero() }

// schedule puts the world's own doings on the agenda.
func (s *simulation) schedule() {
	s.write()
	s.repeat(s.plan.moves, s.move)
	s.repeat(s.plan.kills, s.kill)
	s.repeat(s.plan.stops, s.stop)
	s.repeat(s.plan.outages, func() { s.broker.downUntil = s.now.Add(s.spell()) })
	s.repeat(s.plan.deaths, func() { s.broker.dead[partition{s.topic(), byte(s.r.IntN(3))}] = s.now.Add(3 * s.spell()) })
	s.repeat(s.plan.vanishing, func() { s.broker.missing[s.topic()] = s.now.Add(s.spell()) })
	s.repeat(s.plan.retries, func() {
		s.record('R', int64(s.engine.RetryAll(s.now)))
		s.input = true
	})
	s.after(s.plan.calmAt, s.calmDown)
}

// spell is how long a trouble lasts.
func (s *simulation) spell() time.Duration { return time.Duration(s.r.Int64N(int64(time.Second))) }

func (s *simulation) topic() string { return fmt.Sprintf("t%d", s.r.IntN(s.plan.topics)) }

// repeat does something at random moments, mean apart, until the world is calm.
func (s *simulation) repeat(mean time.Duration, do func()) {
	if mean == 0 {
		return
	}
	s.after(time.Duration(s.r.ExpFloat64()*float64(mean)), func() {
		if s.calm {
			return
		}
		do()
		s.repeat(mean, do)
	})
}

// write lets the writers take one step, and the next one later.
func (s *simulation) write() {
	if s.now.Sub(epoch) >= s.plan.writeUntil {
		return
	}
	defer s.after(time.Duration(s.r.ExpFloat64()*float64(s.plan.writeEvery)), s.write)
	if len(s.open) == 0 || len(s.open) < 6 && chance(s.r, 0.25) {
		s.open = append(s.open, &transaction{long: chance(s.r, s.plan.long)})
		return
	}
	tx := pick(s.r, s.open...)
	switch {
	case chance(s.r, 0.3) && (!tx.long || chance(s.r, 0.05)):
		s.end(tx)
	case chance(s.r, s.plan.early):
		tx.taken = append(tx.taken, s.table.takeID())
	default:
		for range 1 + s.r.IntN(4) {
			s.insert(tx)
		}
	}
}

func (s *simulation) end(tx *transaction) {
	s.open = slices.DeleteFunc(s.open, func(other *transaction) bool { return other == tx })
	commit := !chance(s.r, s.plan.rollback)
	s.table.end(tx, commit)
	if s.log != nil && commit {
		s.log.commit(s, tx)
	}
}

func (s *simulation) insert(tx *transaction) {
	ev := &source.Event{Topic: s.topic(), Created: s.now, Payload: zeros[:s.r.IntN(len(zeros))]}
	ordered := false
	switch {
	case len(tx.taken) > 0 && chance(s.r, 0.5):
		ev.ID, tx.taken = tx.taken[0], tx.taken[1:]
		ev.Key = fmt.Appendf(nil, "early %d", s.r.IntN(s.plan.keys))
	case chance(s.r, s.plan.keyless):
		ev.ID = s.table.takeID()
		ev.Lane = LaneOfRow(ev.ID, s.plan.config.Lanes)
		s.table.takeXid(tx)
	case chance(s.r, s.plan.unordered):
		ev.Key = fmt.Appendf(nil, "racing %d", s.r.IntN(s.plan.keys))
	default:
		ev.Key = fmt.Appendf(nil, "%d", s.r.IntN(s.plan.keys))
		ordered = true
	}
	if ev.Key != nil {
		ev.Lane = LaneOf(ev.Key, s.plan.config.Lanes)
	}
	r, ok := s.table.insert(tx, ev, ordered)
	if !ok {
		return
	}
	switch {
	case chance(s.r, s.plan.tooLarge):
		r.flaw.kind = tooLarge
	case chance(s.r, s.plan.refused):
		r.flaw.kind = refused
	default:
		return
	}
	if chance(s.r, s.plan.forever) && s.hopeless < 6 {
		s.hopeless++
		return
	}
	r.flaw.until = s.now.Add(s.spell())
}

var zeros = make([]byte, 1200)

// move takes a lane away, at once or by draining it, and gives it back later.
func (s *simulation) move() {
	lane := source.Lane(s.r.IntN(s.plan.config.Lanes))
	if s.stopping || s.ledger.lanes[lane].ownership != owned {
		return
	}
	s.input = true
	if chance(s.r, 0.5) {
		s.lose(lane)
	} else {
		s.record('D', int64(lane))
		s.ledger.lanes[lane].ownership = draining
		s.engine.Drain(lane)
		if chance(s.r, 0.2) {
			s.answer(s.generation, s.latency(), func() {
				if s.ledger.lanes[lane].ownership == draining {
					s.lose(lane)
				}
			})
		}
	}
	s.answer(s.generation, time.Duration(s.r.Int64N(int64(200*time.Millisecond))), func() {
		if !s.stopping && s.ledger.lanes[lane].ownership != owned {
			s.gain(lane)
		}
	})
}

func (s *simulation) lose(lane source.Lane) {
	if s.stopping {
		return
	}
	s.record('l', int64(lane))
	s.ledger.lanes[lane].ownership = notOurs
	s.engine.Lose(lane)
}

// renew renews the leases of an engine again and again, sometimes too late.
func (s *simulation) renew() {
	until := s.now.Add(s.plan.lease)
	s.ledger.trusted = until
	s.record('t', int64(until.Sub(epoch)))
	s.engine.Trust(s.now, until)
	wait := s.plan.lease / 3
	if s.faulty(s.plan.renewLate) {
		wait = time.Duration(s.r.Int64N(int64(2 * s.plan.lease)))
	}
	s.answer(s.generation, wait, s.renew)
}

// kill ends the engine as a crash does: what it has on the wire may still be done.
func (s *simulation) kill() {
	s.record('k')
	s.killed = true
	s.begin()
}

// stop ends the engine as SIGTERM does. One that takes longer than its grace is killed.
func (s *simulation) stop() {
	if s.stopping {
		return
	}
	s.record('s')
	s.input = true
	s.stopping = true
	s.ledger.stop()
	s.engine.Stop()
	s.answer(s.generation, 20*time.Second, func() {
		if s.last {
			failf("the engine did not stop in time: %+v", s.engine.Stats(s.now))
		}
		s.kill()
	})
}

// stopped begins the next engine, or ends the world.
func (s *simulation) stopped() {
	s.ledger.stopped(s)
	if s.last {
		s.ended = true
		return
	}
	s.begin()
}

// calmDown ends every trouble but those rows that can never be written.
func (s *simulation) calmDown() {
	s.calm = true
	for len(s.open) > 0 {
		s.end(s.open[0])
	}
	s.broker.downUntil = s.now
	clear(s.broker.missing)
	clear(s.broker.dead)
	s.healSome()
	s.checkEnd()
}

// healSome heals rows, except for those that can never be written if each of their keys can
// wait on its own: else whole lanes would wait.
func (s *simulation) healSome() {
	limit := s.plan.config.MaxParts
	if limit == 0 {
		limit = 1000
	}
	parts := make(map[Part]bool)
	for _, r := range s.table.rows {
		if r.committed && r.flaw.forever() {
			parts[partOf(r.Event)] = true
		}
	}
	for _, r := range s.table.rows {
		if len(parts) > limit || !r.flaw.forever() {
			r.flaw = flaw{}
		}
	}
}

// checkEnd ends the world once everything that can be delivered is, and the engine has had
// the time to find out about the rest.
func (s *simulation) checkEnd() {
	if !s.calm || s.ending {
		return
	}
	stuck := s.stuck()
	for _, r := range s.table.rows {
		if r.committed && !stuck[r] {
			return
		}
	}
	s.ending = true
	s.after(s.plan.patience(), func() {
		s.ledger.visible(s, stuck)
		s.last = true
		s.stop()
	})
}

// stuck returns the rows that can never be delivered: those with a flaw for ever, and the
// rows of their keys after them. Of a key without order every row may be.
func (s *simulation) stuck() map[*row]bool {
	first := make(map[source.TopicKey]*row)
	stuck := make(map[*row]bool)
	for _, r := range s.table.rows {
		if !r.committed || !r.flaw.forever() {
			continue
		}
		stuck[r] = true
		if r.Key != nil && (first[r.TopicKey()] == nil || r.place < first[r.TopicKey()].place) {
			first[r.TopicKey()] = r
		}
	}
	for _, r := range s.table.rows {
		if r.committed && r.Key != nil {
			if f := first[r.TopicKey()]; f != nil && (!r.ordered || r.place >= f.place) {
				stuck[r] = true
			}
		}
	}
	return stuck
}
