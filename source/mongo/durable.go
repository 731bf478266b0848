package mongo

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-forwarder/forwarder/internal/custody"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/tail"
)

// Durable is an outbox whose truth is its change stream, with a position that outlives this
// process: documents that their writer deletes itself are delivered too. One replica streams, the
// one that owns the lanes, and a position is recorded only when everything before it was delivered
// and deleted.
type Durable struct {
	*Source
	log       *tail.Log[string] // by place.key
	link      *link
	custody   *custody.Custody
	keeper    *keeper
	positions positions
	scanning  atomic.Bool // a scan was handed on whose end is not recorded

	// Of Run.
	at     place     // of the last document that came
	scan   scan      // what the stream may bring again
	reason string    // why the position is of no use any more; empty while it is
	remade time.Time // when it was last given up
}

var (
	_ lanes.Source = (*Durable)(nil)
	_ lanes.Waker  = (*Durable)(nil)
)

// OpenDurable is OpenStream for a position that lasts.
func OpenDurable(ctx context.Context, cfg Config) (*Durable, error) {
	cfg.Durable = true
	src, err := openStreamed(ctx, cfg)
	if err != nil {
		return nil, err
	}
	d := &Durable{Source: src, link: newLink(src), custody: custody.New(), keeper: newKeeper(src)}
	d.log = tail.NewLog[string](tail.LogConfig{MaxBytes: 2 * src.cfg.MemoryBytes}, src.Delete)
	d.link.idle(notOurs)
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
// gives its lanes up only when the last position is recorded. It may be called once, and returns
// nil.
func (d *Durable) Run(ctx context.Context) error {
	defer d.custody.Release()
	for {
		held, ok := d.custody.Wait(ctx)
		if !ok {
			return nil
		}
		d.link.keep(held, d.follow)
		d.log.Reset(false)
		d.link.idle(notOurs)
		d.custody.Release()
	}
}

// Why a replica does not stream that stands by, or has not heard for longer than its lease.
const (
	notOurs    = "the lanes belong to another replica"
	leaseEnded = "the lease has ended: it must be renewed first"
)

// remakeEvery is how often a position that is of no use is given up at most.
const remakeEvery = 10 * time.Second

// follow reads the change stream until it is lost, and once more from now on where its position is
// of no use any more.
func (d *Durable) follow(ctx context.Context) error {
	for {
		err := d.stream(ctx)
		if d.reason = lostPosition(err); d.reason == "" || time.Since(d.remade) < remakeEvery {
			return err
		}
	}
}

// stream reads the change stream from the recorded position until it is lost. The server lets anybody
// claim that position, so who was stopped for longer than its lease must not: another replica may
// stream by now.
func (d *Durable) stream(ctx context.Context) error {
	if !d.custody.Trusts() {
		d.link.wait(leaseEnded)
		if err := d.custody.AwaitTrust(ctx); err != nil {
			return err
		}
	}
	cp, err := d.prepare(ctx)
	if err != nil {
		return err
	}
	c := d.changes(cp.Time)
	defer c.close()
	c.token = cp.Token
	c.resumed = d.link.resumed
	d.scan = scan{}
	d.scanning.Store(false)
	if !cp.Scanned {
		if err := d.scanOutbox(ctx, c); err != nil {
			return err
		}
	}
	if err := c.open(ctx); err != nil {
		return err
	}
	d.link.gained()
	defer d.leave()
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return d.record(ctx) })
	work.Go(func() error { return d.takeAll(ctx, c) })
	return work.Wait()
}

// prepare claims the checkpoint and makes the log ready to go on from it.
func (d *Durable) prepare(ctx context.Context) (*checkpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	cp, err := d.keeper.claim(ctx)
	if err != nil {
		return nil, err
	}
	anew := d.reason != "" || cp.Time.IsZero()
	if anew {
		start, err := d.now(ctx)
		if err != nil {
			return nil, err
		}
		if d.reason != "" {
			d.Source.log.Warn("the change stream is begun anew and what is in the outbox is delivered; what is lost: documents that their writers have deleted since the last position",
				"collection", d.Table(), "reason", d.reason, "position", time.Unix(int64(cp.Time.T), 0).UTC())
		}
		if err := d.keeper.start(ctx, start); err != nil {
			return nil, err
		}
		cp = &checkpoint{Epoch: cp.Epoch, Time: start}
		if d.reason != "" {
			d.reason, d.remade = "", time.Now()
		}
	}
	d.log.Reset(anew)
	at := cp.position()
	d.at = at.place
	d.positions.begin(at)
	return cp, nil
}

