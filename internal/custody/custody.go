package custody

import (
	"context"
	"sync"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// Custody knows which lanes are ours, and so when the log may be read. When all of them are to be
// given up, they are kept until the log was let go of: whoever has them next must find the last
// position confirmed, and the log free.
type Custody struct {
	mu      sync.Mutex           // guards what follows
	lanes   map[source.Lane]bool // ours; true while a lane is drained
	kept    []func()             // what gives up the lanes that are kept
	end     func()               // ends the reading of the log; nil while it is not read
	until   time.Time            // when the lanes stop being ours without further word; zero for never
	changed chan struct{}        // holds a token when lanes were gained or the trust in them renewed
}

// New returns a custody of no lanes.
func New() *Custody {
	return &Custody{lanes: make(map[source.Lane]bool), changed: make(chan struct{}, 1)}
}

// Wait blocks until there are lanes of ours, and returns a context that ends with them. ok is
// false when ctx is done before.
func (c *Custody) Wait(ctx context.Context) (held context.Context, ok bool) {
	for {
		c.mu.Lock()
		if len(c.lanes) > 0 && ctx.Err() == nil {
			held, c.end = context.WithCancel(ctx)
			c.mu.Unlock()
			return held, true
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, false
		case <-c.changed:
		}
	}
}

// Trusts reports whether the lanes are ours for certain. Where the process was stopped for longer than
// its lease, it need not have heard of their loss.
func (c *Custody) Trusts() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until.IsZero() || time.Now().Before(c.until)
}

// AwaitTrust blocks until Trusts, or held, which Wait gave, is done.
func (c *Custody) AwaitTrust(held context.Context) error {
	for !c.Trusts() {
		select {
		case <-held.Done():
			return held.Err()
		case <-c.changed:
		}
	}
	return nil
}

// Release says that the log was let go of: what was kept is given up.
func (c *Custody) Release() {
	c.mu.Lock()
	if c.end != nil {
		c.end() // for its resources
		c.end = nil
	}
	kept := c.take()
	c.mu.Unlock()
	call(kept)
}

func (c *Custody) take() []func() {
	kept := c.kept
	c.kept = nil
	return kept
}

func call(list []func()) {
	for _, f := range list {
		f()
	}
}

// Holds reports whether lanes are ours.
func (c *Custody) Holds() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lanes) > 0
}

func (c *Custody) gain(list []source.Lane) {
	c.mu.Lock()
	for _, lane := range list {
		c.lanes[lane] = false
	}
	kept := c.take() // the log is read on
	c.tell()
	c.mu.Unlock()
	call(kept)
}

func (c *Custody) tell() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *Custody) trust(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = until
	c.tell()
}

// lose ends the reading of the log with the last lane.
func (c *Custody) lose(list []source.Lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, lane := range list {
		delete(c.lanes, lane)
	}
	if len(c.lanes) == 0 && c.end != nil {
		c.end()
	}
}

func (c *Custody) drain(list []source.Lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, lane := range list {
		if _, ours := c.lanes[lane]; ours {
			c.lanes[lane] = true
		}
	}
}

// finish is lose for a lane that was drained, which give gives up: at once where the log is not
// read, or read on for lanes that stay.
func (c *Custody) finish(lane source.Lane, give func()) {
	c.mu.Lock()
	delete(c.lanes, lane)
	stays := c.end == nil
	for _, draining := range c.lanes {
		stays = stays || !draining
	}
	c.kept = append(c.kept, give)
	var now []func()
	if stays {
		now = c.take()
	} else if len(c.lanes) == 0 {
		c.end()
	}
	c.mu.Unlock()
	call(now)
}

// Owner returns an owner that also tells the custody which lanes are ours: the forwarder must be
// run with it.
func (c *Custody) Owner(next lanes.Owner) lanes.Owner { return owner{next, c} }

// owner tells a custody what an owner decides.
type owner struct {
	lanes.Owner
	custody *Custody
}

// Own implements lanes.Owner.
func (o owner) Own(ctx context.Context, h lanes.Holder) error {
	return o.Owner.Own(ctx, holder{h, o.custody})
}

// holder passes on what an owner tells, and tells a custody.
type holder struct {
	next    lanes.Holder
	custody *Custody
}

// Gain implements lanes.Holder.
func (h holder) Gain(list []source.Lane) {
	h.custody.gain(list)
	h.next.Gain(list)
}

// Lose implements lanes.Holder.
func (h holder) Lose(list []source.Lane) {
	h.next.Lose(list)
	h.custody.lose(list)
}

// Drain implements lanes.Holder.
func (h holder) Drain(list []source.Lane, done func(source.Lane)) {
	h.custody.drain(list)
	h.next.Drain(list, func(lane source.Lane) { h.custody.finish(lane, func() { done(lane) }) })
}

// Trust implements lanes.Holder.
func (h holder) Trust(until time.Time) {
	h.custody.trust(until)
	h.next.Trust(until)
}
