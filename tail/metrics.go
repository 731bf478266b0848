package tail

import "github.com/prometheus/client_golang/prometheus"

// Desc describes a metric of a log by its name among those.
func Desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("forwarder_stream_"+name, help, nil, nil)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v uint64) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
}

var (
	completeDesc   = Desc("complete", "1 while reads are answered from memory.")
	waitingDesc    = Desc("events_waiting", "Events in memory that the forwarder has not taken yet.")
	waitBytesDesc  = Desc("bytes_waiting", "Bytes of the events that the forwarder has not taken yet.")
	coveredDesc    = Desc("events_covered_total", "Events of the log that a read of the table had brought already.")
	tableReadsDesc = Desc("table_reads_total", "Reads of the table.")
	memoryDesc     = Desc("memory_reads_total", "Reads answered from memory.")
	evictionsDesc  = Desc("evictions_total", "Times that events were let go for want of memory, to be read from the table.")
)

var skippedDesc = Desc("events_skipped_total", "Events of the log that had been delivered before.")

// Collect sends the counts as metrics.
func (s LogStats) Collect(ch chan<- prometheus.Metric) {
	gauge(ch, waitingDesc, float64(s.Waiting))
	gauge(ch, waitBytesDesc, float64(s.Bytes))
	counter(ch, skippedDesc, s.Skipped)
}

// Collect sends the counts as metrics.
func (s Stats) Collect(ch chan<- prometheus.Metric) {
	complete := 0.0
	if s.Complete {
		complete = 1
	}
	gauge(ch, completeDesc, complete)
	gauge(ch, waitingDesc, float64(s.Waiting))
	gauge(ch, waitBytesDesc, float64(s.Bytes))
	counter(ch, coveredDesc, s.Covered)
	counter(ch, tableReadsDesc, s.TableReads)
	counter(ch, memoryDesc, s.Memory)
	counter(ch, evictionsDesc, s.Evictions)
}
