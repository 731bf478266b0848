package lanes

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Describe and Collect make a Forwarder a prometheus.Collector. The figures are the engine's
// own at the moment of the scrape. No metric has a label per key or topic.

var (
	readDesc       = counterDesc("events_read_total", "Events taken into memory from the outbox.")
	producedDesc   = counterDesc("events_produced_total", "Events handed to the broker's client.")
	ackedDesc      = counterDesc("events_acknowledged_total", "Events that the broker acknowledged.")
	deletedDesc    = counterDesc("events_deleted_total", "Acknowledged events deleted from the outbox.")
	droppedDesc    = counterDesc("events_dropped_total", "Events dropped from memory, to be read again. read = acknowledged + in memory + dropped.")
	repeatedDesc   = counterDesc("events_repeated_total", "Events produced again after an attempt that may have been written.")
	discardedDesc  = counterDesc("pages_discarded_total", "Pages thrown away because a long transaction had ended.")
	violationsDesc = counterDesc("order_violations_total", "Events acknowledged before an earlier one of their key.")
	endedDesc      = counterDesc("leases_ended_total", "Times that the leases were not renewed in time, so that all lanes were suspended.")
	memoryDesc     = gaugeDesc("events_in_memory", "Events in memory that are not acknowledged.")
	bytesDesc      = gaugeDesc("bytes_in_memory", "Bytes of the events in memory that are not acknowledged.")
	flyingDesc     = gaugeDesc("events_in_flight", "Events on their way to the broker.")
	undeletedDesc  = gaugeDesc("events_undeleted", "Acknowledged events whose row is not deleted yet.")
	floorLagDesc   = gaugeDesc("floor_lag", "Distance in ids from the floor of reads to the highest id seen.")
	parkedDesc     = gaugeDesc("parked", "Parts that wait after a failure, by how much waits.", "part")
	overflownDesc  = gaugeDesc("lanes_overflown", "Lanes that wait for room in memory or for their first read.")
	stalledDesc    = gaugeDesc("events_stalled", "Events in flight that the broker does not acknowledge while it acknowledges others.")
	waitingDesc    = gaugeDesc("keys_stalled", "Keys that wait for stalled events.")
	ownedDesc      = gaugeDesc("lanes_owned", "Lanes that this replica owns.")
	pausedDesc     = gaugeDesc("paused", "1 while nothing is submitted because the broker side is in trouble.")
	latencyDesc    = counterDesc("commit_to_ack_seconds", "Time from an event's creation to its acknowledgement.")
)

func counterDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("forwarder_"+name, help, labels, nil)
}

func gaugeDesc(name, help string, labels ...string) *prometheus.Desc {
	return counterDesc(name, help, labels...)
}

// Describe implements prometheus.Collector.
func (f *Forwarder) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

// Collect implements prometheus.Collector.
func (f *Forwarder) Collect(ch chan<- prometheus.Metric) {
	s := f.Stats()
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter(readDesc, s.Read)
	counter(producedDesc, s.Submitted)
	counter(ackedDesc, s.Acked)
	counter(deletedDesc, s.Deleted)
	counter(droppedDesc, s.Dropped)
	counter(repeatedDesc, s.Repeated)
	counter(discardedDesc, s.Discarded)
	counter(violationsDesc, s.Violations)
	counter(endedDesc, s.LeasesEnded)
	gauge(memoryDesc, float64(s.InMemory))
	gauge(bytesDesc, float64(s.Bytes))
	gauge(flyingDesc, float64(s.Flying))
	gauge(undeletedDesc, float64(s.Undeleted))
	gauge(floorLagDesc, float64(s.FloorLag))
	for kind, n := range s.Blocked {
		gauge(parkedDesc, float64(n), Kind(kind).String())
	}
	gauge(overflownDesc, float64(s.Overflown))
	gauge(stalledDesc, float64(s.Stalled))
	gauge(waitingDesc, float64(s.Waiting))
	gauge(ownedDesc, float64(s.Owned))
	paused := 0.0
	if s.Paused {
		paused = 1
	}
	gauge(pausedDesc, paused)
	ch <- s.Latency.metric()
}

func (h *Histogram) metric() prometheus.Metric {
	var count uint64
	buckets := make(map[float64]uint64, histogramBuckets)
	for i, n := range h.Buckets {
		count += n
		if i < histogramBuckets-1 {
			buckets[HistogramBound(i).Seconds()] = count
		}
	}
	return prometheus.MustNewConstHistogram(latencyDesc, count, h.Sum.Seconds(), buckets)
}

// OldestGauge is the metric of the oldest undelivered row's age. Set it from Source.Oldest.
func OldestGauge() prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "forwarder_oldest_undelivered_seconds",
		Help: "Age of the undelivered row with the lowest id; 0 when the outbox is empty.",
	})
}

// SetAge sets the gauge to the time since created, or to 0.
func SetAge(g prometheus.Gauge, created time.Time, waiting bool, now time.Time) {
	if !waiting {
		g.Set(0)
		return
	}
	g.Set(max(now.Sub(created), 0).Seconds())
}