// takeAll takes what the change stream brings until it is lost. Interruptions are waited for:
// nothing else tells of new documents.
func (d *Durable) takeAll(ctx context.Context, c *changes) error {
	for {
		err := d.take(ctx, c)
		var interrupted *interruptedError
		var invalidated *invalidatedError
		switch {
		case err == nil:
			continue
		case errors.As(err, &invalidated):
			// It goes on behind its end. A collection that was renamed brought documents of which
			// no insert is told.
			d.link.warn(ctx, causeLost, "the change stream has ended with its collection, it goes on with the next one of its name", "err", err)
			c.close()
			d.positions.idle(c.token)
			d.scanning.Store(false)
			if err := d.keeper.scanned(ctx, false); err != nil {
				return err
			}
			if err := d.scanOutbox(ctx, c); err != nil {
				return err
			}
		case errors.As(err, &interrupted):
			d.link.interrupted(ctx, err)
		default:
			return err
		}
		if err := pause(ctx, minReconnect); err != nil {
			return err
		}
	}
}

// take waits for changes and appends the next one.
func (d *Durable) take(ctx context.Context, c *changes) error {
	got, ok, err := c.next(ctx)
	if err != nil {
		return err
	}
	d.link.heard(got.at)
	if !ok {
		// Everything up to the token was told.
		d.scan.end()
		d.positions.idle(c.token)
		if s := d.log.Stats(); s.Waiting+s.Out == 0 {
			d.handles.clear() // of what was told again and had been delivered
		}
		return nil
	}
	if t := clusterTime(got.at); t == d.at.at {
		d.at.number++
	} else {
		d.at = place{t, 1}
	}
	key := docBytes(got.doc)
	if d.scan.brought(key, d.at.at) {
		d.log.Idle(d.at.key())
	} else {
		ev := c.event(got, nil)
		ev.ID = d.handles.fresh(key)
		if err := d.log.Append(ctx, d.at.key(), true, []tail.Entry{{Event: ev}}); err != nil {
			return err
		}
	}
	d.positions.add(d.at, c.token)
	return nil
}

const (
	// recordEvery is how often it is looked for a new position to record, and whether what was
	// scanned is delivered: what was delivered since then comes again after a crash.
	recordEvery = 200 * time.Millisecond
	// recordIdleEvery is how often one is recorded before which nothing was delivered.
	recordIdleEvery = time.Second
)

// record keeps the checkpoint until ctx is done.
func (d *Durable) record(ctx context.Context) error {
	ticker := time.NewTicker(recordEvery)
	defer ticker.Stop()
	idleAt := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		idle := time.Since(idleAt) >= recordIdleEvery
		if idle {
			idleAt = time.Now()
		}
		once, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
		err := d.recordOnce(once, idle)
		cancel()
		switch {
		case errors.Is(err, errSuperseded):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			d.link.warn(ctx, causeRecord, "recording the position failed, it is tried again", "err", err)
		default:
			d.link.log.Recovered(causeRecord, "the position is recorded again")
		}
	}
}

// recordOnce records a new position; idle says that it may be one before which nothing was delivered.
func (d *Durable) recordOnce(ctx context.Context, idle bool) error {
	if d.scanning.Load() && !d.log.Scanning() {
		if err := d.keeper.scanned(ctx, true); err != nil {
			return err
		}
		d.scanning.Store(false)
	}
	confirmed, _ := d.log.Confirmed()
	at, ok := d.positions.take(confirmed, idle)
	if !ok {
		return nil
	}
	err := d.keeper.advance(ctx, at)
	if err != nil {
		d.positions.back()
	}
	return err
}

// leaveLimit bounds the last record of a position.
const leaveLimit = 3 * time.Second

// leave records the last position: whoever streams next need not repeat what is delivered.
func (d *Durable) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	if err := d.recordOnce(ctx, true); err != nil {
		d.Source.log.Debug("recording the last position failed", "collection", d.Table(), "err", err)
	}
}

// lostPosition says why a position is of no use any more; empty where it is.
func lostPosition(err error) string {
	switch code(err) {
	case historyLost, cappedPositionLost, fatalStreamError:
		return "the position is not in the oplog any more"
	case invalidToken:
		return "the server does not know the position"
	case objectTooLarge:
		return "the next document is too large for a change stream"
	}
	return ""
}

// DurableStats is a copy of what a Durable counts.
type DurableStats struct {
	LinkStats
	tail.LogStats
}

// Stats returns the counts of now.
func (d *Durable) Stats() DurableStats { return DurableStats{d.link.stats(), d.log.Stats()} }

// Describe implements prometheus.Collector.
func (d *Durable) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(d, ch) }

// Collect implements prometheus.Collector.
func (d *Durable) Collect(ch chan<- prometheus.Metric) {
	stats := d.Stats()
	stats.LinkStats.collect(ch)
	stats.LogStats.Collect(ch)
}
