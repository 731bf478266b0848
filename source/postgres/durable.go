package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-forwarder/forwarder/internal/custody"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/tail"
)

// Durable is an outbox whose truth is the log, from a slot that outlives this process: rows that
// their writer deletes itself are delivered too, and messages that never were rows. One replica
// streams, the one that owns the lanes, and a position is confirmed only when everything before
// it was delivered and deleted.
type Durable struct {
	*Source
	log     *tail.Log[pglogrepl.LSN]
	link    *link
	custody *custody.Custody
	late    lateRows
	slot    string
	ours    origin // which log the positions in log belong to
	remade  time.Time
	// overspent says that the slot is to be dropped.
	overspent bool
	held      int64 // the log's ID of the event that held the slot at the last look, 0 for none
	// Times that tests shorten.
	remakeEvery time.Duration

	// Of the log that is followed.
	start   pglogrepl.LSN // confirmed when it began
	scanEnd pglogrepl.LSN // up to where the log may bring what a scan brought; 0 for none
	check   *leftBehind   // nil before it begins
}

// origin tells one log from another.
type origin struct {
	system   string
	timeline int32
	made     int // how often this process made the slot
}

var (
	_ lanes.Source = (*Durable)(nil)
	_ lanes.Waker  = (*Durable)(nil)
)

// remakeEvery is how often a slot that was lost is made anew at most.
const remakeEvery = 10 * time.Minute

// OpenDurable is OpenStream for a slot that lasts.
func OpenDurable(ctx context.Context, cfg Config) (*Durable, error) {
	src, err := openStreamed(ctx, cfg)
	var setup *source.SetupError
	if err != nil && !errors.As(err, &setup) {
		return nil, err
	}
	slot, problems, perr := checkSlot(ctx, cfg.withDefaults())
	if setup != nil {
		return nil, &source.SetupError{Problems: append(setup.Problems, problems...)}
	}
	if perr == nil && len(problems) > 0 {
		perr = &source.SetupError{Problems: problems}
	}
	if perr != nil {
		src.Close()
		return nil, perr
	}
	d := &Durable{Source: src, link: newLink(src), custody: custody.New(), slot: slot, remakeEvery: remakeEvery}
	d.link.look = d.look
	d.log = tail.NewLog[pglogrepl.LSN](tail.LogConfig{MaxBytes: 2 * src.cfg.MemoryBytes}, d.deleteRows)
	return d, nil
}

// Read implements lanes.Source.
func (d *Durable) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	return d.log.Read(ctx, read)
}

// Delete implements lanes.Source.
func (d *Durable) Delete(ctx context.Context, ids []int64, began func(xid uint64)) error {
	return d.log.Delete(ctx, ids, began)
}

// Wake implements lanes.Waker.
func (d *Durable) Wake() <-chan struct{} { return d.log.Wake() }

// FromMemory implements lanes.Waker.
func (d *Durable) FromMemory(read *source.Read) *source.Page { return d.log.FromMemory(read) }

// Unready says why nothing is streamed although the lanes are ours.
func (d *Durable) Unready() []string {
	if !d.custody.Holds() {
		return nil
	}
	return d.link.unready()
}

// Owner returns an owner that also tells the stream which lanes are ours: the forwarder must be
// run with it. The lanes of a durable stream belong to one replica, all of them.
func (d *Durable) Owner(next lanes.Owner) lanes.Owner { return d.custody.Owner(next) }

// Finish lets what was read of the log be delivered, and reads no more, so that a stop or a move of
// the lanes repeats nothing. It returns early when something cannot be delivered, or ctx is done.
func (d *Durable) Finish(ctx context.Context) {
	if d.custody.Holds() {
		d.log.Finish(ctx)
	}
}

// Run streams while the lanes are ours, until ctx is done. It must outlive the forwarder, which
// gives its lanes up only when the last position is confirmed. It may be called once, and returns
// nil.
func (d *Durable) Run(ctx context.Context) error {
	defer d.custody.Release()
	var work sync.WaitGroup
	work.Go(func() { d.late.run(ctx, d.Source) })
	defer work.Wait()
	for {
		held, ok := d.custody.Wait(ctx)
		if !ok {
			return nil
		}
		d.check = nil
		d.link.keep(held, d.follow)
		d.leave()
		d.log.Reset(false)
		d.link.idle("the lanes belong to another replica")
		d.custody.Release()
	}
}

// follow reads the log from the durable slot until it is lost.
func (d *Durable) follow(ctx context.Context) (err error) {
	repl, err := d.link.dial(ctx)
	if err != nil {
		return err
	}
	defer repl.close()
	needScan, err := d.prepare(ctx, repl)
	if err != nil {
		return err
	}
	if needScan {
		if d.scanEnd, err = d.scan(ctx, repl); err != nil {
			return err
		}
		if needScan, err = d.awaitScan(ctx); err != nil {
			return err
		}
	} else if d.check == nil {
		if d.check, err = d.listRows(ctx); err != nil {
			return err
		}
	}
	near, err := repl.xid(ctx)
	if err != nil {
		return err
	}
	if err := repl.start(ctx, d.slot, d.cfg.Publication, d.confirmed(), true); err != nil {
		return err
	}
	reader := d.link.newReader(repl, d.start, near, d.take)
	reader.confirmed, reader.positions = d.confirmed, true
	reader.messages = (&messages{lanes: d.Lanes(), note: reader.note}).event
	d.link.gained(reader, d.slot)
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return reader.run(ctx) })
	work.Go(func() error { return d.link.watch(ctx, d.slot) })
	if needScan {
		work.Go(func() error { return d.markScanned(ctx) })
	}
	err = work.Wait()
	d.overspent = errors.Is(err, errOverBudget)
	_ = reader.confirm(false) // what is delivered by now need not come again
	return d.explain(ctx, err)
}

