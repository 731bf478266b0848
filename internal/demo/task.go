package demo

import (
	"context"
	"errors"
	"fmt"
)

// task is a function in a goroutine of its own that somebody awaits.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // to be read after done
}

// begin runs f. Its context carries the values of ctx but not its end: the parts of a demo
// are stopped one after the other, not all at once.
func begin(ctx context.Context, f func(context.Context) error) *task {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &task{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.err = f(ctx)
	}()
	return t
}

// stop asks the function to end and returns its error when it has. It is safe twice.
func (t *task) stop() error {
	t.cancel()
	<-t.done
	return t.err
}

// stopRunning is stop for a task that may have ended before it was asked to: that has been
// reported by whoever saw it, and is no error here.
func (t *task) stopRunning() error {
	select {
	case <-t.done:
		return nil
	default:
		return t.stop()
	}
}

// errEnded says that a task that should run until it is stopped has returned.
var errEnded = errors.New("it ended by itself")

// ended is the error of a task that is done without having been stopped.
func (t *task) ended() error {
	if t.err == nil {
		return errEnded
	}
	return fmt.Errorf("%w: %w", errEnded, t.err)
}
