package oracle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// WriterConfig describes a workload. The zero value of a field means its default.
type WriterConfig struct {
	URL    string // of the database, required
	Tables Tables
	Topics []string // required
	// Connections work at the same time, default 8. Keys is per topic, default 1000; low
	// numbered keys are chosen more often.
	Connections, Keys int
	// Rate is the number of events per second over all connections; 0 is full speed.
	Rate float64
	// Events ends Run when about that many events were written, those that rolled back
	// included; 0 runs until the context ends.
	Events int64
	// MaxPerTransaction is the largest number of events in a transaction, default 1.
	MaxPerTransaction int
	// Rollback is the share of transactions that roll back; Hold is the share of those that
	// stay open for HoldFor between insert and commit, so that ids commit out of order.
	Rollback, Hold float64
	HoldFor        time.Duration
	// PayloadBytes is the approximate size of a payload, default 200.
	PayloadBytes int
	// Apart gives each connection keys of its own, whose order it knows by itself: a transaction is
	// one statement, and the ledger, which must have been empty, is written at the end. It is for a
	// load that takes little from what is measured. A lost connection ends Run with an error.
	Apart bool
	// Seed determines the choice of keys and of everything else that is random.
	Seed uint64
	// Stopwatch learns when each event's commit returned; may be nil.
	Stopwatch *Stopwatch
}

func (c WriterConfig) withDefaults() WriterConfig {
	for _, d := range []struct {
		field *int
		value int
	}{{&c.Connections, 8}, {&c.Keys, 1000}, {&c.MaxPerTransaction, 1}, {&c.PayloadBytes, 200}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return c
}

// Validate lists everything that is wrong with the configuration.
func (c WriterConfig) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.URL != "", "a writer needs the database's URL")
	check(len(c.Topics) > 0, "a writer needs a topic")
	for _, topic := range c.Topics {
		check(plainName(topic), "topic %q: want letters, digits, dot, dash and underscore", topic)
	}
	check(c.Connections >= 0 && c.Keys >= 0 && c.MaxPerTransaction >= 0 && c.PayloadBytes >= 0 && c.Events >= 0 && c.HoldFor >= 0,
		"a writer's counts and times must not be negative")
	check(c.Rate >= 0, "rate %v must not be negative", c.Rate)
	check(c.Rollback >= 0 && c.Rollback < 1, "rollback share %v: want 0 <= share < 1", c.Rollback)
	check(c.Hold >= 0 && c.Hold <= 1, "hold share %v: want 0 <= share <= 1", c.Hold)
	check(!c.Apart || c.Rollback == 0 && c.Hold == 0, "a writer whose connections are apart neither rolls back nor holds")
	check(!c.Apart || c.withDefaults().Keys >= c.withDefaults().Connections, "a writer whose connections are apart needs a key for each")
	return errors.Join(problems...)
}

// WriterStats counts events. An unknown one's commit was answered by a lost connection; only
// the ledger says what became of it.
type WriterStats struct {
	Committed, RolledBack, Unknown int64
	// Reconnects counts connections that were lost and made again.
	Reconnects int64
}

// Writer writes numbered events into an outbox over several connections. Writers of one key
// take turns by the lock on its ledger row, which they hold before their row takes an id.
type Writer struct {
	cfg WriterConfig

	number                                     atomic.Int64 // the last N given out
	begun                                      atomic.Int64 // events counted against cfg.Events
	committed, rolledBack, unknown, reconnects atomic.Int64
}

// NewWriter makes a writer; nothing is connected yet.
func NewWriter(cfg WriterConfig) (*Writer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w := &Writer{cfg: cfg.withDefaults()}
	// Microseconds since 1970 keep the numbers of one run apart from those of another.
	w.number.Store(time.Now().UnixMicro())
	return w, nil
}

// Stats may be called at any time.
func (w *Writer) Stats() WriterStats {
	return WriterStats{
		Committed: w.committed.Load(), RolledBack: w.rolledBack.Load(),
		Unknown: w.unknown.Load(), Reconnects: w.reconnects.Load(),
	}
}

// Run creates the ledger where there is none and writes until the context ends or Events are
// written. Transactions under way are finished. A database that is away is waited for; an
// error that waiting cannot heal ends the run.
func (w *Writer) Run(ctx context.Context) error {
	db, err := open(w.cfg.URL, w.cfg.Tables)
	if err != nil {
		return err
	}
	defer db.close(ctx)
	if err := db.createLedger(ctx); err != nil {
		return fmt.Errorf("creating the ledger: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pace := newPacer(w.cfg.Rate)
	errs := make([]error, w.cfg.Connections)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			hand := &hand{
				Writer: w, pace: pace, db: db, index: i,
				random: rand.New(rand.NewPCG(w.cfg.Seed, uint64(i))),
			}
			if w.cfg.Apart {
				hand.own = map[Stream]int64{}
			}
			if errs[i] = hand.work(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// pacer spreads events evenly over time. It does not forgive delays: what was missed is made
// up for, as independent clients of a service would.
type pacer struct {
	mu    sync.Mutex
	every time.Duration // 0 is full speed
	next  time.Time
}

func newPacer(rate float64) *pacer {
	p := &pacer{next: time.Now()}
	if rate > 0 {
		p.every = max(time.Duration(float64(time.Second)/rate), 1)
	}
	return p
}

// wait returns when n events may be written; false when the context ended first.
func (p *pacer) wait(ctx context.Context, n int) bool {
	if p.every == 0 {
		return ctx.Err() == nil
	}
	p.mu.Lock()
	// An outage of the database is not made up for with one burst.
	if oldest := time.Now().Add(-time.Second); p.next.Before(oldest) {
		p.next = oldest
	}
	at := p.next
	p.next = p.next.Add(time.Duration(n) * p.every)
	p.mu.Unlock()
	return sleep(ctx, time.Until(at))
}

// sleep waits for d; false when the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
