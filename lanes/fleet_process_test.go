package lanes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// process is one start of a replica: a Forwarder and a Keeper, and in place of their goroutines
// entries of the agenda, which a pause of the process puts off and its end makes void.
type process struct {
	w         *fleet
	n         int
	lanes     int           // the store's lane count as it started
	changes   int           // of it, before that
	offset    time.Duration // of its clock
	rate      float64       // of its clock
	forwarder *Forwarder
	keeper    *Keeper

	pausedUntil time.Time
	dead        bool          // killed, or at its end
	stopping    bool          // the forwarder was told to stop
	over        bool          // its loop has ended
	restart     time.Duration // after its end; negative for never
	failure     error

	// The keeper runs as a coroutine that stands still at each wait and at each call.
	resume  func() (request, bool)
	halt    func()
	yield   func(request) bool
	cancel  context.CancelCauseFunc
	ctx     context.Context
	killed  bool // nothing is yielded any more
	ownDone bool
	ownErr  error
	waiting bool
	waits   int // numbers what it waits for, so that what comes too late is told apart
	calls   storeCalls

	stepping, waking bool // an entry for it is on the agenda
	steps            int
	submitting       bool
	gained           map[source.Lane]time.Time
	sink             *fleetSink
	ended            uint64 // leases ended, so far
}

// request is what the keeper stands still for: d to pass, or a call of the store.
type request struct {
	d    time.Duration
	call func()
}

var errSimulatedStop = errors.New("the simulated process is no more")

// start begins a new process.
func (w *fleet) start() {
	w.born++
	p := &process{
		w: w, n: w.born, lanes: len(w.store.lanes), changes: w.changes,
		offset:  time.Duration(w.r.Int64N(int64(240*time.Hour))) - 120*time.Hour,
		rate:    0.95 + 0.1*w.r.Float64(),
		restart: -1,
		gained:  make(map[source.Lane]time.Time),
	}
	w.record('b', int64(p.n))
	p.sink = newFleetSink(p)
	cfg := w.plan.config
	cfg.Lanes = p.lanes
	cfg.Rand = rand.New(rand.NewPCG(w.r.Uint64(), 4))
	f, err := NewForwarder(cfg, nil, p.sink, slog.New(slog.DiscardHandler), w.plan.grace)
	if err != nil {
		panic(err)
	}
	f.now = p.now
	p.forwarder = f
	p.keeper = NewKeeper(KeeperConfig{
		Host: fmt.Sprintf("r%04d", p.n), TTL: w.plan.ttl, Exclusive: chance(w.r, w.plan.alone),
	}, &storeClient{p}, p.lanes)
	p.keeper.now, p.keeper.wait = p.now, p.wait
	lives := 0
	p.keeper.unique = func() string { lives++; return fmt.Sprintf("%08d", lives) }
	ctx, cancel := context.WithCancelCause(context.Background())
	p.ctx, p.cancel = ctx, cancel
	p.resume, p.halt = iter.Pull(func(yield func(request) bool) {
		p.yield = yield
		p.ownErr = p.keeper.Own(ctx, &fleetHolder{p})
		p.ownDone = true
	})
	w.processes = append(w.processes, p)
	p.after(0, p.step)
	p.after(w.some(w.plan.latency), p.run)
}

// now is the process's own clock. It has nothing to do with the store's but that it runs about
// as fast.
func (p *process) now() time.Time {
	return epoch.Add(p.offset + time.Duration(p.rate*float64(p.w.now.Sub(epoch))))
}

// timer is after with d by the process's own clock.
func (p *process) timer(d time.Duration, do func()) {
	p.after(time.Duration(float64(max(d, 0))/p.rate)+1, do)
}

// after puts something that this process does on the agenda.
func (p *process) after(d time.Duration, do func()) {
	p.w.after(d, func() { p.whenAwake(do) })
}

func (p *process) whenAwake(do func()) {
	if p.dead {
		return
	}
	if p.w.now.Before(p.pausedUntil) {
		// On waking, what has piled up is done in any order.
		p.after(p.pausedUntil.Sub(p.w.now)+p.w.some(p.w.plan.latency/10), do)
		return
	}
	do()
	if !p.dead {
		p.settle()
	}
}

// settle puts on the agenda what the process's goroutines would notice now.
func (p *process) settle() {
	w := p.w
	if len(p.forwarder.inbox.wake) > 0 && !p.stepping {
		p.stepping = true
		p.after(w.some(w.plan.latency/20), p.step)
	}
	if p.waiting && !p.waking && (len(p.keeper.wake) > 0 || p.ctx.Err() != nil) {
		p.waking = true
		p.after(w.some(w.plan.latency/20), func() {
			p.waking = false
			if p.waiting {
				p.run()
			}
		})
	}
	if len(p.forwarder.runs.wake) > 0 && !p.submitting {
		p.submitting = true
		d := w.some(w.plan.latency / 20)
		if w.faulty(w.plan.blocked) {
			d = time.Duration(w.r.Int64N(int64(3 * w.plan.ttl))) // the one before waits for room in the client
		}
		p.after(d, p.submit)
	}
	select {
	case read := <-p.forwarder.reads:
		p.read(read)
	default:
	}
	for {
		select {
		case ids := <-p.forwarder.delete:
			p.delete(ids)
			continue
		default:
		}
		break
	}
}

