package lanes

import (
	"container/heap"
	"encoding/binary"
	"flag"
	"fmt"
	"hash"
	"hash/fnv"
	"math/bits"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"
)

var (
	fleetSeeds = flag.Int("fleet.seeds", 2000, "how many seeds the simulation of the fleet runs")
	fleetSeed  = flag.Int64("fleet.seed", -1, "run the simulation of the fleet with this seed only")
)

// TestFleet runs replicas in virtual time over one table, one store of leases and one broker,
// with random faults: the shell's own code with its keeper, but for the goroutines, the
// clock, the network and the servers.
func TestFleet(t *testing.T) {
	var sum fleetSum
	eachSeed(t, "-fleet.seed", *fleetSeeds, *fleetSeed, func(seed uint64) error {
		w, err := simulateFleet(seed, newFleetPlan)
		sum.add(w)
		return err
	})
	t.Log(&sum)
	if sum.worlds >= 1000 && !t.Failed() { // fewer need not have everything in them
		sum.check(t)
	}
}

// TestFleetIsReproducible: a seed is a whole run.
func TestFleetIsReproducible(t *testing.T) {
	for seed := range uint64(20) {
		first, err := simulateFleet(seed, newFleetPlan)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if second, _ := simulateFleet(seed, newFleetPlan); second.hash.Sum64() != first.hash.Sum64() {
			t.Fatalf("seed %d has two transcripts", seed)
		}
	}
}

// fleet is one world. Its clock is the store's.
type fleet struct {
	r      *rand.Rand
	now    time.Time
	agenda agenda
	order  uint64
	plan   fleetPlan
	hash   hash.Hash64
	buf    []byte

	table     *table
	deletedAt map[int64]time.Time
	store     *leaseStore
	broker    *fleetBroker
	processes []*process // that run, or are stopped in the middle
	born      int

	downUntil time.Time // of the database, with the leases in it
	trouble   time.Time // the latest moment at which something was not as it should be
	calm      bool      // no fault begins any more
	closing   bool      // everything is delivered: the last replicas stop
	ended     bool
	unserved  []time.Time

	kills, pauses, stops, changes, deaths, ends, refused int

	allowance int // repeats that faults account for
}

// simulateFleet runs the world of a seed to its end.
func simulateFleet(seed uint64, newPlan func(*rand.Rand) fleetPlan) (w *fleet, err error) {
	w = &fleet{
		r:         rand.New(rand.NewPCG(seed, 3)),
		now:       epoch,
		hash:      fnv.New64a(),
		table:     newTable(),
		deletedAt: make(map[int64]time.Time),
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("at %v: %s", w.now.Sub(epoch), p.text)
		default:
			err = fmt.Errorf("at %v: panic: %v\n%s", w.now.Sub(epoch), p, debug.Stack())
		}
		for _, p := range w.processes {
			p.kill()
		}
	}()
	w.plan = newPlan(w.r)
	w.store = newLeaseStore(w, w.plan.lanes)
	w.unserved = make([]time.Time, w.plan.lanes)
	w.troubled(w.now)
	w.broker = newFleetBroker(w)
	for range w.plan.replicas {
		w.start()
	}
	w.schedule()
	standing := 0 // entries in this millisecond
	for !w.ended {
		if len(w.agenda) == 0 {
			failf("nothing will ever happen again, and %d rows are left", w.table.left())
		}
		entry := heap.Pop(&w.agenda).(entry)
		if standing++; entry.at.Truncate(time.Millisecond).After(w.now) {
			standing = 0
		} else if standing > 20000 {
			failf("time stands still")
		}
		w.now = entry.at
		entry.do()
		if w.now.Sub(epoch) > w.plan.deadline(len(w.table.written)) {
			failf("no end in sight: %d rows are left, %d replicas, store %v", w.table.left(), len(w.processes), w.store)
		}
	}
	w.broker.finish()
	return w, nil
}

// after puts something on the agenda that no replica's fate can stop.
func (w *fleet) after(d time.Duration, do func()) {
	w.order++
	heap.Push(&w.agenda, entry{w.now.Add(d), w.order, do})
}

// some is a random duration of about d.
func (w *fleet) some(d time.Duration) time.Duration {
	return time.Duration(w.r.ExpFloat64() * float64(d))
}

// faulty is true with probability p until the world is calm.
func (w *fleet) faulty(p float64) bool { return chance(w.r, p) && !w.calm }

func (w *fleet) down() bool { return w.now.Before(w.downUntil) }

