package postgres

import (
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-forwarder/forwarder/tail"
)

// LinkStats is a copy of what is known about the connection to the log.
type LinkStats struct {
	tail.LinkStats
	// Received is the last position of the log that was received.
	Received pglogrepl.LSN
	// Slot is up to 10 s old.
	Slot SlotLag
}

func (l *link) stats() LinkStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LinkStats{LinkStats: tail.LinkStats{Since: l.since, Waits: l.waits, Begun: l.begun}, Slot: l.slot}
	if l.current != nil {
		s.Streaming = true
		s.Received = pglogrepl.LSN(l.current.received.Load())
		s.Heard = time.Unix(0, l.current.lastByte.Load())
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
	retainedDesc    = tail.Desc("slot_retained_bytes", "Log that the server keeps for the replication slot.")
	unconfirmedDesc = tail.Desc("slot_unconfirmed_bytes", "Log that the replication slot has not confirmed.")
	receivedDesc    = tail.Desc("received_lsn", "Last position of the log that was received.")
	confirmedDesc   = tail.Desc("confirmed_lsn", "Position of the log up to which everything is delivered and deleted.")
)

// collect sends the metrics of a connection to the log.
func (s *LinkStats) collect(ch chan<- prometheus.Metric) {
	s.LinkStats.Collect(ch)
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(retainedDesc, float64(s.Slot.Retained))
	gauge(unconfirmedDesc, float64(s.Slot.Unconfirmed))
	gauge(receivedDesc, float64(s.Received))
}

// Describe implements prometheus.Collector.
func (s *Stream) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector.
func (s *Stream) Collect(ch chan<- prometheus.Metric) {
	stats := s.Stats()
	stats.LinkStats.collect(ch)
	stats.Stats.Collect(ch)
}
