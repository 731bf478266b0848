package lanes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// fleetPlan is what a seed's world is like.
type fleetPlan struct {
	config   Config
	lanes    int
	ttl      time.Duration
	replicas int // at the start
	most     int
	alone    float64       // share of the replicas that are exclusive
	latency  time.Duration // about one way to the database, and other small delays
	ack      time.Duration // about the time of a produce request

	writeEvery time.Duration
	writeUntil time.Duration // after the epoch
	keys       int
	slow       float64 // share of the writers' transactions that take long to commit

	grace   time.Duration
	planned bool // nothing happens but planned moves
	// Mean intervals; 0 for never.
	joins, stops, retires, rolls, kills, pauses, outages, changes time.Duration
	// Shares of the calls of the store, requests, reads and deletes.
	callLost, answerLost, callLate, answerLate, ackLate, brokerFails, readFails, deleteFails, blocked float64
}

func newFleetPlan(r *rand.Rand) fleetPlan {
	p := fleetPlan{
		lanes:      pick(r, 1, 2, 4, 8, mostLanes),
		ttl:        pick(r, time.Second, 2*time.Second, 4*time.Second),
		replicas:   1 + r.IntN(4),
		most:       5,
		latency:    pick(r, 500*time.Microsecond, 3*time.Millisecond, 20*time.Millisecond),
		ack:        pick(r, 2*time.Millisecond, 30*time.Millisecond, 200*time.Millisecond),
		writeEvery: pick(r, 10*time.Millisecond, 40*time.Millisecond, 150*time.Millisecond),
		keys:       pick(r, 1, 5, 30),
		slow:       pick(r, 0, 0.05),
	}
	p.alone = pick(r, 0, 0, 0, 0, 0, 0, 1, 1, 0.5)
	p.grace = 20 * time.Second
	p.writeUntil = 4*time.Second + time.Duration(r.IntN(4))*p.ttl
	p.config = Config{
		MaxEvents: pick(r, 4, 20, 200), RunEvents: pick(r, 1, 3, 500), PageEvents: pick(r, 2, 20, 1000),
		DeleteEvents: pick(r, 2, 100), MinPoll: 20 * time.Millisecond, MaxPoll: 300 * time.Millisecond,
		StallAfter: 300 * time.Millisecond,
		Broker:     Backoff{20 * time.Millisecond, 300 * time.Millisecond}, Store: Backoff{50 * time.Millisecond, 500 * time.Millisecond},
	}
	every := func(d time.Duration) time.Duration {
		return pick(r, 0, time.Duration(float64(d)*(0.3+r.Float64())))
	}
	p.joins = every(3 * p.ttl)
	p.stops = every(3 * p.ttl)
	p.retires = every(6 * p.ttl)
	p.rolls = every(8 * p.ttl)
	if p.planned = chance(r, 0.3); p.planned {
		return p
	}
	some := func(v float64) float64 { return pick(r, 0, v*r.Float64()) }
	p.kills, p.pauses, p.outages, p.changes = every(4*p.ttl), every(3*p.ttl), every(6*p.ttl), pick(r, 0, 0, 0, every(10*p.ttl))
	p.callLost, p.answerLost, p.callLate, p.answerLate = some(0.1), some(0.1), some(0.1), some(0.2)
	p.grace = pick(r, p.grace, 300*time.Millisecond)
	p.ackLate, p.brokerFails, p.readFails, p.deleteFails, p.blocked = some(0.3), some(0.1), some(0.1), some(0.1), some(0.05)
	return p
}

// deadline is when the world must have come to its end, with that many rows written.
func (p *fleetPlan) deadline(rows int) time.Duration {
	return p.writeUntil + 10*p.ttl + 2*p.grace + time.Minute + time.Duration(rows)*(2*p.ack+20*p.latency+100*time.Millisecond)
}

// schedule puts the world's own doings on the agenda.
func (w *fleet) schedule() {
	w.write()
	w.watch()
	w.repeat(w.plan.joins, func() {
		if len(w.processes) < w.plan.most {
			w.launch()
		}
	})
	w.repeat(w.plan.stops, func() {
		if p := w.someone(); p != nil {
			p.stop(pick(w.r, -1, 0, w.some(w.plan.ttl)))
		}
	})
	w.repeat(w.plan.retires, func() {
		if p := w.someone(); p != nil {
			p.keeper.Retire()
			p.after(0, func() {})
			w.after(w.some(2*w.plan.ttl), func() { p.stop(pick(w.r, -1, time.Duration(0))) })
		}
	})
	w.repeat(w.plan.rolls, func() {
		w.roll(slices.Clone(w.processes))
	})
	w.repeat(w.plan.kills, func() {
		if p := w.someone(); p != nil {
			w.crash(p)
			if chance(w.r, 0.7) {
				w.after(w.some(w.plan.ttl), w.launch)
			}
		}
	})
	w.repeat(w.plan.pauses, func() {
		if p := w.someone(); p != nil {
			w.pauses++
			d := time.Duration(w.r.Int64N(int64(3 * w.plan.ttl)))
			p.pausedUntil = w.now.Add(d)
			w.troubled(p.pausedUntil)
		}
	})
	w.repeat(w.plan.outages, func() {
		w.downUntil = w.now.Add(time.Duration(w.r.Int64N(int64(2 * w.plan.ttl))))
		w.troubled(w.downUntil)
	})
	w.repeat(w.plan.changes, w.change)
	w.after(w.plan.writeUntil, func() {
		w.calm = true
		w.ensure()
		w.checkEnd()
	})
}

