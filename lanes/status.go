package lanes

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Stats returns the counts and gauges of now.
func (f *Forwarder) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.engine.Stats(time.Now())
}

// Parked lists what waits because it could not be delivered or has no answer, oldest first.
func (f *Forwarder) Parked() []Parked {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.engine.Parked()
}

// RetryParked makes everything that waits after a failure due now, and returns how many parts
// that are.
func (f *Forwarder) RetryParked() int {
	f.mu.Lock()
	n := f.engine.RetryAll(time.Now())
	f.mu.Unlock()
	f.inbox.add(func(*arrivals) {})
	return n
}

// Alive reports whether the loop turns.
func (f *Forwarder) Alive() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.turn.IsZero() || time.Since(f.turn) < 10*pulse
}

// readPatience is how long a read may be without an answer before that is a reason not to be
// ready: a connection that died without a word shows no error for longer.
const readPatience = 10 * time.Second

// Unready lists in words what keeps events from being forwarded; empty when nothing does.
func (f *Forwarder) Unready() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var reasons []string
	add := func(t trouble, what string) {
		if t.err != nil {
			reasons = append(reasons, fmt.Sprintf("%s for %v: %v", what, time.Since(t.since).Round(time.Second), t.err))
		}
	}
	// A member without lanes has nothing to read, and is ready to take some.
	if standby := f.trust.Load() != nil && f.engine.owns[owned] == 0; !f.begun && !standby && f.readErr.err == nil {
		reasons = append(reasons, "starting: no page of the outbox was read yet")
	}
	if f.engine.suspended {
		reasons = append(reasons, "the lease was not renewed in time: nothing is submitted until it is")
	}
	if out := time.Since(f.readOut); !f.readOut.IsZero() && out > readPatience {
		reasons = append(reasons, fmt.Sprintf("reading the outbox has had no answer for %v", out.Round(time.Second)))
	}
	add(f.readErr, "reading the outbox has failed")
	add(f.delErr, "deleting acknowledged rows has failed")
	add(f.paused, "the broker side has refused records")
	return reasons
}

// logNotes logs changes of state.
func (f *Forwarder) logNotes(notes []Note) {
	ctx := context.Background()
	for _, n := range notes {
		switch n.Kind {
		case Blocked:
			msg := "an event cannot be delivered: it and what must follow it wait"
			f.log.Log(ctx, slog.LevelWarn, n.Part.String(), msg,
				"part", n.Part.String(), "id", n.Name, "topic", n.Part.Topic, "class", n.Class.String(), "size", n.Size,
				"attempts", n.Attempts, "retry_in", time.Until(n.RetryAt).Round(time.Millisecond), "err", n.Err)
		case Healed:
			f.log.Recovered(n.Part.String(), "delivered again", "part", n.Part.String(), "attempts", n.Attempts)
		case Paused:
			f.setPaused(n.Err)
			f.log.Log(ctx, slog.LevelWarn, "paused", "the broker side is in trouble: nothing is submitted for a moment",
				"attempts", n.Attempts, "retry_in", time.Until(n.RetryAt).Round(time.Millisecond), "err", n.Err)
		case Resumed:
			f.setPaused(nil)
			f.log.Recovered("paused", "the broker acknowledges again")
		case LeaseEnded:
			f.takeBack()
			f.log.Log(ctx, slog.LevelWarn, "lease", "the leases were not renewed in time: nothing is submitted until they are", "lanes", n.Count)
		case Stalled:
			f.log.Log(ctx, slog.LevelWarn, "stalled "+n.Part.Topic, "some events get no answer from the broker while others do: they wait with their keys",
				"topic", n.Part.Topic, "id", n.Name, "err", n.Err)
		case Flowing:
			f.log.Recovered("stalled "+n.Part.Topic, "all events of the topic get answers again", "topic", n.Part.Topic)
		case Violation:
			f.log.Log(ctx, slog.LevelError, "violation", "an event was acknowledged before an earlier one of its key",
				"topic", n.Part.Topic, "id", n.LaterName, "earlier_id", n.Name, "err", n.Err)
		}
	}
}

func (f *Forwarder) setPaused(err error) {
	f.mu.Lock()
	f.paused.set(err, time.Now())
	f.mu.Unlock()
}
