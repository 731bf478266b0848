package sourcetest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// forwarding is a forwarder over an open outbox, as a replica runs it.
type forwarding struct {
	lanes.Source
	t      testing.TB
	hand   *hand
	reads  atomic.Int64
	finish func(ctx context.Context)
	cancel context.CancelFunc
	ended  func() error
}

// hand is an owner whose lanes the test gives and takes.
type hand struct {
	holder chan lanes.Holder
	all    []source.Lane
	h      lanes.Holder
	mu     sync.Mutex
	owned  bool
}

// Own implements lanes.Owner.
func (o *hand) Own(ctx context.Context, h lanes.Holder) error {
	o.holder <- h
	<-ctx.Done()
	return nil
}

// Retire implements lanes.Owner: it drains the lanes.
func (o *hand) Retire() {
	if o.own(false) {
		o.h.Drain(o.all, func(source.Lane) {})
	}
}

func (o *hand) gain() { o.own(true); o.h.Gain(o.all) }
func (o *hand) lose() { o.own(false); o.h.Lose(o.all) }

func (o *hand) own(owned bool) (before bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, o.owned = o.owned, owned
	return before
}

// Read counts.
func (f *forwarding) Read(ctx context.Context, r *source.Read) (*source.Page, error) {
	f.reads.Add(1)
	return f.Source.Read(ctx, r)
}

// waking is a forwarding whose source tells of new rows.
type waking struct {
	*forwarding
	lanes.Waker
}

// FromMemory counts the pages.
func (w waking) FromMemory(r *source.Read) *source.Page {
	page := w.Waker.FromMemory(r)
	if page != nil {
		w.reads.Add(1)
	}
	return page
}

// start runs a replica without lanes until it is stopped or crashes; grace is how long a stop
// waits for what is in flight.
func (o Outbox) start(t testing.TB, b *broker, grace time.Duration) *forwarding {
	t.Helper()
	r := o.Open(t)
	all := make([]source.Lane, r.Lanes)
	for i := range all {
		all[i] = source.Lane(i)
	}
	f := &forwarding{Source: r.Source, t: t, hand: &hand{holder: make(chan lanes.Holder), all: all}}
	var src lanes.Source = f
	if w, ok := r.Source.(lanes.Waker); ok {
		src = waking{f, w}
	}
	cfg := lanes.Config{Lanes: r.Lanes, Record: lanes.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}}
	forwarder, err := lanes.NewForwarder(cfg, src, b, slog.New(slog.DiscardHandler), grace)
	if err != nil {
		t.Fatal(err)
	}
	var owner lanes.Owner = f.hand
	if r.Owner != nil {
		owner = r.Owner(owner)
	}
	ctx, cancel := context.WithCancel(context.Background())
	beside, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var follow sync.WaitGroup
	if r.Run != nil {
		follow.Go(func() {
			if err := r.Run(beside); err != nil {
				t.Errorf("following the log ended with: %v", err)
			}
		})
	}
	go func() {
		err := forwarder.Run(ctx, owner)
		end()
		follow.Wait()
		r.Close()
		done <- err
	}()
	f.finish = r.Finish
	f.cancel, f.ended = cancel, sync.OnceValue(func() error { return <-done })
	t.Cleanup(func() {
		cancel()
		_ = f.ended() // judged by stop
	})
	f.hand.h = <-f.hand.holder
	return f
}

// own is start with all lanes.
func (o Outbox) own(t testing.TB, b *broker) *forwarding {
	t.Helper()
	f := o.start(t, b, patience)
	f.hand.gain()
	return f
}

// stop ends the replica in order.
func (f *forwarding) stop() {
	f.t.Helper()
	if f.finish != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		f.finish(ctx)
		cancel()
	}
	f.cancel()
	if err := f.ended(); err != nil {
		f.t.Errorf("the forwarder ended with: %v", err)
	}
}

// crash ends the replica without waiting for what is in flight.
func (f *forwarding) crash() {
	f.t.Helper()
	f.cancel()
	if err := f.ended(); !errors.Is(err, lanes.ErrGrace) {
		f.t.Errorf("the forwarder ended with %v, and something should have been in flight", err)
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-tick.C
	}
}
