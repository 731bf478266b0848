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

// Forwarder is the shell around an Engine: one loop that owns it, one reader, one submitter
// and a few deleters. See Run for its one lifecycle.
type Forwarder struct {
	cfg    Config
	source Source
	waker  Waker // the source, where it is one
	sink   Sink
	log    *repeat.Log
	grace  time.Duration
	now    func() time.Time // time.Now, but in simulated time

	inbox   *inbox
	trust   atomic.Pointer[time.Time] // see Holder.Trust; nil for good
	term    atomic.Uint64             // how often lanes were lost
	reads   chan *source.Read
	abandon atomic.Pointer[context.CancelFunc] // ends the read that is out
	runs    *runQueue
	delete  chan []int64

	mu       sync.Mutex // guards what follows
	engine   *Engine
	drainers map[source.Lane]func(source.Lane)
	turn     time.Time // when the loop last went round
	readErr  trouble
	readOut  time.Time // when the read that is out was sent; zero while none is
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
	waker, _ := src.(Waker)
	return &Forwarder{
		cfg:      cfg,
		source:   src,
		waker:    waker,
		sink:     sink,
		log:      repeat.New(log, LogEvery),
		grace:    grace,
		now:      time.Now,
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

	err := f.loop(ctx, owner, owned)
	disown(err)
	end()
	workers.Wait()
	return err
}

// loop is the only goroutine that feeds the engine.
func (f *Forwarder) loop(ctx context.Context, owner Owner, owned <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := ctx.Done()
	var woken <-chan struct{}
	if f.waker != nil {
		woken = f.waker.Wake()
	}
	var grace <-chan time.Time
	var failure error
	for {
		next, done := f.step(f.now())
		if done {
			return failure
		}
		timer.Reset(next)
		select {
		case <-f.inbox.wake:
		case <-timer.C:
		case <-woken:
			f.mu.Lock()
			f.engine.Wake(f.now())
			f.mu.Unlock()
		case <-stop:
			stop = nil
			f.beginStop(owner)
			grace = time.After(f.grace)
		case err := <-owned:
			owned = nil
			if err != nil {
				failure = err
				stop = nil
				f.beginStop(owner)
				grace = time.After(f.grace)
			}
		case <-grace:
			s := f.Stats()
			left := fmt.Errorf("%w with %d events in flight and %d acknowledged rows not deleted: they stay in the outbox and are sent again",
				ErrGrace, s.Flying, s.Undeleted)
			return errors.Join(failure, left)
		}
	}
}

// beginStop lets the owner give up one by one the lanes that have nothing in flight, so that
// peers do not wait for them until the last acknowledgement has come.
func (f *Forwarder) beginStop(owner Owner) {
	f.mu.Lock()
	f.engine.Stop()
	f.mu.Unlock()
	owner.Retire()
}

// pulse bounds the pause of the loop, so that Alive can tell that it turns.
const pulse = time.Second

// step takes in what arrived and does what the engine wants. It returns how long it may wait
// for more.
func (f *Forwarder) step(now time.Time) (wait time.Duration, done bool) {
	term := f.term.Load() // before the inbox is emptied: see Lose
	in := f.inbox.take()
	f.mu.Lock()
	f.turn = now
	recall := f.takeIn(now, &in)
	ready := f.engine.Ready(now)
	var calls []func()
	for _, lane := range ready.Drained {
		if call := f.drainers[lane]; call != nil {
			delete(f.drainers, lane)
			calls = append(calls, func() { call(lane) })
		}
	}
	if ready.Read != nil {
		f.readOut = now
	}
	done = f.engine.Done()
	f.mu.Unlock()

	f.inbox.recycle(in)
	if recall {
		f.takeBack()
	}
	if ready.Read != nil {
		f.read(ready.Read)
	}
	if len(ready.Submit) > 0 {
		f.runs.put(batch{term, ready.Submit})
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

// takeIn feeds the engine. The order matters: lanes are lost before outcomes are looked at. It
// reports whether lanes were lost while something was in flight: the end of the trust need not
// have been noticed before, when the whole process was stopped.
func (f *Forwarder) takeIn(now time.Time, in *arrivals) (recall bool) {
	for _, c := range in.changes {
		switch c.kind {
		case gain:
			f.engine.Gain(now, c.lanes...)
		case lose:
			f.engine.Lose(c.lanes...)
			recall = f.engine.flying > 0
		case trust:
			f.engine.Trust(now, c.until)
		case drain:
			for _, lane := range c.lanes {
				f.drainers[lane] = c.done
			}
			f.engine.Drain(c.lanes...)
		}
	}
	for _, d := range in.deleting {
		f.engine.Deleting(now, d.ids, d.xid)
	}
	f.engine.Outcomes(now, in.outcomes)
	if in.answered {
		f.readOut = time.Time{}
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
	return recall
}

// takeBack ends what was begun under a lease that is lost: records that are not on the wire yet,
// and the read that is out, which may wait for a connection that is dead without a word.
func (f *Forwarder) takeBack() {
	f.sink.Recall()
	if abandon := f.abandon.Load(); abandon != nil {
		(*abandon)()
	}
}

// read asks for a page. What comes from memory spares two changes of goroutine, which cost more
// than the page where events come one by one.
func (f *Forwarder) read(read *source.Read) {
	if f.waker != nil {
		if page := f.waker.FromMemory(read); page != nil {
			f.inbox.page(page, nil)
			return
		}
	}
	f.reads <- read // never blocks: one read at a time
}

func (f *Forwarder) readLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case read := <-f.reads:
			once, abandon := context.WithCancel(ctx)
			f.abandon.Store(&abandon)
			page, err := f.source.Read(once, read)
			abandon()
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
			err := f.source.Delete(ctx, ids, func(xid uint64) { f.inbox.deleting(deleting{ids, xid}) })
			if err != nil && ctx.Err() == nil {
				f.log.Log(ctx, slog.LevelWarn, "delete", "deleting acknowledged rows failed, it is tried again", "count", len(ids), "err", err)
			} else if err == nil {
				f.log.Recovered("delete", "acknowledged rows are deleted again")
			}
			f.inbox.deleted(deleted{ids, err})
		}
	}
}

func (f *Forwarder) submitLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.runs.wake:
			for _, b := range f.runs.take() {
				f.submit(b)
			}
		}
	}
}

// ErrLeaseEnded is the error of events that were not submitted because the trust in the lease
// had ended.
var ErrLeaseEnded = errors.New("the lease ended before the event was submitted")

// submit looks at the clock once more: between the engine's decision and now, the process may
// have been stopped for longer than the lease. Trust that was won anew since then is none in
// lanes that were lost in between.
func (f *Forwarder) submit(b batch) {
	until := f.trust.Load() // before the term: see Lose
	if f.term.Load() == b.term && (until == nil || f.now().Before(*until)) {
		f.sink.Submit(b.runs, f.inbox.report)
		return
	}
	for _, run := range b.runs {
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

// Lose implements Holder. The new term begins once the engine is going to hear of the loss,
// and before any later Trust: what is decided in the new term knows of the loss, and what was
// decided in the old one meets either the old trust or the new term.
func (f *Forwarder) Lose(lanes []source.Lane) {
	f.inbox.change(change{kind: lose, lanes: lanes})
	f.term.Add(1)
}

// Drain implements Holder.
func (f *Forwarder) Drain(lanes []source.Lane, done func(source.Lane)) {
	f.inbox.change(change{kind: drain, lanes: lanes, done: done})
}