// repeat does something at random moments, mean apart, until the world is calm.
func (w *fleet) repeat(mean time.Duration, do func()) {
	if mean == 0 {
		return
	}
	w.after(w.some(mean), func() {
		if w.calm {
			return
		}
		do()
		w.repeat(mean, do)
	})
}

func (w *fleet) someone() *process {
	var able []*process
	for _, p := range w.processes {
		if !p.stopping {
			able = append(able, p)
		}
	}
	if len(able) == 0 {
		return nil
	}
	return pick(w.r, able...)
}

// launch starts a replica.
func (w *fleet) launch() {
	if !w.closing {
		w.start()
	}
}

// ensure starts a replica when none is left that serves.
func (w *fleet) ensure() {
	if !slices.ContainsFunc(w.processes, func(p *process) bool { return !p.stopping && !p.keeper.retire }) {
		w.launch()
	}
}

// roll restarts replicas one after the other.
func (w *fleet) roll(list []*process) {
	if len(list) == 0 || w.calm {
		return
	}
	p := list[0]
	p.stop(0)
	w.after(time.Second+w.some(w.plan.ttl), func() { w.roll(list[1:]) })
}

// crash is kill -9.
func (w *fleet) crash(p *process) {
	w.record('k', int64(p.n))
	w.kills++
	w.troubled(w.now)
	w.abandoned(p)
	p.kill()
	w.gone(p)
}

// abandoned accounts for what a process leaves undone: its successors may repeat it.
func (w *fleet) abandoned(p *process) {
	e := p.forwarder.engine
	w.allowance += e.flying + e.undeleted
}

// buried accounts for what a replica that is declared dead may still have on its way.
func (w *fleet) buried(id string, p *process) {
	w.record('B', int64(p.n))
	if !p.dead && id == p.keeper.me {
		w.abandoned(p)
	}
}

// gone takes a process off the list, and starts its successor.
func (w *fleet) gone(p *process) {
	w.processes = slices.DeleteFunc(w.processes, func(other *process) bool { return other == p })
	switch {
	case w.closing:
		w.ended = len(w.processes) == 0
	case p.restart >= 0:
		w.after(p.restart, w.launch)
	default:
		w.after(w.some(w.plan.ttl), w.ensure)
	}
}

// change gives the store another number of lanes while replicas run: those find out and end, and
// new ones, which start at once, wait for that.
func (w *fleet) change() {
	n := pick(w.r, 1, 2, 4, 8, mostLanes)
	before := len(w.store.lanes)
	if n == before {
		return
	}
	w.changeTo(n)
	if chance(w.r, 0.3) {
		// It was a mistake, and is changed back before any replica may have noticed.
		w.after(w.some(w.plan.latency), func() { w.changeTo(before) })
	}
}

func (w *fleet) changeTo(n int) {
	w.changes++
	// Lanes that are made while members of before are there wait for their leases to end.
	w.troubled(w.now.Add(w.plan.ttl))
	w.store.resize(n, pick(w.r, 0, n))
	w.unserved = make([]time.Time, n)
	w.launch()
}

// watch looks now and then whether every lane has a holder.
func (w *fleet) watch() {
	w.checkServed()
	w.after(100*time.Millisecond, w.watch)
}

// write is a writer's transaction.
func (w *fleet) write() {
	if w.calm {
		return
	}
	w.after(w.some(w.plan.writeEvery), w.write)
	if w.down() {
		return
	}
	tx := &transaction{}
	for range 1 + w.r.IntN(4) {
		ev := &source.Event{Topic: "t", Key: fmt.Appendf(nil, "%d", w.r.IntN(w.plan.keys)), Created: w.now}
		ev.Lane = LaneOf(ev.Key, mostLanes)
		w.table.insert(tx, ev, true)
	}
	d := w.some(w.plan.latency)
	if chance(w.r, w.plan.slow) {
		d = w.some(time.Second)
	}
	w.after(d, func() {
		w.table.end(tx, true)
		w.checkEnd()
	})
}

// checkEnd stops the last replicas once everything is delivered.
func (w *fleet) checkEnd() {
	if !w.calm || w.closing || len(w.table.rows) > 0 {
		return
	}
	// The lanes are shared out as they should be before that.
	w.closing = true
	w.after(w.plan.ttl+2*time.Second, func() {
		for _, p := range slices.Clone(w.processes) {
			p.stop(-1)
		}
		w.ended = len(w.processes) == 0
	})
}
