package lanes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/repeat"
	"github.com/outbox-forwarder/forwarder/source"
)

// Source is the outbox: where events are read and deleted.
type Source interface {
	// Read answers one page. Calls are serial. The page holds no event that the read excludes.
	Read(ctx context.Context, read *source.Read) (*source.Page, error)
	// Delete removes rows by id, which are in ascending order; ids that are gone already are
	// no error. It is called concurrently with Read and with itself.
	Delete(ctx context.Context, ids []int64) error
}

// Sink is the broker.
type Sink interface {
	// Submit hands runs to the broker's client, each in its order. Calls are serial. report
	// gets exactly one outcome for each event, in any number of calls from any goroutine,
	// also before Submit returns.
	Submit(runs [][]*source.Event, report func([]source.Outcome))
	// Recall takes back what was submitted and is not on the wire yet, with outcomes of class
	// Broker. It does not wait.
	Recall()
}

// Owner decides which lanes are ours.
type Owner interface {
	// Own holds lanes on behalf of h until ctx is done, and then gives them up. It returns
	// early with an error only when it cannot go on.
	Own(ctx context.Context, h Holder) error
}

// Holder is what an Owner tells. Its methods return at once.
type Holder interface {
	// Gain says that lanes are ours from now on.
	Gain(lanes []source.Lane)
	// Lose says that lanes are not ours any more: nothing more of them is submitted.
	Lose(lanes []source.Lane)
	// Drain asks to finish with lanes; done is called once for each, as it is finished.
	Drain(lanes []source.Lane, done func(source.Lane))
	// Trust says until when, by the monotonic clock, the lanes are ours without further
	// word. From then on nothing is submitted, until a later Trust. An owner that never calls
	// it is trusted for good.
	Trust(until time.Time)
}

// Sole is the Owner of a forwarder that has the outbox to itself.
type Sole struct{ Lanes int }

// Own holds every lane until ctx is done.
func (s Sole) Own(ctx context.Context, h Holder) error {
	all := make([]source.Lane, s.Lanes)
	for i := range all {
		all[i] = source.Lane(i)
	}
	h.Gain(all)
	<-ctx.Done()
	return nil
}

// Forwarder is the shell around an Engine: one loop that owns it, one reader, one submitter
// and a few deleters. See Run for its one lifecycle.
type Forwarder struct {
	cfg    Config
	source Source
	sink   Sink
	log    *repeat.Log
	grace  time.Duration

	inbox  *inbox
	trust  atomic.Pointer[time.Time] // see Holder.Trust; nil for good
	reads  chan *source.Read
	runs   *runQueue
	delete chan []int64

	mu       sync.Mutex // guards what follows
	engine   *Engine
	drainers map[source.Lane]func(source.Lane)
	turn     time.Time // when the loop last went round
	readErr  trouble
	delErr   trouble
	paused   trouble
	begun    bool // a page was read
}

// trouble is an error that has been there since a moment.
type trouble struct {
	err   error
	since time.Time
}

func (t *trouble) set(err error, now time.Time) {
	switch {
	case err == nil:
		*t = trouble{}
	case t.err == nil:
		*t = trouble{err, now}
	default:
		t.err = err
	}
}

// ErrGrace says that a shutdown left acknowledgements or deletes unfinished. Their rows are
// still in the outbox and will be sent again.
var ErrGrace = errors.New("the grace period ended")

// NewForwarder returns a forwarder between a source and a sink. grace bounds its shutdown.
func NewForwarder(cfg Config, src Source, sink Sink, log *slog.Logger, grace time.Duration) (*Forwarder, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Forwarder{
		cfg:      cfg,
		source:   src,
		sink:     sink,
		log:      repeat.New(log, LogEvery),
		grace:    grace,
		inbox:    newInbox(),
		reads:    make(chan *source.Read, 1),
		runs:     newRunQueue(),
		delete:   make(chan []int64, cfg.Deleters),
		engine:   NewEngine(cfg),
		drainers: make(map[source.Lane]func(source.Lane)),
	}, nil
}

// LogEvery is how often a repeated cause is logged.
const LogEvery = 30 * time.Second

// Run forwards until ctx is done, then finishes what is in flight within the grace period.
// It returns nil after a complete shutdown, ErrGrace after one that was cut short, and the
// owner's error when that could not go on. It may be called once.
func (f *Forwarder) Run(ctx context.Context, owner Owner) error {
	// The work outlives ctx: what was submitted is awaited and deleted.
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	owning, disown := context.WithCancelCause(work)

	var workers sync.WaitGroup
	workers.Go(func() { f.readLoop(work) })
	workers.Go(func() { f.submitLoop(work) })
	for range f.cfg.Deleters {
		workers.Go(func() { f.deleteLoop(work) })
	}
	owned := make(chan error, 1)
	workers.Go(func() { owned <- owner.Own(owning, f) })

	err := f.loop(ctx, owned)
	disown(err)
	end()
	workers.Wait()
	return err
}

// loop is the only goroutine that feeds the engine.
func (f *Forwarder) loop(ctx context.Context, owned <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := ctx.Done()
	var grace <-chan time.Time
	var failure error
	for {
		now := time.Now()
		next, done := f.step(now)
		if done {
			return failure
		}
		timer.Reset(next)
		select {
		case <-f.inbox.wake:
		case <-timer.C:
		case <-stop:
			stop = nil
			grace = f.beginStop()
		case err := <-owned:
			owned = nil
			if err != nil {
				failure = err
				stop = nil
				grace = f.beginStop()
			}
		case <-grace:
			s := f.Stats()
			left := fmt.Errorf("%w with %d events in flight and %d acknowledged rows not deleted: they stay in the outbox and are sent again",
				ErrGrace, s.Flying, s.Undeleted)
			return errors.Join(failure, left)
		}
	}
}

