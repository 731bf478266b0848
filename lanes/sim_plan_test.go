package lanes

import (
	"cmp"
	"math/rand/v2"
	"time"
)

// plan is what a seed's world is like: the engine's configuration, the writers, and how often
// what goes wrong.
type plan struct {
	config  Config
	latency time.Duration // about one step of a request

	writeEvery time.Duration
	writeUntil time.Duration // after the epoch
	calmAt     time.Duration // from here on nothing goes wrong any more
	topics     int
	keys       int

	// Shares of the transactions or rows.
	long, rollback, early, keyless, unordered float64
	// Shares of the rows that the client or the broker refuses, and of these for ever.
	tooLarge, refused, forever float64
	// The client makes several batches of a request, and says when a record was alone in one.
	splits, knowsAlone bool
	shuffles           bool // outcomes come in any order, and not in that of the partition
	// Shares of the requests.
	readFails, deleteFails, deleteLost float64
	silent                             float64 // of the deletes: their xid is not told
	ackLost, brokerFails, misordered   float64
	cuts                               float64 // answered in part, while the partition dies
	// How long a lease is trusted, 0 for ever, and the share of the renewals that are late.
	lease     time.Duration
	renewLate float64
	// Mean intervals; 0 for never.
	moves, kills, stops, outages, vanishing, retries, deaths time.Duration
}

func newPlan(r *rand.Rand, seed uint64) plan {
	p := plan{
		latency:    pick(r, 50*time.Microsecond, time.Millisecond, 10*time.Millisecond, 40*time.Millisecond),
		writeEvery: pick(r, time.Millisecond, 5*time.Millisecond, 20*time.Millisecond),
		topics:     pick(r, 1, 2, 4),
		keys:       pick(r, 1, 3, 8, 20),
		keyless:    pick(r, 0, 0, 0.1, 0.5),
		unordered:  pick(r, 0, 0, 0.2),
		rollback:   pick(r, 0, 0.15),
		long:       pick(r, 0, 0.1, 0.3),
	}
	steps := 30 + r.IntN(300)
	p.writeUntil = time.Duration(steps) * p.writeEvery
	p.calmAt = p.writeUntil + pick(r, 0, 500*time.Millisecond)
	p.config = Config{
		Lanes:          pick(r, 1, 4, 8),
		MaxEvents:      pick(r, 1, 2, 5, 12, 40, 1000),
		MaxBytes:       pick(r, 1, 2000, 10000, 1<<20),
		RunEvents:      pick(r, 1, 2, 3, 10, 500),
		RunBytes:       pick(r, 1, 800, 3000, 1<<20),
		PageEvents:     pick(r, 1, 2, 5, 20, 1000),
		PageBytes:      pick(r, 1, 1000, 5000, 1<<20),
		DeleteEvents:   pick(r, 1, 2, 10, 1000),
		Deleters:       pick(r, 1, 2, 3),
		DeleteWait:     pick(r, time.Microsecond, 5*time.Millisecond, 20*time.Millisecond),
		MaxParts:       pick(r, 1, 2, 5, 1000),
		MinPoll:        pick(r, time.Millisecond, 5*time.Millisecond),
		MaxPoll:        pick(r, 10*time.Millisecond, 50*time.Millisecond),
		Rescan:         pick(r, 20*time.Millisecond, 200*time.Millisecond, time.Second),
		TransactionAge: pick(r, 10*time.Millisecond, 100*time.Millisecond, time.Second),
		Broker:         Backoff{10 * time.Millisecond, 200 * time.Millisecond},
		Topic:          Backoff{20 * time.Millisecond, 300 * time.Millisecond},
		// With memory for one event, what can never be delivered must not take all of its time.
		Record: Backoff{30 * time.Millisecond, 400*time.Millisecond + 200*p.latency},
		Store:  Backoff{5 * time.Millisecond, 200 * time.Millisecond},
	}
	// One seed in ten has small troubles with large settings: the usual life.
	if chance(r, 0.1) {
		p.config = Config{Lanes: 8}
	}
	// Each kind of trouble is in half of the worlds.
	some := func(v float64) float64 { return pick(r, 0, v*r.Float64()) }
	every := func(d time.Duration) time.Duration {
		return pick(r, 0, time.Duration(float64(d)*(0.3+r.Float64())))
	}
	p.early = some(0.3)
	p.tooLarge, p.refused, p.forever = some(0.2), some(0.2), some(0.5)
	p.splits, p.knowsAlone, p.shuffles = chance(r, 0.5), chance(r, 0.5), chance(r, 0.5)
	p.readFails, p.deleteFails, p.deleteLost = some(0.3), some(0.3), some(0.3)
	p.silent = pick(r, 0, 0.5, 1)
	p.ackLost, p.brokerFails = some(0.2), some(0.2)
	p.moves = every(200 * time.Millisecond)
	p.outages = every(time.Second)
	p.vanishing = every(time.Second)
	p.retries = every(time.Second)
	if chance(r, 0.3) {
		p.kills = every(time.Second)
	}
	if chance(r, 0.3) {
		p.stops = every(time.Second)
	}
	if chance(r, 0.1) {
		p.misordered = 0.3
	}
	if chance(r, 0.3) {
		p.lease = 200*time.Millisecond + 20*p.latency
		p.renewLate = some(0.2)
	}
	// In the others nothing stalls: what is rare without stalls must not become rarer.
	if stalls := rand.New(rand.NewPCG(seed, 3)); chance(stalls, 0.4) {
		p.config.StallAfter = pick(stalls, 10*time.Millisecond, 30*time.Millisecond, 100*time.Millisecond, time.Second)
		p.deaths = 100*time.Millisecond + time.Duration(stalls.Int64N(int64(300*time.Millisecond)))
		p.cuts = pick(stalls, 0, 0.1*stalls.Float64())
	} else {
		p.config.StallAfter = time.Hour
	}
	return p
}

// deadline is when the world must have come to its end, with that many rows written.
func (p *plan) deadline(rows int) time.Duration {
	longest := cmp.Or(p.config.Record.Max, time.Minute)
	return p.calmAt + p.patience() + 15*time.Second + 2*longest + time.Duration(rows)*(20*time.Millisecond+12*p.latency)
}

// patience is how long the engine has, once nothing else is left, to find out what can never
// be delivered.
func (p *plan) patience() time.Duration { return 2*time.Second + 500*p.latency }
