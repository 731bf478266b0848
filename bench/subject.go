package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// subject is a running program that is measured.
type subject struct {
	cmd    *exec.Cmd
	output bytes.Buffer // to be read after done
	done   chan error   // gets what Wait returned
	ended  bool         // done was read
	admin  string       // the address of its admin server, empty for none
	reads  float64      // of the table, before it was suspended
}

// start starts a program with default settings but those given, as NAME=value.
func (p *subject) start(program string, args, settings []string) error {
	p.cmd, p.done = exec.Command(program, args...), make(chan error, 1)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FORWARDER_") { // default settings are measured
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, settings...)
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", program, err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	return nil
}

// alive fails when the program has ended.
func (p *subject) alive() error {
	select {
	case err := <-p.done:
		p.ended = true
		return fmt.Errorf("%s ended by itself: %w\n%s", filepath.Base(p.cmd.Path), errors.Join(err), p.output.String())
	default:
		return nil
	}
}

// stop ends the program in order; one that does not end is killed, which is an error.
func (p *subject) stop() error {
	if p.ended {
		return nil
	}
	p.ended = true
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	select {
	case err := <-p.done:
		if err != nil {
			return fmt.Errorf("stopping %s: %w\n%s", filepath.Base(p.cmd.Path), err, p.output.String())
		}
		return nil
	case <-limit.C:
		_ = p.cmd.Process.Kill() // an error says that it has just ended
		return fmt.Errorf("%s did not end within 30 s of SIGTERM: %w", filepath.Base(p.cmd.Path), <-p.done)
	}
}

// suspend keeps the program from running until it is released.
func (p *subject) suspend() error { return p.signal(syscall.SIGSTOP) }

// release lets a suspended program run; one that was not suspended does not notice.
func (p *subject) release() error { return p.signal(syscall.SIGCONT) }

func (p *subject) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %v: %w", s, err)
	}
	return nil
}

// kill is kill -9.
func (p *subject) kill() error {
	p.ended = true
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("killing %s: %w", filepath.Base(p.cmd.Path), err)
	}
	if err := <-p.done; err == nil {
		return fmt.Errorf("%s had ended in order before it was killed", filepath.Base(p.cmd.Path))
	}
	return nil
}

// peakMemory is the largest resident memory so far, in bytes. The kernel's figure for an ended
// child would not do: it counts the parent's memory at the time of the start.
func (p *subject) peakMemory() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("reading the peak of memory: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("reading the peak of memory: the kernel does not say")
}

// cpuTime is the processor time of a process, of the children that it has reaped, and, where
// family is asked for, of those that run.
func cpuTime(pid int, family bool) (time.Duration, error) {
	s, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	sum := s.own + s.reaped
	if !family {
		return sum, nil
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		// One that has ended meanwhile is in its parent's figure the next time.
		if c, err := readStat(child); err == nil && c.parent == pid {
			sum += c.own + c.reaped
		}
	}
	return sum, nil
}

type stat struct {
	parent      int
	own, reaped time.Duration
}

// tick is the unit of times in /proc/PID/stat, which is the same on all Linux ports of Go.
const tick = time.Second / 100

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, fmt.Errorf("reading processor time: %w", err)
	}
	// The name in brackets may hold anything, so the fields are counted from its end: state,
	// parent, ... and utime, stime, cutime, cstime as the 12th to 15th.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 15 {
		return stat{}, fmt.Errorf("reading processor time of %d: %q", pid, text)
	}
	var n [15]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(f[i], 10, 64) // the state is no number, and is not used
	}
	return stat{
		parent: int(n[1]),
		own:    time.Duration(n[11]+n[12]) * tick,
		reaped: time.Duration(n[13]+n[14]) * tick,
	}, nil
}
