package lanes

import (
	"container/heap"
	"encoding/binary"
	"flag"
	"fmt"
	"hash"
	"hash/fnv"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

var (
	seedsFlag = flag.Int("seeds", 2000, "how many seeds the simulations run")
	seedFlag  = flag.Int64("seed", -1, "run the simulations with this seed only")
)

// TestSimulation runs the engine in virtual time against a naive table and broker with random
// faults, one world for each seed.
func TestSimulation(t *testing.T) {
	forSeeds(t, func(seed uint64) error {
		_, err := simulate(seed, nil)
		return err
	})
}

// TestSimulationIsReproducible: a seed is a whole run, to the last byte that the engine asked for.
func TestSimulationIsReproducible(t *testing.T) {
	for seed := range uint64(20) {
		first, err := simulate(seed, nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if second, _ := simulate(seed, nil); second != first {
			t.Fatalf("seed %d has two transcripts: %x and %x", seed, first, second)
		}
	}
}

// forSeeds runs the seeds that the flags ask for, see eachSeed.
func forSeeds(t *testing.T, run func(seed uint64) error) {
	t.Helper()
	eachSeed(t, "-seed", *seedsFlag, *seedFlag, run)
}

// eachSeed runs n seeds, or only the one that is not negative, on every core, up to one that
// fails. flag is what replays a seed.
func eachSeed(t *testing.T, flag string, n int, only int64, run func(seed uint64) error) {
	t.Helper()
	first, last := uint64(0), uint64(n)
	if only >= 0 {
		first, last = uint64(only), uint64(only)+1
	}
	var next, failed atomic.Uint64
	next.Store(first)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for failed.Load() == 0 {
				seed := next.Add(1) - 1
				if seed >= last {
					return
				}
				if err := run(seed); err != nil {
					failed.Add(1)
					t.Errorf("seed %d: %v\nreplay: go test ./lanes -run '^%s$' %s %d", seed, err, t.Name(), flag, seed)
				}
			}
		})
	}
	wg.Wait()
}

// simulation is one world: an engine, or one after the other, a table, a broker and a clock.
// Whatever happens is an entry of the agenda; the engine sees only inputs and the time that
// its Ready.Next named.
type simulation struct {
	r      *rand.Rand
	now    time.Time
	agenda agenda
	order  uint64 // of the entries at one moment
	plan   plan
	hash   hash.Hash64
	buf    []byte

	engine     *Engine
	generation int // of the engine
	input      bool
	next       time.Time
	stopping   bool // the engine was told to stop
	killed     bool // an earlier one was not
	last       bool // it has no successor

	table  *table
	log    *changes // between the engine and the table, nil where it reads the table itself
	broker broker
	ledger *ledger

	open     []*transaction // of the writers
	hopeless int            // rows that can never be written
	splits   int            // runs that the engine has split
	calm     bool           // no fault begins any more
	ending   bool           // everything that can be delivered is
	ended    bool
}

// failure is a broken promise; the simulation panics with it.
type failure struct{ text string }

func failf(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

var epoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// simulate runs the world of a seed to its end and returns the hash of its transcript. log is nil
// or an unused one.
func simulate(seed uint64, log *changes) (transcript uint64, err error) {
	s := &simulation{
		r:     rand.New(rand.NewPCG(seed, 1)),
		now:   epoch,
		hash:  fnv.New64a(),
		table: newTable(),
		log:   log,
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("at %v, engine %d: %s", s.now.Sub(epoch), s.generation, p.text)
		default:
			err = fmt.Errorf("at %v, engine %d: panic: %v\n%s", s.now.Sub(epoch), s.generation, p, debug.Stack())
		}
	}()
	s.plan = newPlan(s.r, seed)
	s.broker = newBroker(s)
	s.begin()
	s.schedule()
	for !s.ended {
		s.step()
	}
	return s.hash.Sum64(), nil
}

// begin starts an engine that owns every lane.
func (s *simulation) begin() {
	s.generation++
	if s.log != nil {
		s.log.begin(s)
	}
	cfg := s.plan.config
	cfg.Rand = rand.New(rand.NewPCG(s.r.Uint64(), 2))
	s.engine = NewEngine(cfg)
	s.stopping = false
	s.ledger = newLedger(cfg.Lanes)
	if s.plan.lease > 0 {
		s.renew()
	}
	for i := range cfg.Lanes {
		s.gain(source.Lane(i))
	}
	s.input = false
	s.ready(false)
}

