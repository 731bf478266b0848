package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

// asProgram makes the test binary act as the program, with the body of run that it names.
const asProgram = "FORWARDER_TEST_BODY"

// binary is the real program, built once.
var binary string

func TestMain(m *testing.M) {
	if name := os.Getenv(asProgram); name != "" {
		os.Exit(mainWith(bodies[name]))
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "forwarder-cmd")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left over lies in the system's temporary folder
	binary = filepath.Join(dir, "forwarder")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X main.version=v1.2.3", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the program: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

type runBody = func(context.Context, config.Config, *slog.Logger) error

// bodies stand in for a forwarder that ends in a way that a test cannot bring about.
var bodies = map[string]runBody{
	"panic":           func(context.Context, config.Config, *slog.Logger) error { panic("broken\ninvariant") },
	"goroutine panic": func(context.Context, config.Config, *slog.Logger) error { go panic("broken invariant"); select {} },
	"fatal":           func(context.Context, config.Config, *slog.Logger) error { return errors.New("the server\nhas gone") },
	"waits": func(ctx context.Context, _ config.Config, _ *slog.Logger) error {
		fmt.Println("ready")
		<-ctx.Done()
		return nil
	},
	"is stuck": func(ctx context.Context, _ config.Config, _ *slog.Logger) error {
		fmt.Println("ready")
		<-ctx.Done()
		fmt.Println("stopping")
		select {}
	},
}

// mainWith is main with another body of run.
func mainWith(body runBody) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	p := &program{
		stdout: &output{w: os.Stdout}, stderr: os.Stderr, readFile: os.ReadFile,
		signals: signals, exit: os.Exit, actions: actions{run: body},
	}
	return p.main(os.Args[1:])
}

// newProgram returns a program inside the test whose actions fail the test if they run.
func newProgram(t *testing.T, stdout, stderr io.Writer, environ ...string) *program {
	t.Helper()
	return &program{
		stdout: &output{w: stdout}, stderr: stderr, environ: environ, readFile: os.ReadFile,
		exit: func(code int) { t.Errorf("the process was ended with %d", code) },
		actions: actions{
			run: func(context.Context, config.Config, *slog.Logger) error {
				t.Error("run was started")
				return nil
			},
			initStore: func(context.Context, config.Config, bool, *slog.Logger, io.Writer) error {
				t.Error("init was started")
				return nil
			},
			demo: func(context.Context, config.Config, demoOptions, io.Writer) error {
				t.Error("demo was started")
				return nil
			},
			parked: func(context.Context, config.Config, bool, io.Writer) error {
				t.Error("parked was started")
				return nil
			},
		},
	}
}
