package postgres

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-forwarder/forwarder/internal/repeat"
	"github.com/outbox-forwarder/forwarder/lanes"

	"github.com/outbox-forwarder/forwarder/source"
)

// link keeps a stream's connection to the log: it is made anew whenever it is lost, and its
// state is told.
type link struct {
	src *Source
	cfg Config
	log *repeat.Log
	// look judges the slot's lag; nil does not.
	look func(ctx context.Context, lag SlotLag) error

	mu      sync.Mutex // guards what follows
	current *logReader // nil while there is no log
	since   time.Time  // when the log was last gained or lost
	waits   string     // why there is no log, in an operator's words
	broken  bool       // and nobody but an operator mends it
	begun   uint64     // how often the log was gained
	slot    SlotLag
}

func newLink(src *Source) *link {
	return &link{src: src, cfg: src.cfg, log: repeat.New(src.log, lanes.LogEvery), since: time.Now(), waits: "it is starting"}
}

const (
	minReconnect = 100 * time.Millisecond
	maxReconnect = 5 * time.Second
	// maxInUse is for a slot that its last holder is about to let go of.
	maxInUse = 500 * time.Millisecond
)

// keep follows the log until ctx is done, with pauses that grow while it cannot be had.
func (l *link) keep(ctx context.Context, follow func(context.Context) error) {
	pause := minReconnect
	for {
		began := time.Now()
		err := follow(ctx)
		if ctx.Err() != nil {
			return
		}
		l.lost(ctx, err)
		if time.Since(began) > time.Minute {
			pause = minReconnect
		}
		if sqlState(err) == objectInUse {
			pause = min(pause, maxInUse)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxReconnect)
	}
}

// Causes for the log's own log.
const (
	causeLost   = "lost"
	causeBroken = "broken"
	causeSlot   = "slot"
	causeBudget = "budget"
	causeHeld   = "held"
)

// lost notes why there is no log, and says so.
func (l *link) lost(ctx context.Context, err error) {
	text := plain(err)
	var broken *brokenError
	isBroken := errors.As(err, &broken)
	if isBroken {
		text = broken.problem
	}
	l.mu.Lock()
	if l.current != nil {
		l.current, l.since = nil, time.Now()
	}
	l.waits, l.broken, l.slot = text, isBroken, SlotLag{}
	l.mu.Unlock()
	if isBroken {
		l.log.Log(ctx, slog.LevelError, causeBroken, "the log cannot be streamed until this is mended", "table", l.src.Table(), "problem", text)
		return
	}
	switch sqlState(err) {
	case limitExceeded, tooManyConnections:
		l.warn(ctx, causeLost, "no replication slot or connection is free, it is tried again", "err", text)
	case objectInUse:
		l.warn(ctx, causeLost, "somebody else still streams from the replication slot, it is tried again", "err", text)
	default:
		l.warn(ctx, causeLost, "the log cannot be streamed, it is tried again", "err", text)
	}
}

// gained notes that the log is there.
func (l *link) gained(reader *logReader, slot string) {
	l.mu.Lock()
	l.current, l.since, l.waits, l.broken = reader, time.Now(), "", false
	l.begun++
	first := l.begun == 1
	l.mu.Unlock()
	if first {
		l.src.log.Info("streaming", "table", l.src.Table(), "slot", slot, "publication", l.cfg.Publication)
	}
	l.log.Recovered(causeLost, "the log is streamed again", "slot", slot)
	l.log.Recovered(causeBroken, "the log is streamed again", "slot", slot)
}

// idle notes that there is nothing to stream for us.
func (l *link) idle(why string) {
	l.mu.Lock()
	l.current, l.since, l.waits, l.broken, l.slot = nil, time.Now(), why, false, SlotLag{}
	l.mu.Unlock()
}

// wait notes what the log waits for, before it is there.
func (l *link) wait(what string) {
	l.mu.Lock()
	l.waits = what
	l.mu.Unlock()
}

// warn says something about the outbox, at most once in a while for each cause.
func (l *link) warn(ctx context.Context, cause, what string, args ...any) {
	l.log.Log(ctx, slog.LevelWarn, cause, what, append([]any{"table", l.src.Table()}, args...)...)
}

func (l *link) unready() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.broken {
		return nil
	}
	return []string{l.waits}
}

// dial looks whether the log would tell of every row, and connects to it.
func (l *link) dial(ctx context.Context) (*replication, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	repl, err := dialReplication(ctx, l.cfg)
	if err != nil {
		if problem := refusal(err, l.src.pool.Config().ConnConfig.User); problem != "" {
			return nil, &brokenError{problem}
		}
		return nil, err
	}
	return repl, nil
}

// check returns a brokenError for a publication that leaves rows out.
func (l *link) check(ctx context.Context) error {
	problems, err := publicationProblems(ctx, l.src.pool, l.cfg)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return &brokenError{(&source.SetupError{Problems: problems}).Error()}
	}
	return nil
}

// slotPatience is how long the creation of a slot may take before it is told what it waits for.
const slotPatience = 3 * time.Second

// createSlot creates a slot, and says what it waits for.
func (l *link) createSlot(ctx context.Context, repl *replication, slot string, kind slotKind) (pglogrepl.LSN, error) {
	watching, end := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { l.watchCreation(watching, repl.conn.PID()) })
	point, err := repl.createSlot(ctx, slot, kind)
	end()
	watcher.Wait()
	if sqlState(err) == notInState {
		return 0, &brokenError{plain(err)} // wal_level
	}
	if err == nil {
		l.log.Recovered(causeSlot, "the replication slot is there", "slot", slot)
	}
	return point, err
}

func (l *link) watchCreation(ctx context.Context, pid uint32) {
	ticker := time.NewTicker(slotPatience)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		b, err := l.src.blocker(ctx, pid)
		if err != nil || b == nil {
			continue // nothing to tell, or nobody to ask
		}
		l.wait("the replication slot waits for " + b.String())
		l.warn(ctx, causeSlot, "the replication slot waits for a transaction to end",
			"pid", b.pid, "xid", b.xid, "age", b.age.Round(time.Second), "application", b.application, "state", b.state)
	}
}

// checkEvery is how often it is looked whether the log still tells of the outbox.
const checkEvery = 10 * time.Second

// watch ends with an error when the log does not tell of every row any more.
func (l *link) watch(ctx context.Context, slot string) error {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		once, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
		lag, err := l.src.slotLag(once, slot)
		if err == nil {
			l.mu.Lock()
			l.slot = lag
			l.mu.Unlock()
			if l.look != nil {
				err = l.look(once, lag)
			}
		} else if sqlState(err) != cannotConnectNow {
			err = nil
		}
		if err == nil {
			err = l.check(once)
		}
		cancel()
		if sqlState(err) == cannotConnectNow {
			// It would wait for us until all of its log is confirmed.
			return errors.New("the server shuts down")
		}
		var broken *brokenError
		if errors.As(err, &broken) || errors.Is(err, errOverBudget) { // a database that does not answer shows elsewhere
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// newReader returns the reader of the log that begins at a point, for everything of the outbox.
func (l *link) newReader(repl *replication, point pglogrepl.LSN, near uint64, deliver func(context.Context, chunk) error) *logReader {
	r := &logReader{
		repl:    repl,
		decoder: decoder{table: l.src.stmts.Load().table, topics: make(map[string]string)},
		deliver: deliver,
		resolve: l.src.resolve,
		near:    near,
		note: func(what string, args ...any) {
			l.warn(context.Background(), what, what, args...)
		},
	}
	r.received.Store(uint64(point))
	return r
}