func (s *simulation) gain(lane source.Lane) {
	s.ledger.lanes[lane].ownership = owned
	s.ledger.lanes[lane].gained = true
	s.record('g', int64(lane))
	s.engine.Gain(s.now, lane)
	s.input = true
}

// step moves to the next entry of the agenda or to the moment that the engine named.
func (s *simulation) step() {
	due := !s.next.IsZero() && (len(s.agenda) == 0 || s.next.Before(s.agenda[0].at) ||
		s.next.Equal(s.agenda[0].at) && chance(s.r, 0.5))
	switch {
	case due:
		s.advance(s.next)
		s.ready(true)
	case len(s.agenda) > 0:
		entry := heap.Pop(&s.agenda).(entry)
		s.advance(entry.at)
		entry.do()
	default:
		failf("nothing will ever happen again, and %d rows are left", s.table.left())
	}
	if s.input && !s.another() {
		s.input = false
		s.ledger.check(s)
		s.ready(false)
		if s.stopping && s.engine.Done() {
			s.stopped()
		}
	}
	if s.now.Sub(epoch) > s.plan.deadline(len(s.table.written)) {
		failf("no end in sight: %d rows are left, %d in memory, parked %v", s.table.left(), s.engine.known.Len(), s.engine.Parked())
	}
}

// another says, now and then, that an input comes together with the next entry.
func (s *simulation) another() bool {
	return len(s.agenda) > 0 && s.agenda[0].at.Sub(s.now) < s.plan.latency && chance(s.r, 0.1)
}

// advance moves the clock. Now and then the engine is asked on the way: nothing may have
// changed before the moment that it named.
func (s *simulation) advance(to time.Time) {
	if to.After(s.now) && chance(s.r, 0.05) {
		s.now = s.now.Add(time.Duration(s.r.Int64N(int64(to.Sub(s.now)))))
		if !s.input && (s.next.IsZero() || s.now.Before(s.next)) {
			r := s.engine.Ready(s.now)
			if r.Read != nil || len(r.Submit)+len(r.Delete)+len(r.Drained)+len(r.Notes) > 0 {
				failf("the engine had %+v to do before the moment that it named, %v", r, s.next.Sub(epoch))
			}
			s.next = r.Next
		}
	}
	s.now = to
}

// after puts an entry on the agenda.
func (s *simulation) after(d time.Duration, do func()) {
	s.order++
	heap.Push(&s.agenda, entry{s.now.Add(d), s.order, do})
}

// answer is after for an input to the engine of that generation; its successors do not hear of it.
func (s *simulation) answer(generation int, d time.Duration, do func()) {
	s.after(d, func() {
		if generation == s.generation {
			s.input = true
			do()
		}
	})
}

// latency is a random duration about as long as the plan's.
func (s *simulation) latency() time.Duration {
	return time.Duration(s.r.ExpFloat64() * float64(s.plan.latency))
}

// ready asks the engine what is to be done, and begins it.
func (s *simulation) ready(named bool) {
	r := s.engine.Ready(s.now)
	if named && r.Read == nil && len(r.Submit)+len(r.Delete)+len(r.Drained)+len(r.Notes) == 0 &&
		!r.Next.IsZero() && !r.Next.After(s.now) {
		failf("the engine spins: it named this moment, has nothing to do, and names it again")
	}
	s.next = r.Next
	s.transcribe(&r)
	s.ledger.split(s)
	for _, lane := range r.Drained {
		s.ledger.drained(s, lane)
	}
	for _, run := range r.Submit {
		s.ledger.submit(s, run)
	}
	if len(r.Submit) > 0 {
		s.broker.submit(r.Submit)
	}
	for _, ids := range r.Delete {
		s.delete(ids)
	}
	if r.Read != nil {
		s.read(r.Read)
	}
	s.ledger.check(s)
}

