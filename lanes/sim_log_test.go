package lanes

import (
	"context"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/tail"
)

// TestSimulationWithMirror runs the same worlds with a mirror of the table between that and the
// engine, which a log feeds that is lost now and then.
func TestSimulationWithMirror(t *testing.T) {
	forSeeds(t, func(seed uint64) error {
		_, err := simulate(seed, &changes{})
		return err
	})
}

// changes is the log of the table, and the mirror of the engine that lives now.
type changes struct {
	mirror   *tail.Mirror
	attached bool
	log      []*transaction // committed, in that order
	at       int            // of the reader
}

// begin gives a new engine a mirror of its own.
func (c *changes) begin(s *simulation) {
	first := c.mirror == nil
	c.mirror = tail.NewMirror(tail.Config{
		MaxEvents: pick(s.r, 1, 10, 100, 10000),
		MaxBytes:  pick(s.r, 1000, 10000, 1<<20),
		Patience:  -1,
		Resync:    pick(s.r, 20*time.Millisecond, 200*time.Millisecond, time.Second),
		Now:       func() time.Time { return s.now },
	}, outbox{s})
	c.attached = false
	s.after(s.latency(), func() { c.attach(s) })
	if first {
		s.repeat(s.plan.latency+500*time.Millisecond, func() { c.lose(s) })
	}
}

func (c *changes) attach(s *simulation) {
	if c.attached {
		return
	}
	c.attached = true
	c.at = len(c.log)
	tx := &transaction{}
	s.table.takeXid(tx)
	s.table.end(tx, true)
	c.mirror.Attach(tx.xid)
	c.wake(s)
}

// lose ends the log, and begins another one later.
func (c *changes) lose(s *simulation) {
	c.attached = false
	c.mirror.Detach()
	c.wake(s)
	s.after(s.spell()/4, func() { c.attach(s) })
}

// commit writes a transaction to the log, whose reader gets to it later.
func (c *changes) commit(s *simulation, tx *transaction) {
	if len(tx.rows) == 0 {
		return
	}
	c.log = append(c.log, tx)
	s.after(s.latency()/2, func() { c.follow(s) })
}

// follow lets the reader of the log take one step.
func (c *changes) follow(s *simulation) {
	if !c.attached || c.at == len(c.log) {
		return
	}
	tx := c.log[c.at]
	c.at++
	var events []*source.Event
	for _, r := range tx.rows {
		if c.mirror.Wants(r.Lane) {
			events = append(events, r.Event)
		}
	}
	if err := c.mirror.Append(context.Background(), tx.xid, events, len(events) < len(tx.rows)); err != nil {
		failf("appending: %v", err)
	}
	c.wake(s)
}

// wake brings the mirror's word to the engine.
func (c *changes) wake(s *simulation) {
	select {
	case <-c.mirror.Wake():
		s.answer(s.generation, 0, func() { s.engine.Wake(s.now) })
	default:
	}
}

// read returns what answers the reads of the engine that lives now.
func (c *changes) read() func(*source.Read) *source.Page {
	mirror := c.mirror
	return func(read *source.Read) *source.Page {
		page, err := mirror.Read(context.Background(), read)
		if err != nil {
			failf("reading: %v", err)
		}
		return page
	}
}

// remove returns what deletes rows for the engine that lives now.
func (c *changes) remove() func([]int64) {
	mirror := c.mirror
	return func(ids []int64) {
		if err := mirror.Delete(context.Background(), ids, func(uint64) {}); err != nil {
			failf("deleting: %v", err)
		}
	}
}

// outbox is the table as the mirror sees it.
type outbox struct{ s *simulation }

func (o outbox) Read(_ context.Context, read *source.Read) (*source.Page, error) {
	return o.s.table.read(read), nil
}

func (o outbox) DeleteRows(_ context.Context, ids []int64, _ func(uint64)) (int, error) {
	n := 0
	for _, id := range ids {
		if !o.s.table.byID[id].deleted {
			n++
		}
	}
	o.s.remove(ids)
	return n, nil
}
