package mongo

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-forwarder/forwarder/tail"
)

// LinkStats is a copy of what is known about the change stream.
type LinkStats struct {
	Streaming bool
	Since     time.Time // of Streaming's value
	Waits     string    // why it does not stream; empty while it does
	Begun     uint64    // how often a change stream was begun
	Resumed   uint64    // how often one went on after an interruption
	// Changed is when the last change that came was committed, to the second; the zero time
	// before the first one.
	Changed time.Time
	// LastAnswer is when the server was last heard; the zero time while it does not stream.
	LastAnswer time.Time
}

func (l *link) stats() LinkStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LinkStats{Streaming: l.streaming, Since: l.since, Waits: l.waits, Begun: l.begun, Resumed: l.again}
	if !l.lastTime.IsZero() {
		s.Changed = time.Unix(int64(l.lastTime.T), 0)
	}
	if l.streaming {
		s.LastAnswer = l.lastHeard
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

func streamDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("forwarder_stream_"+name, help, nil, nil)
}

var (
	streamingDesc = streamDesc("streaming", "1 while the log is streamed, 0 while the table is polled.")
	begunDesc     = streamDesc("begun_total", "Times that the log was begun, after each loss of the connection too.")
	resumedDesc   = streamDesc("resumed_total", "Times that the change stream went on after an interruption.")
	changedDesc   = streamDesc("changed_timestamp_seconds", "When the last change that was received was committed; 0 before the first.")
	silenceDesc   = streamDesc("silence_seconds", "Time since the server was last heard; 0 while it is not streamed.")
)

// collect sends the metrics of a change stream.
func (s *LinkStats) collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	streaming, silence, changed := 0.0, 0.0, 0.0
	if s.Streaming {
		streaming, silence = 1, time.Since(s.LastAnswer).Seconds()
	}
	if !s.Changed.IsZero() {
		changed = float64(s.Changed.Unix())
	}
	gauge(streamingDesc, streaming)
	counter(begunDesc, s.Begun)
	counter(resumedDesc, s.Resumed)
	gauge(changedDesc, changed)
	gauge(silenceDesc, silence)
}

// Describe implements prometheus.Collector.
func (s *Stream) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector.
func (s *Stream) Collect(ch chan<- prometheus.Metric) {
	stats := s.Stats()
	stats.LinkStats.collect(ch)
	stats.Stats.Collect(ch)
}