// troubled notes that something is wrong until at.
func (w *fleet) troubled(at time.Time) {
	if at.After(w.trouble) {
		w.trouble = at
	}
}

// record adds to the transcript.
func (w *fleet) record(what byte, numbers ...int64) {
	w.buf = append(w.buf[:0], what)
	w.buf = binary.AppendVarint(w.buf, int64(w.now.Sub(epoch)))
	for _, n := range numbers {
		w.buf = binary.AppendVarint(w.buf, n)
	}
	w.hash.Write(w.buf)
}

// mostLanes is the largest lane count of a world. A lane of a smaller count is several of these.
const mostLanes = 16

// checkHolders: no key has two replicas that would submit it, whatever lane it is in for them.
func (w *fleet) checkHolders() {
	var all uint
	for _, p := range w.processes {
		held := p.held()
		if all != 0 && held != 0 && w.plan.alone == 1 {
			failf("%s submits, and is not alone: %v", p.keeper.me, w.store)
		}
		if both := all & held; both != 0 {
			for _, q := range w.processes {
				if q.held()&both != 0 && q != p {
					failf("lane %d of %d is held by %s and by %s", bits.TrailingZeros(both), mostLanes, q.keeper.me, p.keeper.me)
				}
			}
		}
		all |= held
	}
}

// checkServed: a lane is without a holder for no longer than a lease and two seconds, from the
// moment on that everything is well but for what was caused before.
func (w *fleet) checkServed() {
	able := false
	for _, p := range w.processes {
		able = able || p.serves()
	}
	for lane := range w.unserved {
		if !able || w.store.mixed() || w.served(lane) {
			w.unserved[lane] = w.now
			continue
		}
		since := w.unserved[lane]
		if w.trouble.After(since) {
			since = w.trouble
		}
		if w.now.Sub(since) > w.plan.ttl+2*time.Second {
			failf("lane %d has had no holder for %v: %v", lane, w.now.Sub(since), w.store)
		}
	}
}

func (w *fleet) served(lane int) bool {
	for _, p := range w.processes {
		if lane >= p.lanes {
			continue
		}
		owned := p.forwarder.engine.lanes[lane].ownership
		if !p.dead && p.keeper.me == w.store.lanes[lane].Owner && w.store.members[p.keeper.me] != nil && p.trusted() &&
			(owned == draining || p.serves() && owned != notOurs || p.drainsAll()) {
			return true
		}
	}
	return false
}

// drainsAll reports whether the process gives everything up at once when its last lane is drained.
func (p *process) drainsAll() bool {
	return p.keeper.alone && slices.ContainsFunc(p.forwarder.engine.lanes, func(l lane) bool { return l.ownership == draining })
}

// fleetSum is what all the seeds had in them: a simulation in which nothing happens proves nothing.
type fleetSum struct {
	mu                                                                     sync.Mutex
	worlds, planned, alone                                                 int
	kills, pauses, stops, changes, deaths, ends, refused, repeats, allowed int
	rows                                                                   int
}

func (s *fleetSum) add(w *fleet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worlds++
	if w.plan.planned {
		s.planned++
	}
	if w.plan.alone > 0 {
		s.alone++
	}
	s.kills += w.kills
	s.pauses += w.pauses
	s.stops += w.stops
	s.changes += w.changes
	s.deaths += w.deaths
	s.ends += w.ends
	s.refused += w.refused
	s.repeats += w.broker.repeats
	s.allowed += w.allowance
	s.rows += len(w.table.written)
}

func (s *fleetSum) String() string {
	return fmt.Sprintf("%d worlds (%d with planned moves alone, %d with exclusive replicas), %d rows; %d crashes, %d pauses, %d clean stops, %d changes of the lane count; %d replicas declared dead, %d leases ended, %d runs refused by the submitter; %d repeats of %d that the faults account for",
		s.worlds, s.planned, s.alone, s.rows, s.kills, s.pauses, s.stops, s.changes, s.deaths, s.ends, s.refused, s.repeats, s.allowed)
}

func (s *fleetSum) check(t *testing.T) {
	for what, n := range map[string]int{
		"planned worlds": s.planned, "exclusive worlds": s.alone, "crashes": s.kills, "pauses": s.pauses, "clean stops": s.stops, "changes": s.changes, "deaths": s.deaths,
		"ended leases": s.ends, "refused runs": s.refused, "repeats": s.repeats,
	} {
		if n < s.worlds/50 {
			t.Errorf("%d %s in %d worlds: the simulation does not try them", n, what, s.worlds)
		}
	}
}
