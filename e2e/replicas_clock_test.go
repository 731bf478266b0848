package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// skewSource is added to package time of the forwarder with another wall clock. Go asks the
// kernel for the time without the C library, so that nothing outside the program can change
// what it sees. The monotonic clock stays as it is, as it does when a machine's time is set.
const skewSource = `package time

import "syscall"

// clockSkew is how many seconds the wall clock is off, and, from when on in nanoseconds of the
// process's life, by how many then.
var clockSkew, clockStepAfter, clockStep int64

func init() {
	text, ok := syscall.Getenv("TEST_CLOCK")
	if !ok {
		return
	}
	number := func() (n int64) {
		negative := len(text) > 0 && text[0] == '-'
		if negative {
			text = text[1:]
		}
		for len(text) > 0 && text[0] != ',' {
			n = 10*n + int64(text[0]-'0')
			text = text[1:]
		}
		if len(text) > 0 {
			text = text[1:]
		}
		if negative {
			n = -n
		}
		return n
	}
	clockSkew, clockStepAfter, clockStep = number(), number()*int64(Second), number()
}

func skewed(sec, mono int64) int64 {
	if clockStepAfter > 0 && mono-startNano > clockStepAfter {
		return sec + clockStep
	}
	return sec + clockSkew
}
`

// clock is the setting of a program that was built by withOwnClock: its wall clock is off by
// the first duration, and by the third when it has lived for the second.
func clock(off, after, then time.Duration) string {
	return fmt.Sprintf("TEST_CLOCK=%.0f,%.0f,%.0f", off.Seconds(), after.Seconds(), then.Seconds())
}

// withOwnClock builds the forwarder with a package time that knows the setting clock.
func withOwnClock(t *testing.T) (program string) {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("asking for GOROOT: %v", err)
	}
	folder := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(folder, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(text), now) != 1 {
		t.Fatalf("time.Now of this Go release does not begin with %q", now)
	}
	changed := strings.Replace(string(text), now, now+"\tsec = skewed(sec, mono)\n", 1)
	dir := t.TempDir()
	overlay := map[string]string{}
	for name, text := range map[string]string{"time.go": changed, "skew.go": skewSource} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[filepath.Join(folder, name)] = path
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, list, 0o600); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "forwarder")
	// Everything is compiled anew, once: the build cache keeps it.
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-overlay", path, "-o", program, "../cmd/forwarder")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the forwarder with its own clock: %v\n%s", err, out)
	}
	return program
}

// wantClock demands that the newest line of the log was written by a clock that is off by d.
func (p *process) wantClock(d time.Duration) {
	p.t.Helper()
	lines := p.lines()
	if len(lines) == 0 {
		p.t.Fatal("the log is empty")
	}
	var l struct{ Time time.Time }
	if err := json.Unmarshal([]byte(lines[len(lines)-1].text), &l); err != nil {
		p.t.Fatal(err)
	}
	if off := time.Until(l.Time); (off - d).Abs() > time.Minute {
		p.t.Fatalf("the replica's clock is off by %s, want %s: nothing is tested", off.Round(time.Second), d)
	}
}

// TestC88ClocksDiffer gives replicas wall clocks that are off by ten minutes in either
// direction, and one that steps back by an hour while it holds lanes. No lane moves for it,
// nothing is repeated, and a replica that dies is replaced as soon as any other.
func TestC88ClocksDiffer(t *testing.T) {
	t.Parallel()
	program := withOwnClock(t)
	const ttl = 3 * time.Second
	const stepAfter = 15 * time.Second
	w := newWorld(t, nil, nil)
	started := time.Now()
	right := w.start(leaseTTL(ttl), inJSON)
	fast := w.startProgram(program, leaseTTL(ttl), inJSON, clock(10*time.Minute, 0, 0))
	slow := w.startProgram(program, leaseTTL(ttl), inJSON, clock(-10*time.Minute, 0, 0))
	steps := w.startProgram(program, leaseTTL(ttl), inJSON, clock(0, stepAfter, -time.Hour))
	procs := []*process{right, fast, slow, steps}
	w.awaitBalance(procs...)
	right.wantClock(0)
	fast.wantClock(10 * time.Minute)
	slow.wantClock(-10 * time.Minute)
	if time.Since(started) > stepAfter {
		t.Fatal("the replicas have shared the lanes after the clock's step, so that nothing was held through it")
	}
	steps.wantClock(0)

	before := w.epochs()
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate = 500 })
	always(t, stepAfter-time.Since(started)+3*ttl, "no lane moves", func() bool { return maps.Equal(before, w.epochs()) })
	writer.stop()
	noRepeats(t, w.verdict())
	steps.stop()
	steps.wantClock(-time.Hour)
	w.awaitBalance(right, fast, slow)

	// The fast one dies, then the right one: nobody waits for ten minutes, nor takes early.
	for i, p := range []*process{fast, right} {
		conn := w.connect()
		p.kill()
		begun := time.Now()
		rest := [][]*process{{right, slow}, {slow}}[i]
		w.awaitBalance(rest...)
		took := time.Since(begun)
		t.Logf("%d replicas left: their lanes are balanced %s after the kill", len(rest), took.Round(10*time.Millisecond))
		if took < ttl/2 || took > ttl+5*time.Second {
			t.Errorf("the lanes of a dead replica had other owners after %s with a lease of %s", took, ttl)
		}
		w.execute(conn, insert, w.topic, "after", fmt.Sprint(i))
		eventually(t, drainLimit, "the row is forwarded", func() bool { return w.left() == 0 })
	}
	slow.stop()
}