func (f *Forwarder) beginStop() <-chan time.Time {
	f.mu.Lock()
	f.engine.Stop()
	f.mu.Unlock()
	return time.After(f.grace)
}

// pulse bounds the pause of the loop, so that Alive can tell that it turns.
const pulse = time.Second

// step takes in what arrived and does what the engine wants. It returns how long it may wait
// for more.
func (f *Forwarder) step(now time.Time) (wait time.Duration, done bool) {
	in := f.inbox.take()
	f.mu.Lock()
	f.turn = now
	f.takeIn(now, &in)
	ready := f.engine.Ready(now)
	var calls []func()
	for _, lane := range ready.Drained {
		if call := f.drainers[lane]; call != nil {
			delete(f.drainers, lane)
			calls = append(calls, func() { call(lane) })
		}
	}
	done = f.engine.Done()
	f.mu.Unlock()

	f.inbox.recycle(in)
	if ready.Read != nil {
		f.reads <- ready.Read // never blocks: one read at a time
	}
	if len(ready.Submit) > 0 {
		f.runs.put(ready.Submit)
	}
	for _, ids := range ready.Delete {
		f.delete <- ids // never blocks: at most Deleters at a time
	}
	for _, call := range calls {
		call()
	}
	f.logNotes(ready.Notes)
	wait = pulse
	if !ready.Next.IsZero() {
		wait = min(wait, ready.Next.Sub(now))
	}
	return wait, done
}

// takeIn feeds the engine. The order matters: lanes are lost before outcomes are looked at.
func (f *Forwarder) takeIn(now time.Time, in *arrivals) {
	for _, c := range in.changes {
		switch c.kind {
		case gain:
			f.engine.Gain(now, c.lanes...)
		case lose:
			f.engine.Lose(c.lanes...)
		case trust:
			f.engine.Trust(now, c.until)
		case drain:
			for _, lane := range c.lanes {
				f.drainers[lane] = c.done
			}
			f.engine.Drain(c.lanes...)
		}
	}
	f.engine.Outcomes(now, in.outcomes)
	if in.answered {
		f.readErr.set(in.readErr, now)
		if in.readErr != nil {
			f.engine.ReadFailed(now)
		} else {
			f.begun = true
			f.engine.Page(now, in.page)
		}
	}
	for _, d := range in.deletes {
		f.delErr.set(d.err, now)
		if d.err != nil {
			f.engine.DeleteFailed(now, d.ids)
		} else {
			f.engine.Deleted(d.ids)
		}
	}
}

func (f *Forwarder) readLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case read := <-f.reads:
			page, err := f.source.Read(ctx, read)
			if err != nil && ctx.Err() == nil {
				f.log.Log(ctx, slog.LevelWarn, "read", "reading the outbox failed, it is tried again", "err", err)
			} else if err == nil {
				f.log.Recovered("read", "the outbox is read again")
			}
			f.inbox.page(page, err)
		}
	}
}

func (f *Forwarder) deleteLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case ids := <-f.delete:
			err := f.source.Delete(ctx, ids)
			if err != nil && ctx.Err() == nil {
				f.log.Log(ctx, slog.LevelWarn, "delete", "deleting acknowledged rows failed, it is tried again", "count", len(ids), "err", err)
			} else if err == nil {
				f.log.Recovered("delete", "acknowledged rows are deleted again")
			}
			f.inbox.deleted(ids, err)
		}
	}
}

func (f *Forwarder) submitLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.runs.wake:
			f.submit(f.runs.take())
		}
	}
}

// ErrLeaseEnded is the error of events that were not submitted because the trust in the lease
// had ended.
var ErrLeaseEnded = errors.New("the lease ended before the event was submitted")

// submit looks at the clock once more: between the engine's decision and now, the process may
// have been stopped for longer than the lease.
func (f *Forwarder) submit(runs [][]*source.Event) {
	if until := f.trust.Load(); until == nil || time.Now().Before(*until) {
		f.sink.Submit(runs, f.inbox.report)
		return
	}
	for _, run := range runs {
		outcomes := make([]source.Outcome, len(run))
		for i, ev := range run {
			outcomes[i] = source.Outcome{ID: ev.ID, Class: source.Broker, Err: ErrLeaseEnded}
		}
		f.inbox.report(outcomes)
	}
}

// Trust implements Holder.
func (f *Forwarder) Trust(until time.Time) {
	f.trust.Store(&until)
	f.inbox.change(change{kind: trust, until: until})
}

// Gain implements Holder.
func (f *Forwarder) Gain(lanes []source.Lane) { f.inbox.change(change{kind: gain, lanes: lanes}) }

// Lose implements Holder.
func (f *Forwarder) Lose(lanes []source.Lane) { f.inbox.change(change{kind: lose, lanes: lanes}) }

// Drain implements Holder.
func (f *Forwarder) Drain(lanes []source.Lane, done func(source.Lane)) {
	f.inbox.change(change{kind: drain, lanes: lanes, done: done})
}
