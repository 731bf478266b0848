package lanes

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// silentSource answers reads with empty pages while it is told to, and else not before the
// caller gives up.
type silentSource struct{ answers chan struct{} }

func (s silentSource) Read(ctx context.Context, _ *source.Read) (*source.Page, error) {
	select {
	case <-s.answers:
		return &source.Page{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (silentSource) Delete(context.Context, []int64, func(uint64)) error { return nil }

type noSink struct{}

func (noSink) Submit([][]*source.Event, func([]source.Outcome)) {}
func (noSink) Recall()                                          {}

// TestUnreadyWhileAReadHasNoAnswer has a database whose connection dies without a word: no
// error comes for long, and that must not look like an idle outbox.
func TestUnreadyWhileAReadHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := silentSource{answers: make(chan struct{})}
		f, err := NewForwarder(Config{Lanes: 1}, src, noSink{}, slog.New(slog.DiscardHandler), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx, Sole{Lanes: 1}) }()
		src.answers <- struct{}{}
		time.Sleep(readPatience / 2) // virtual
		synctest.Wait()
		if got := f.Unready(); len(got) != 0 {
			t.Errorf("a read without an answer for %v is a reason already: %q", readPatience/2, got)
		}
		time.Sleep(readPatience)
		synctest.Wait()
		if got := f.Unready(); len(got) != 1 || !strings.Contains(got[0], "no answer for 1") {
			t.Errorf("not ready for %q, want that the read has no answer", got)
		}
		src.answers <- struct{}{}
		synctest.Wait()
		if got := f.Unready(); len(got) != 0 {
			t.Errorf("not ready for %q after an answer", got)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("stopped with %v", err)
		}
	})
}

// TestReadIsAbandonedWithTheLease: a read that has no answer does not outlive the lease, so that
// the lanes are read anew as soon as there is one again.
func TestReadIsAbandonedWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := NewForwarder(Config{Lanes: 1}, silentSource{}, noSink{}, slog.New(slog.DiscardHandler), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx, standby{trusted: 20 * time.Second, lanes: []source.Lane{0}}) }()
		for _, c := range []struct {
			after time.Duration
			out   bool
		}{{19 * time.Second, true}, {2 * time.Second, false}} {
			time.Sleep(c.after) // virtual
			synctest.Wait()
			f.mu.Lock()
			out := !f.readOut.IsZero()
			f.mu.Unlock()
			if out != c.out {
				t.Errorf("%v later a read is out: %v", c.after, out)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// standby is an Owner that is a member for as long as it says, with the lanes that it says.
type standby struct {
	trusted time.Duration
	lanes   []source.Lane
}

func (s standby) Own(ctx context.Context, h Holder) error {
	h.Trust(time.Now().Add(s.trusted))
	h.Gain(s.lanes)
	<-ctx.Done()
	return nil
}

func (standby) Retire() {}

// TestReadyWithoutLanes: a replica that stands by is ready, until its lease ends.
func TestReadyWithoutLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := NewForwarder(Config{Lanes: 1}, silentSource{}, noSink{}, slog.New(slog.DiscardHandler), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Unready(); len(got) != 1 || !strings.Contains(got[0], "starting") {
			t.Errorf("before the start it is not ready for %q", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx, standby{trusted: time.Minute}) }()
		time.Sleep(time.Second) // virtual
		synctest.Wait()
		if got := f.Unready(); len(got) != 0 {
			t.Errorf("standing by it is not ready for %q", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := f.Unready(); len(got) != 1 || !strings.Contains(got[0], "lease") {
			t.Errorf("after the lease it is not ready for %q, want the lease", got)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
