package postgres

import (
	"context"

	"sync"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// custody knows which lanes are ours, and so when the log may be read. When all of them are to be
// given up, they are kept until the log was let go of: whoever has them next must find the last
// position confirmed and the slot free.
type custody struct {
	mu      sync.Mutex           // guards what follows
	lanes   map[source.Lane]bool // ours; true while a lane is drained
	kept    []func()             // what gives up the lanes that are kept
	end     func()               // ends the reading of the log; nil while it is not read
	changed chan struct{}        // holds a token when lanes were gained
}

func newCustody() *custody {
	return &custody{lanes: make(map[source.Lane]bool), changed: make(chan struct{}, 1)}
}

// wait blocks until there are lanes of ours, and returns a context that ends with them. ok is
// false when ctx is done before.
func (t *custody) wait(ctx context.Context) (held context.Context, ok bool) {
	for {
		t.mu.Lock()
		if len(t.lanes) > 0 && ctx.Err() == nil {
			held, t.end = context.WithCancel(ctx)
			t.mu.Unlock()
			return held, true
		}
		t.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, false
		case <-t.changed:
		}
	}
}

// release says that the log was let go of: what was kept is given up.
func (t *custody) release() {
	t.mu.Lock()
	if t.end != nil {
		t.end() // for its resources
		t.end = nil
	}
	kept := t.take()
	t.mu.Unlock()
	call(kept)
}

func (t *custody) take() []func() {
	kept := t.kept
	t.kept = nil
	return kept
}

func call(list []func()) {
	for _, f := range list {
		f()
	}
}

func (t *custody) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lanes) > 0
}

func (t *custody) gain(list []source.Lane) {
	t.mu.Lock()
	for _, lane := range list {
		t.lanes[lane] = false
	}
	kept := t.take() // the log is read on
	select {
	case t.changed <- struct{}{}:
	default:
	}
	t.mu.Unlock()
	call(kept)
}

// lose ends the reading of the log with the last lane.
func (t *custody) lose(list []source.Lane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lane := range list {
		delete(t.lanes, lane)
	}
	if len(t.lanes) == 0 && t.end != nil {
		t.end()
	}
}

func (t *custody) drain(list []source.Lane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lane := range list {
		if _, ours := t.lanes[lane]; ours {
			t.lanes[lane] = true
		}
	}
}

// finish is lose for a lane that was drained, which give gives up: at once where the log is not
// read, or read on for lanes that stay.
func (t *custody) finish(lane source.Lane, give func()) {
	t.mu.Lock()
	delete(t.lanes, lane)
	stays := t.end == nil
	for _, draining := range t.lanes {
		stays = stays || !draining
	}
	t.kept = append(t.kept, give)
	var now []func()
	if stays {
		now = t.take()
	} else if len(t.lanes) == 0 {
		t.end()
	}
	t.mu.Unlock()
	call(now)
}

// durableOwner tells a custody what an owner decides.
type durableOwner struct {
	lanes.Owner
	custody *custody
}

// Own implements lanes.Owner.
func (o durableOwner) Own(ctx context.Context, h lanes.Holder) error {
	return o.Owner.Own(ctx, durableHolder{h, o.custody})
}

// durableHolder passes on what an owner tells, and tells a custody.
type durableHolder struct {
	next    lanes.Holder
	custody *custody
}

// Gain implements lanes.Holder.
func (h durableHolder) Gain(list []source.Lane) {
	h.custody.gain(list)
	h.next.Gain(list)
}

// Lose implements lanes.Holder.
func (h durableHolder) Lose(list []source.Lane) {
	h.next.Lose(list)
	h.custody.lose(list)
}

// Drain implements lanes.Holder.
func (h durableHolder) Drain(list []source.Lane, done func(source.Lane)) {
	h.custody.drain(list)
	h.next.Drain(list, func(lane source.Lane) { h.custody.finish(lane, func() { done(lane) }) })
}

// Trust implements lanes.Holder.
func (h durableHolder) Trust(until time.Time) { h.next.Trust(until) }
