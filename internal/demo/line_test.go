package demo

import (
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

func TestLine(t *testing.T) {
	calm := Stats{
		Elapsed: 72 * time.Second, Written: 71_990, Forwarded: 71_988, WriteRate: 999.6, ForwardRate: 1_000.4,
		Backlog: 2, P50: 1_430 * time.Microsecond, P99: 12_400 * time.Microsecond, Measured: true,
	}
	broken := Stats{
		Elapsed: 2 * time.Hour, Written: 12_345_678, Forwarded: 12_000_000, WriteRate: 20_000, ForwardRate: 0,
		Backlog: 345_678, P50: 998 * time.Millisecond, P99: 12 * time.Second, Measured: true, Repeats: 1, Faults: 2,
	}
	for _, c := range []struct {
		name  string
		stats Stats
		width int
		want  string
	}{
		{"wide", calm, 200, "1:12  written    71,990  1,000/s  forwarded    71,988  1,000/s  backlog      2  p50  1.4 ms  p99   12 ms  in order  0 repeats"},
		{"without totals", calm, 120, "1:12  written  1,000/s  forwarded  1,000/s  backlog      2  p50  1.4 ms  p99   12 ms  in order  0 repeats"},
		{"eighty columns", calm, 77, "1:12  in  1,000/s  out  1,000/s  backlog      2  p99   12 ms  in order"},
		{"narrow", calm, 60, "1:12  out  1,000/s  backlog      2  in order"},
		{"narrower", calm, 40, "1:12  backlog 2  in order"},
		{"tiny", calm, 14, "1:12  in order"},
		{"cut", calm, 9, "1:12  in "},
		{"no room", calm, 0, ""},
		{"negative room", calm, -3, ""},
		{"nothing yet", Stats{}, 200, "0:00  written         0      0/s  forwarded         0      0/s  backlog      0  p50       -  p99       -  in order  0 repeats"},
		{"stalled and broken", broken, 200, "2:00:00  written 12,345,678 20,000/s  forwarded 12,000,000      0/s  backlog 345,678  p50  998 ms  p99  12.0 s  2 FAULTS  1 repeat"},
		{"broken and narrow", broken, 40, "2:00:00  backlog 345,678  2 FAULTS"},
	} {
		if got := line(c.stats, c.width); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

func TestLineNeverExceedsTheWidth(t *testing.T) {
	for width := range 200 {
		for _, written := range []int64{0, 999, 1_000, 1_234_567_890} {
			s := Stats{Elapsed: 100 * time.Hour, Written: written, Forwarded: written, Backlog: written, WriteRate: float64(written)}
			if got := utf8.RuneCountInString(line(s, width)); got > width {
				t.Errorf("width %d, %d events: %d columns", width, written, got)
			}
		}
	}
}

func TestLatencyFormat(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                       "0.0 ms",
		90 * time.Microsecond:   "0.1 ms",
		9949 * time.Microsecond: "9.9 ms",
		9950 * time.Microsecond: "10 ms",
		999 * time.Millisecond:  "999 ms",
		1500 * time.Millisecond: "1.5 s",
		75 * time.Second:        "75.0 s",
	} {
		if got := latency(d); got != want {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	}
}

// watch hands out prepared latencies.
type watch []oracle.Latency

func (w *watch) Recent() oracle.Latency {
	first := (*w)[0]
	*w = (*w)[1:]
	return first
}

func TestMeter(t *testing.T) {
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := start.Add
	m := newMeter(start, &watch{
		{Count: 10, P50: 1 * time.Millisecond, P99: 5 * time.Millisecond},
		{}, // nothing arrived in that second: the last figures stay
		{Count: 10, P50: 2 * time.Millisecond, P99: 6 * time.Millisecond},
	})

	got := m.read(at(500*time.Millisecond), 500, oracle.Verdict{Delivered: 490})
	want := Stats{Elapsed: 500 * time.Millisecond, Written: 500, Forwarded: 490, WriteRate: 1000, ForwardRate: 980, Backlog: 10}
	if got != want {
		t.Errorf("before the first second: got %+v, want %+v", got, want)
	}

	got = m.read(at(time.Second), 1000, oracle.Verdict{Delivered: 1001, Repeated: 3, OutOfOrder: 1, Foreign: 1})
	if got.Backlog != 0 || got.P50 != time.Millisecond || !got.Measured || got.Repeats != 3 || got.Faults != 2 {
		t.Errorf("after a second: got %+v", got)
	}

	got = m.read(at(2*time.Second), 1000, oracle.Verdict{Delivered: 1001})
	if got.P99 != 5*time.Millisecond || !got.Measured {
		t.Errorf("a second without events: got %+v", got)
	}

	// The window holds the last two seconds: the busy start is out of it.
	got = m.read(at(4*time.Second), 1000, oracle.Verdict{Delivered: 1001})
	if got.WriteRate != 0 || got.ForwardRate != 0 || got.P50 != 2*time.Millisecond {
		t.Errorf("after a stall: got %+v", got)
	}
}
