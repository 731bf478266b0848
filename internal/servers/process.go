package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// errExited is the cause when a server ends before it is ready.
var errExited = errors.New("the process ended")

// pollEvery is the pause between two looks at something that has no event to wait for.
const pollEvery = 10 * time.Millisecond

// process is one child process. A goroutine of its own starts it and reaps it.
type process struct {
	pid  int
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been reaped
	err  error         // what Wait returned; to be read after done
}

// launch starts cmd so that it dies by the signal onDeath when this process dies.
//
// The kernel sends that signal when the *thread* that started the child ends, and Go ends
// threads at will. So the child is started on a thread that is locked to a goroutine
// which stays until the child has ended.
func launch(cmd *exec.Cmd, onDeath syscall.Signal) (*process, error) {
	attachToParent(cmd, onDeath)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// end sends sig and waits for the end of the process. One that has not ended within the
// limit is killed, which is an error.
func (p *process) end(sig syscall.Signal, within time.Duration) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signalling process %d: %w", p.pid, err)
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing process %d: %w", p.pid, err)
	}
	<-p.done
	return fmt.Errorf("process %d did not end within %s of %s and was killed", p.pid, within, sig)
}

// awaitReady polls ready until it says yes, the process ends, or ctx does.
func (p *process) awaitReady(ctx context.Context, ready func() bool) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ready() {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%w before it was ready: %v", errExited, p.err)
		case <-ctx.Done():
			return fmt.Errorf("waiting until it is ready: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// child is a server's process, which is started and ended many times. Its methods may be called
// from several goroutines.
type child struct {
	what      string // the product, for errors
	stopLimit time.Duration

	mu      sync.Mutex // held while the process is started or ended
	process *process   // nil before the first start
}

// begin starts the process by start, where it does not run.
func (c *child) begin(start func() (*process, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running() {
		return nil
	}
	p, err := start()
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.what, err)
	}
	c.process = p
	return nil
}

func (c *child) running() bool { return c.process != nil && c.process.alive() }

// end ends the process by the signal, where it runs.
func (c *child) end(doing string, sig syscall.Signal) error {
	return c.alive(doing, func(p *process) error { return p.end(sig, c.stopLimit) })
}

// alive does something to the process, where it runs.
func (c *child) alive(doing string, do func(*process) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running() {
		return nil
	}
	if err := do(c.process); err != nil {
		return fmt.Errorf("%s %s: %w", doing, c.what, err)
	}
	return nil
}

// PID returns the id of the server's main process; 0 where it does not run.
func (c *child) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running() {
		return 0
	}
	return c.process.pid
}

// serve starts a server's command with its output in the log, and returns the process when it is
// ready. It dies by onDeath with this process.
func serve(ctx context.Context, cmd *exec.Cmd, path string, onDeath syscall.Signal, ready func(p *process, from int64) func() bool) (*process, error) {
	log, from, err := openLog(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	p, err := launch(cmd, onDeath)
	if err != nil {
		return nil, err
	}
	if err := p.awaitReady(ctx, ready(p, from)); err != nil {
		if p.alive() {
			_ = p.end(onDeath, 5*time.Second)
		}
		return nil, fmt.Errorf("%w%s", err, tail(path, from))
	}
	return p, nil
}

// run runs a short command to its end, with its output in the error. It dies with this
// process like the servers do.
func run(ctx context.Context, cmd *exec.Cmd) error {
	// A file, not a buffer: a grandchild that outlives the command cannot hold up Wait.
	out, err := os.CreateTemp("", "forwarder-output-*")
	if err != nil {
		return fmt.Errorf("making a file for the output of %s: %w", cmd.Path, err)
	}
	defer func() { _ = out.Close(); _ = os.Remove(out.Name()) }()
	cmd.Stdout, cmd.Stderr = out, out
	p, err := launch(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		err = p.err
	case <-ctx.Done():
		_ = p.end(syscall.SIGKILL, time.Second)
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("running %s: %w%s", cmd.Path, err, tail(out.Name(), 0))
	}
	return nil
}

// tailBytes bounds how much of a log goes into an error.
const tailBytes = 4 << 10

// tail returns the last lines of a log, from the offset on, in a form to end an error with.
func tail(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from = max(from, info.Size()-tailBytes)
	text, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if text = bytes.TrimSpace(text); err != nil || len(text) == 0 {
		return ""
	}
	return "\n" + string(text)
}
