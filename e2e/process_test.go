package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// process is a running `forwarder run`.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	log   string // path of what it wrote to stdout and stderr
	admin string // address of its admin listener
	done  chan struct{}
}

// start runs the forwarder on the world's database and topic. settings are environment
// variables, NAME=value. It is killed when the test ends, if it still runs.
func (w *world) start(settings ...string) *process {
	w.t.Helper()
	return w.startProgram(binary, settings...)
}

// startProgram is start for another build of the forwarder.
func (w *world) startProgram(program string, settings ...string) *process {
	t := w.t
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "forwarder.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	p := &process{t: t, log: log.Name(), admin: serverstest.FreeAddress(t), done: make(chan struct{})}
	p.cmd = exec.Command(program, "run", "--source-url", w.url, "--brokers", w.broker, "--admin-listen", p.admin)
	p.cmd.Env = environment(append(slices.Clone(w.mode.settings), settings...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	dieWithParent(p.cmd)
	started := make(chan error)
	go func() {
		// The kernel ends the child when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // the exit code is read from the state
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting the forwarder: %v", err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the forwarder's log:\n%s", p.lastLines())
		}
	})
	return p
}

// environment is that of the test without what would configure the forwarder.
func environment(settings ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FORWARDER_") {
			env = append(env, v)
		}
	}
	return append(env, settings...)
}

// kill is kill -9. It returns when the process is gone, and does nothing where it is.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error says that it has ended
	<-p.done
}

func (p *process) terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatalf("sending SIGTERM: %v", err)
	}
}

// wait returns the exit code, -1 for a death by signal.
func (p *process) wait(within time.Duration) int {
	p.t.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	select {
	case <-p.done:
	case <-limit.C:
		p.t.Fatalf("the forwarder did not end within %s", within)
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop ends the process in order and demands exit code 0.
func (p *process) stop() {
	p.t.Helper()
	p.terminate()
	if code := p.wait(25 * time.Second); code != 0 {
		p.t.Fatalf("exit code %d after SIGTERM, want 0", code)
	}
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ready asks /readyz, and returns its words.
func (p *process) ready() (bool, string) {
	client := http.Client{Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + p.admin + "/readyz")
	if err != nil {
		return false, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	words, err := io.ReadAll(answer.Body)
	if err != nil {
		return false, err.Error()
	}
	return answer.StatusCode == http.StatusOK, strings.TrimSpace(string(words))
}

func (p *process) awaitReady() {
	p.t.Helper()
	eventually(p.t, 20*time.Second, "the forwarder is ready", func() bool {
		if !p.running() {
			p.t.Fatalf("the forwarder ended with exit code %d", p.cmd.ProcessState.ExitCode())
		}
		ok, _ := p.ready()
		return ok
	})
}

// memory returns the resident memory now and at its peak, in bytes.
func (p *process) memory() (now, peak int64) {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatalf("reading the memory of the forwarder: %v", err)
	}
	for line := range strings.Lines(string(status)) {
		name, rest, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			peak = kib << 10
		}
	}
	if now == 0 || peak == 0 {
		p.t.Fatal("the kernel does not say how much memory the forwarder has")
	}
	return now, peak
}

// output is everything that the process wrote so far.
func (p *process) output() string {
	p.t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

func (p *process) lastLines() []byte {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-40):], nil)
}
