package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
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
}

// startSubject starts a program with default settings but those given, as NAME=value.
func startSubject(program string, args []string, settings ...string) (*subject, error) {
	p := &subject{cmd: exec.Command(program, args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FORWARDER_") { // default settings are measured
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, settings...)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	return p, nil
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
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending SIGTERM: %w", err)
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

// usage is what was used since some moment.
type usage struct {
	subject, postgres, kafka time.Duration
	wal                      int64
	statements               int64 // -1 where they are not counted
}

// meter starts to count; the function it returns gives the usage since then. The statements
// are complete once the program has ended or is idle.
func (s *stage) meter(ctx context.Context, p *subject) (func() (usage, error), error) {
	if s.counted {
		if _, err := s.conn.Exec(ctx, "SELECT pg_stat_statements_reset()"); err != nil {
			return nil, fmt.Errorf("resetting the counters: %w", err)
		}
	}
	before, err := s.used(ctx, p)
	if err != nil {
		return nil, err
	}
	return func() (usage, error) {
		u, err := s.used(ctx, p)
		u.subject -= before.subject
		u.postgres -= before.postgres
		u.kafka -= before.kafka
		u.wal -= before.wal
		return u, err
	}, nil
}

func (s *stage) used(ctx context.Context, p *subject) (usage, error) {
	u := usage{statements: -1}
	var err, e error
	if p != nil {
		u.subject, err = cpuTime(p.cmd.Process.Pid, false)
	}
	u.postgres, e = cpuTime(s.postgres.PID(), true)
	err = errors.Join(err, e)
	u.kafka, e = cpuTime(s.kafka.PID(), false)
	err = errors.Join(err, e)
	if err != nil {
		return u, err
	}
	if err := s.conn.QueryRow(ctx, "SELECT (pg_current_wal_lsn() - '0/0')::bigint").Scan(&u.wal); err != nil {
		return u, fmt.Errorf("asking for the WAL position: %w", err)
	}
	if s.counted {
		u.statements, err = s.statements(ctx)
	}
	return u, err
}

// statements is the number of statements of the measured program since the last reset.
func (s *stage) statements(ctx context.Context) (int64, error) {
	var n int64
	err := s.conn.QueryRow(ctx, "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE userid = $1::regrole", role).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting statements: %w", err)
	}
	return n, nil
}

// withUser changes the user of a connection URL.
func withUser(address, user string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic(fmt.Sprintf("the URL of our own server does not parse: %v", err))
	}
	u.User = url.User(user)
	return u.String()
}