// explain says what mends a log that cannot be read although everything looks right by now: it is
// read as things were when it was written.
func (d *Durable) explain(ctx context.Context, err error) error {
	var broken *brokenError
	missing := sqlState(err) == undefinedObject
	if !missing && !errors.As(err, &broken) {
		return err
	}
	now, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.Timeout)
	defer cancel()
	if d.link.check(now) != nil {
		return err
	}
	problem := fmt.Sprintf("publication %s was made after the position of slot %s, and is not there for it", d.cfg.Publication, d.slot)
	if !missing {
		problem = broken.problem + "; rows that were written meanwhile stay in the log as they are"
	}
	return &brokenError{fmt.Sprintf("%s: where waiting does not help, stop the forwarder and drop the slot with `forwarder slots drop %s`: it is then made anew, and what is in the table is delivered", problem, d.slot)}
}

// confirmed is up to where everything was delivered and deleted.
func (d *Durable) confirmed() pglogrepl.LSN {
	if position, ok := d.log.Confirmed(); ok {
		return max(position, d.start)
	}
	return d.start
}

// take hands a chunk of the log on.
func (d *Durable) take(ctx context.Context, c chunk) error {
	if c.xid == 0 {
		d.log.Idle(c.position)
	} else {
		entries := make([]tail.Entry, len(c.events))
		for i, ev := range c.events {
			entries[i] = tail.Entry{Event: ev, NoRow: ev.Ref != ""}
			if ev.Ref == "" {
				d.check.seen(ev.ID)
			}
		}
		if err := d.log.Append(ctx, c.position, c.end, entries); err != nil {
			return err
		}
	}
	if !c.end {
		return nil
	}
	if d.scanEnd != 0 && c.position >= d.scanEnd {
		d.log.EndSkip()
		d.scanEnd = 0
	}
	if d.check.reached(c.position) {
		return d.judge(ctx)
	}
	return nil
}

// deleteRows is the log's Deleter.
func (d *Durable) deleteRows(ctx context.Context, rows []int64, began func(xid uint64)) error {
	var xid uint64
	found, err := d.DeleteRows(ctx, rows, func(x uint64) {
		xid = x
		began(x)
	})
	if err == nil && found < len(rows) {
		d.late.add(rows, xid)
	}
	return err
}

// look is told the slot's lag every checkEvery.
func (d *Durable) look(ctx context.Context, lag SlotLag) error {
	d.tellHeld(ctx, lag)
	return d.overBudget(ctx, lag)
}

// tellHeld names the event that has held the slot since the last look.
func (d *Durable) tellHeld(ctx context.Context, lag SlotLag) {
	last := d.held
	d.held = 0
	ev, at := d.log.Holding()
	if ev != nil {
		d.held = ev.ID
	}
	if d.held == 0 || d.held != last {
		d.link.log.Recovered(causeHeld, "the replication slot moves on", "slot", d.slot)
		return
	}
	args := []any{"slot", d.slot, "id", ev.Name(), "topic", ev.Topic, "retained_bytes", lag.Retained}
	if at != 0 {
		args = append(args, "lsn", at.String())
	}
	d.link.warn(ctx, causeHeld, "an event that is not delivered holds the replication slot, and the server keeps its log from there on: `forwarder parked` says why", args...)
}

// overBudget warns of a slot that keeps too much log, and says whether it is to be dropped.
func (d *Durable) overBudget(ctx context.Context, lag SlotLag) error {
	if d.cfg.SlotBudget == 0 || lag.Retained <= d.cfg.SlotBudget {
		d.link.log.Recovered(causeBudget, "the replication slot keeps less log than its budget again", "slot", d.slot)
		return nil
	}
	d.link.warn(ctx, causeBudget, "the replication slot keeps more log than its budget", "slot", d.slot,
		"retained_bytes", lag.Retained, "budget_bytes", d.cfg.SlotBudget, "confirmed_lsn", d.confirmed().String())
	if d.cfg.DropOverBudget {
		return errOverBudget
	}
	return nil
}

var (
	// errOverBudget ends a stream whose slot is to be dropped.
	errOverBudget = errors.New("the replication slot keeps more log than its budget")
	// errLeftBehind ends a stream that does not bring every row.
	errLeftBehind = errors.New("the table is to be scanned")
)

// DurableStats is a copy of what a Durable counts.
type DurableStats struct {
	LinkStats
	tail.LogStats
	Confirmed pglogrepl.LSN
}

// Stats returns the counts of now.
func (d *Durable) Stats() DurableStats {
	confirmed, _ := d.log.Confirmed()
	return DurableStats{d.link.stats(), d.log.Stats(), confirmed}
}

// Describe implements prometheus.Collector.
func (d *Durable) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(d, ch) }

// Collect implements prometheus.Collector.
func (d *Durable) Collect(ch chan<- prometheus.Metric) {
	stats := d.Stats()
	stats.LinkStats.collect(ch)
	stats.LogStats.Collect(ch)
	ch <- prometheus.MustNewConstMetric(confirmedDesc, prometheus.GaugeValue, float64(stats.Confirmed))
}
