package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitConfig = 2
)

func main() {
	// Two signals are more than anyone is answered to; a third may be dropped.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	// A reader that goes away must not kill a forwarder in the middle of its work, as SIGPIPE
	// would: once it is asked for, the write fails instead. Nobody reads the channel.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	p := &program{
		stdin: os.Stdin, stdout: &output{w: os.Stdout}, stderr: os.Stderr,
		environ: os.Environ(), readFile: os.ReadFile,
		signals: signals, exit: os.Exit, actions: wired,
	}
	if stdoutClosed() {
		p.stdout.closed = true
	}
	os.Exit(p.main(os.Args[1:]))
}

// program is the process as the commands see it.
type program struct {
	stdin    io.Reader
	stdout   *output
	stderr   io.Writer
	environ  []string
	readFile func(string) ([]byte, error)
	signals  <-chan os.Signal
	exit     func(code int) // ends the process at once
	actions  actions
}

// main runs the command that args name and returns the exit code.
func (p *program) main(args []string) (code int) {
	defer func() {
		if v := recover(); v != nil {
			fmt.Fprintf(p.stderr, "%s\nforwarder: internal error: %s\n", debug.Stack(), oneLine(fmt.Sprint(v)))
			code = exitFailed
		}
	}()
	ctx, stop := p.untilSignal()
	defer stop()
	err := p.command(ctx, args)
	if failure := p.stdout.failure(); failure != nil && (err == nil || errors.Is(failure, err)) {
		err = failure
	}
	return p.report(err)
}

// doubledSignal is how close a second signal counts as the first: timeout(1) and some
// supervisors signal a process and then its group.
const doubledSignal = 100 * time.Millisecond

// untilSignal returns a context that the first signal cancels. The second ends the process.
func (p *program) untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	finished, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var first time.Time
		for {
			select {
			case <-finished:
				return
			case <-p.signals:
				if first.IsZero() {
					first = time.Now()
					cancel()
					continue
				}
				if time.Since(first) < doubledSignal {
					continue
				}
				fmt.Fprintln(p.stderr, "forwarder: ended at once by a second signal; what was not deleted is sent again")
				p.exit(exitFailed)
				return
			}
		}
	}()
	return ctx, func() {
		close(finished)
		<-done
		cancel()
	}
}

// report writes the cause of a failure as the last line and returns the exit code.
func (p *program) report(err error) int {
	if err == nil {
		return exitOK
	}
	var usage *usageError
	var setup *setupError
	var problems config.Problems
	var field *config.FieldError
	switch {
	case errors.As(err, &problems) && len(problems) > 1:
		what := "the configuration; nothing was connected or changed"
		if errors.As(err, &setup) {
			what = "the database; nothing was forwarded"
		}
		fmt.Fprintf(p.stderr, "forwarder: %d problems with %s:\n", len(problems), what)
		for _, e := range problems {
			fmt.Fprintf(p.stderr, "  %s\n", oneLine(e.Error()))
		}
		return exitConfig
	case errors.As(err, &usage), errors.As(err, &field):
		fmt.Fprintf(p.stderr, "forwarder: %s\n", oneLine(err.Error()))
		return exitConfig
	}
	fmt.Fprintf(p.stderr, "forwarder: %s\n", oneLine(err.Error()))
	return exitFailed
}

// oneLine keeps a cause on the last line, whatever a server put into its message.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