// read answers a read in a snapshot taken some time after it was sent and before the answer
// arrives.
func (s *simulation) read(read *source.Read) {
	s.ledger.read(s, read)
	generation := s.generation
	if s.faulty(s.plan.readFails) {
		s.answer(generation, s.latency(), func() {
			s.record('r')
			s.ledger.reading = false
			s.engine.ReadFailed(s.now)
		})
		return
	}
	answer := s.table.read
	if s.log != nil {
		answer = s.log.read()
	}
	s.after(s.latency(), func() {
		page := answer(read)
		s.answer(generation, s.latency(), func() {
			s.record('p', int64(len(page.Events)), int64(page.Snapshot.Xmax))
			s.ledger.reading = false
			s.engine.Page(s.now, page)
			s.ledger.covered(s)
		})
	})
}

// delete runs a delete statement in a transaction of its own, whose xid the engine may hear of
// while it runs.
func (s *simulation) delete(ids []int64) {
	s.ledger.delete(s, ids)
	generation := s.generation
	fails, lost := s.faulty(s.plan.deleteFails), s.faulty(s.plan.deleteLost)
	answered := false
	tx := &transaction{ours: chance(s.r, 0.5)}
	remove := s.remove
	if s.log != nil {
		remove = s.log.remove()
	}
	s.after(s.latency(), func() {
		s.table.takeXid(tx)
		if !chance(s.r, s.plan.silent) {
			s.after(s.latency(), func() {
				if generation == s.generation && !answered {
					s.record('x', int64(tx.xid))
					s.engine.Deleting(s.now, ids, tx.xid)
				}
			})
		}
		s.after(s.latency(), func() {
			s.table.end(tx, !fails)
			if !fails {
				remove(ids)
				s.broker.fray(generation, ids)
				s.checkEnd()
			}
			s.answer(generation, s.latency(), func() {
				answered = true
				s.record('d', ids...)
				if fails || lost {
					s.engine.DeleteFailed(s.now, ids)
					return
				}
				s.ledger.deleted(s, ids)
				s.engine.Deleted(ids)
			})
		})
	})
}

func (s *simulation) remove(ids []int64) {
	for _, id := range ids {
		s.table.remove(s.table.byID[id])
	}
}

// faulty is true with probability p until the world is calm.
func (s *simulation) faulty(p float64) bool { return chance(s.r, p) && !s.calm }

// record adds to the transcript.
func (s *simulation) record(what byte, numbers ...int64) {
	s.buf = append(s.buf[:0], what)
	s.buf = binary.AppendVarint(s.buf, int64(s.now.Sub(epoch)))
	for _, n := range numbers {
		s.buf = binary.AppendVarint(s.buf, n)
	}
	s.hash.Write(s.buf)
}

// transcribe adds to the transcript what the engine wants done. The order of what the engine
// keeps in maps is no part of it.
func (s *simulation) transcribe(r *Ready) {
	for _, run := range r.Submit {
		ids := make([]int64, len(run))
		for i, ev := range run {
			ids[i] = ev.ID
		}
		s.record('S', ids...)
	}
	for _, ids := range r.Delete {
		s.record('X', ids...)
	}
	for _, lane := range r.Drained {
		s.record('E', int64(lane))
	}
	var notes []int64
	for _, n := range r.Notes {
		notes = append(notes, n.Event<<8|int64(n.Kind))
	}
	slices.Sort(notes)
	s.record('N', notes...)
	if read := r.Read; read != nil {
		s.record('?', read.Floor, int64(read.Limit), int64(read.Bytes))
		s.record('K', slices.Sorted(slices.Values(read.Known))...)
		var left []string
		for _, key := range read.Keys {
			left = append(left, key.Topic+" "+key.Key)
		}
		left = append(left, read.Topics...)
		slices.Sort(left)
		for _, name := range left {
			s.hash.Write([]byte(name))
		}
		for _, lane := range read.Lanes {
			s.record('L', int64(lane))
		}
	}
	if !r.Next.IsZero() {
		s.record('n', int64(r.Next.Sub(epoch)))
	}
}

// agenda is a heap of what will happen.
type agenda []entry

type entry struct {
	at    time.Time
	order uint64
	do    func()
}

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	if c := a[i].at.Compare(a[j].at); c != 0 {
		return c < 0
	}
	return a[i].order < a[j].order
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(entry)) }
func (a *agenda) Pop() any {
	last := len(*a) - 1
	e := (*a)[last]
	(*a)[last] = entry{}
	*a = (*a)[:last]
	return e
}
