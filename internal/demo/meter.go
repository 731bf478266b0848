package demo

import (
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

const (
	// rateWindow is long enough for a steady figure and short enough to show a stall.
	rateWindow = 2 * time.Second
	// latencyEvery is how often the latency figures change: percentiles of fewer events
	// would jump about.
	latencyEvery = time.Second
)

// meter turns counts into Stats. It is used by one goroutine.
type meter struct {
	started time.Time
	samples []sample // of the last rateWindow, oldest first, and one older
	watch   recent
	latency oracle.Latency
	// latencyAt is when latency was read last.
	latencyAt time.Time
}

// recent is the part of oracle.Stopwatch that the meter reads.
type recent interface {
	// Recent is the latency of what was measured since the last call.
	Recent() oracle.Latency
}

type sample struct {
	at                 time.Time
	written, forwarded int64
}

func newMeter(now time.Time, watch recent) *meter {
	return &meter{started: now, watch: watch, latencyAt: now, samples: []sample{{at: now}}}
}

// read takes what has been committed and what the checker has seen, and returns the figures
// for the moment now.
func (m *meter) read(now time.Time, committed int64, v oracle.Verdict) Stats {
	m.samples = append(m.samples, sample{now, committed, v.Delivered})
	for len(m.samples) > 2 && now.Sub(m.samples[1].at) >= rateWindow {
		m.samples = m.samples[1:]
	}
	if now.Sub(m.latencyAt) >= latencyEvery {
		m.latencyAt = now
		if l := m.watch.Recent(); l.Count > 0 {
			m.latency = l
		}
	}
	stats := Stats{
		Elapsed:   now.Sub(m.started),
		Written:   committed,
		Forwarded: v.Delivered,
		// A record can be consumed before the writer knows that its commit went through.
		Backlog:  max(committed-v.Delivered, 0),
		P50:      m.latency.P50,
		P99:      m.latency.P99,
		Measured: m.latency.Count > 0,
		Repeats:  v.Repeated,
		Faults:   faults(v),
	}
	if first := m.samples[0]; now.After(first.at) {
		seconds := now.Sub(first.at).Seconds()
		stats.WriteRate = float64(committed-first.written) / seconds
		stats.ForwardRate = float64(v.Delivered-first.forwarded) / seconds
	}
	return stats
}

// faults counts the broken promises that can be told before the end.
func faults(v oracle.Verdict) int64 {
	return v.OutOfOrder + v.BrokenRepeats + v.Altered + v.Strayed + v.BadIDs + v.Foreign + v.Unwritten
}