// step is one round of Forwarder.loop.
func (p *process) step() {
	p.stepping = false
	if p.over {
		return
	}
	select {
	case <-p.forwarder.inbox.wake:
	default:
	}
	before := p.forwarder.engine.stats.Submitted
	wait, done := p.forwarder.step(p.now())
	if p.forwarder.engine.stats.Submitted > before && !p.trusted() {
		failf("%s decides to submit and does not trust its leases", p.keeper.me)
	}
	p.w.checkHolders()
	if n := p.forwarder.engine.stats.LeasesEnded; n != p.ended {
		p.w.ends += int(n - p.ended)
		p.ended = n
	}
	if done {
		p.finish(p.failure)
		return
	}
	p.steps++
	step := p.steps
	p.timer(wait, func() {
		if p.steps == step && !p.stepping {
			p.step()
		}
	})
}

// submit is one round of Forwarder.submitLoop.
func (p *process) submit() {
	p.submitting = false
	<-p.forwarder.runs.wake
	for _, b := range p.forwarder.runs.take() {
		n := p.sink.submits
		p.forwarder.submit(b)
		if p.sink.submits == n {
			p.w.refused += len(b.runs)
		}
	}
}

// stop is SIGTERM.
func (p *process) stop(restart time.Duration) {
	if p.stopping || p.dead {
		return
	}
	p.w.record('s', int64(p.n))
	p.w.stops++
	p.restart = restart
	p.shutDown(nil)
}

func (p *process) shutDown(failure error) {
	if p.stopping {
		return
	}
	p.stopping = true
	p.failure = failure
	p.after(0, func() {
		p.forwarder.beginStop(p.keeper)
		p.step()
		p.after(p.w.plan.grace, func() {
			if !p.over {
				p.w.troubled(p.w.now)
				p.w.abandoned(p)
				p.finish(ErrGrace)
			}
		})
	})
}

// finish is the end of Forwarder.loop, and what Run does after it.
func (p *process) finish(err error) {
	p.over = true
	p.cancel(err)
	if p.ownDone {
		p.exit()
	}
}

// run lets the keeper go on until it stands still again.
func (p *process) run() {
	p.waiting = false
	p.waits++
	wait := p.waits
	req, more := p.resume()
	p.w.checkHolders()
	switch {
	case !more:
		if p.ownErr != nil {
			if !errors.Is(p.ownErr, ErrLaneCount) {
				failf("the keeper ends with %v", p.ownErr)
			}
			p.restart = 0
			p.shutDown(p.ownErr)
		}
		if p.over {
			p.exit()
		}
	case req.call != nil:
		req.call()
	default:
		p.waiting = true
		p.timer(req.d, func() {
			if p.waiting && p.waits == wait {
				p.run()
			}
		})
	}
}

// wait is Keeper.wait.
func (p *process) wait(ctx context.Context, d time.Duration) {
	if p.killed || ctx.Err() != nil || len(p.keeper.wake) == 0 && !p.yield(request{d: d}) {
		return
	}
	select {
	case <-p.keeper.wake:
	default:
	}
}

// kill is the end of the process as a crash brings it.
func (p *process) kill() {
	if p.dead && p.ownDone {
		return
	}
	p.dead, p.killed = true, true
	p.cancel(ErrGrace)
	p.halt()
}

// exit is the end that the process itself has chosen.
func (p *process) exit() {
	w := p.w
	w.record('e', int64(p.n))
	p.dead = true
	p.halt()
	w.gone(p)
}

// held returns the lanes of mostLanes that the process would submit.
func (p *process) held() (set uint) {
	if p.dead || !p.trusted() {
		return 0
	}
	for lane := range mostLanes {
		if p.forwarder.engine.lanes[lane&(p.lanes-1)].ownership == owned {
			set |= 1 << lane
		}
	}
	return set
}

func (p *process) trusted() bool {
	until := p.forwarder.trust.Load()
	return until != nil && p.now().Before(*until)
}

// serves reports whether the process is there to take lanes.
func (p *process) serves() bool {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	return !p.dead && !p.stopping && !p.keeper.retire && !p.w.now.Before(p.pausedUntil)
}

// fleetHolder is the Forwarder as the keeper sees it, and notes when lanes come.
type fleetHolder struct{ p *process }

func (h *fleetHolder) Gain(lanes []source.Lane) {
	for _, lane := range lanes {
		h.p.gained[lane] = h.p.w.now
		h.p.w.record('g', int64(h.p.n), int64(lane))
	}
	h.p.forwarder.Gain(lanes)
}

func (h *fleetHolder) Lose(lanes []source.Lane) {
	h.p.w.record('l', int64(h.p.n), int64(len(lanes)))
	if w := h.p.w; w.store.members[h.p.keeper.me] != nil {
		if h.p.changes == w.changes {
			failf("%s is a member and drops lanes %v", h.p.keeper.me, lanes)
		}
		w.abandoned(h.p) // the lanes are there no more
	}
	h.p.forwarder.Lose(lanes)
}

func (h *fleetHolder) Drain(lanes []source.Lane, done func(source.Lane)) {
	h.p.w.record('d', int64(h.p.n), int64(len(lanes)))
	h.p.forwarder.Drain(lanes, done)
}

func (h *fleetHolder) Trust(until time.Time) { h.p.forwarder.Trust(until) }
