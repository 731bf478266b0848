package postgres

import (
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-forwarder/forwarder/tail"
)

// LinkStats is a copy of what is known about the connection to the log.
type LinkStats struct {
	Streaming bool
	Since     time.Time // of Streaming's value
	Waits     string    // why it does not stream; empty while it does
	Begun     uint64    // how often the log was begun
	// Received is the last position of the log that was received.
	Received pglogrepl.LSN
	// LastByte is when the server was last heard; the zero time while it does not stream.
	LastByte time.Time
	// Slot is up to 10 s old.
	Slot SlotLag
}

func (l *link) stats() LinkStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LinkStats{Since: l.since, Waits: l.waits, Begun: l.begun, Slot: l.slot}
	if l.current != nil {
		s.Streaming = true
		s.Received = pglogrepl.LSN(l.current.received.Load())
		s.LastByte = time.Unix(0, l.current.lastByte.Load())
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
	streamingDesc   = streamDesc("streaming", "1 while the log is streamed, 0 while the table is polled.")
	begunDesc       = streamDesc("begun_total", "Times that the log was begun, after each loss of the connection too.")
	retainedDesc    = streamDesc("slot_retained_bytes", "Log that the server keeps for the replication slot.")
	unconfirmedDesc = streamDesc("slot_unconfirmed_bytes", "Log that the replication slot has not confirmed.")
	receivedDesc    = streamDesc("received_lsn", "Last position of the log that was received.")
	confirmedDesc   = streamDesc("confirmed_lsn", "Position of the log up to which everything is delivered and deleted.")
	silenceDesc     = streamDesc("silence_seconds", "Time since the server was last heard; 0 while it is not streamed.")
)

// collect sends the metrics of a connection to the log.
func (s *LinkStats) collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	streaming, silence := 0.0, 0.0
	if s.Streaming {
		streaming, silence = 1, time.Since(s.LastByte).Seconds()
	}
	gauge(streamingDesc, streaming)
	ch <- prometheus.MustNewConstMetric(begunDesc, prometheus.CounterValue, float64(s.Begun))
	gauge(retainedDesc, float64(s.Slot.Retained))
	gauge(unconfirmedDesc, float64(s.Slot.Unconfirmed))
	gauge(receivedDesc, float64(s.Received))
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
