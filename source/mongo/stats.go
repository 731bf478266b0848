package mongo

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-forwarder/forwarder/tail"
)

// LinkStats is a copy of what is known about the change stream.
type LinkStats struct {
	tail.LinkStats
	Resumed uint64 // how often one went on after an interruption
	// Changed is when the last change that came was committed, to the second; the zero time
	// before the first one.
	Changed time.Time
}

func (l *link) stats() LinkStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LinkStats{LinkStats: tail.LinkStats{Streaming: l.streaming, Since: l.since, Waits: l.waits, Begun: l.begun}, Resumed: l.again}
	if !l.lastTime.IsZero() {
		s.Changed = time.Unix(int64(l.lastTime.T), 0)
	}
	if l.streaming {
		s.Heard = l.lastHeard
	}
	return s
}

// StreamStats is a copy of what a Stream counts.
type StreamStats struct {
	LinkStats
	tail.Stats
}

// Stats returns the counts of now.
func (s *Stream) Stats() StreamStats { return StreamStats{s.link.stats(), s.mirror.Stats()} }

var (
	resumedDesc = tail.Desc("resumed_total", "Times that the change stream went on after an interruption.")
	changedDesc = tail.Desc("changed_timestamp_seconds", "When the last change that was received was committed; 0 before the first.")
)

// collect sends the metrics of a change stream.
func (s *LinkStats) collect(ch chan<- prometheus.Metric) {
	s.LinkStats.Collect(ch)
	changed := 0.0
	if !s.Changed.IsZero() {
		changed = float64(s.Changed.Unix())
	}
	ch <- prometheus.MustNewConstMetric(resumedDesc, prometheus.CounterValue, float64(s.Resumed))
	ch <- prometheus.MustNewConstMetric(changedDesc, prometheus.GaugeValue, changed)
}

// Describe implements prometheus.Collector.
func (s *Stream) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector.
func (s *Stream) Collect(ch chan<- prometheus.Metric) {
	stats := s.Stats()
	stats.LinkStats.collect(ch)
	stats.Stats.Collect(ch)
}
