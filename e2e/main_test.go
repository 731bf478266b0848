package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// binary is the path of the forwarder under test.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "forwarder-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a folder for the forwarder:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "forwarder")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "../cmd/forwarder")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the forwarder: %v\n%s", err, out)
		return 1
	}
	return serverstest.Run(m)
}

// eventually polls until the condition holds, and fails the test when it does not in time.
func eventually(t *testing.T, within time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %s in vain: %s", within, what)
		}
	}
}

// always polls a condition that has to hold all the time.
func always(t *testing.T, during time.Duration, what string, condition func() bool) {
	t.Helper()
	end := time.NewTimer(during)
	defer end.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if !condition() {
			t.Fatalf("did not last for %s: %s", during, what)
		}
		select {
		case <-tick.C:
		case <-end.C:
			return
		}
	}
}
