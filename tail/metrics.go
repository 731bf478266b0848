package tail

import "github.com/prometheus/client_golang/prometheus"

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("forwarder_stream_"+name, help, nil, nil)
}

var (
	completeDesc   = desc("complete", "1 while reads are answered from memory.")
	waitingDesc    = desc("events_waiting", "Events in memory that the forwarder has not taken yet.")
	waitBytesDesc  = desc("bytes_waiting", "Bytes of the events that the forwarder has not taken yet.")
	coveredDesc    = desc("events_covered_total", "Events of the log that a read of the table had brought already.")
	tableReadsDesc = desc("table_reads_total", "Reads of the table.")
	memoryDesc     = desc("memory_reads_total", "Reads answered from memory.")
	evictionsDesc  = desc("evictions_total", "Times that events were let go for want of memory, to be read from the table.")
)

var skippedDesc = desc("events_skipped_total", "Events of the log that had been delivered before.")

// Collect sends the counts as metrics.
func (s LogStats) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(s.Waiting))
	ch <- prometheus.MustNewConstMetric(waitBytesDesc, prometheus.GaugeValue, float64(s.Bytes))
	ch <- prometheus.MustNewConstMetric(skippedDesc, prometheus.CounterValue, float64(s.Skipped))
}

// Collect sends the counts as metrics.
func (s Stats) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	complete := 0.0
	if s.Complete {
		complete = 1
	}
	gauge(completeDesc, complete)
	gauge(waitingDesc, float64(s.Waiting))
	gauge(waitBytesDesc, float64(s.Bytes))
	counter(coveredDesc, s.Covered)
	counter(tableReadsDesc, s.TableReads)
	counter(memoryDesc, s.Memory)
	counter(evictionsDesc, s.Evictions)
}
