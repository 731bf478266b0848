package mongo

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: only a walk that was dear and found nothing delays the next one, by four times what it
// cost and a second at most.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		cost  time.Duration
		found int
		since time.Duration
		want  time.Duration
	}{
		{cheapWalk, 0, 0, 0},
		{100 * time.Millisecond, 1, 0, 0},
		{100 * time.Millisecond, 0, 0, 400 * time.Millisecond},
		{100 * time.Millisecond, 0, 300 * time.Millisecond, 100 * time.Millisecond},
		{100 * time.Millisecond, 0, time.Second, 0},
		{time.Minute, 0, 0, longest},
	} {
		synctest.Test(t, func(t *testing.T) {
			var p pace
			if err := p.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.note(c.cost, c.found)
			time.Sleep(c.since)
			begun := time.Now()
			if err := p.wait(t.Context()); err != nil || time.Since(begun) != c.want {
				t.Errorf("%+v: waited %v: %v", c, time.Since(begun), err)
			}
			p.note(time.Minute, 0)
			done, cancel := context.WithCancel(t.Context())
			cancel()
			if err := p.wait(done); !errors.Is(err, context.Canceled) {
				t.Errorf("a read that was given up waited: %v", err)
			}
		})
	}
}
