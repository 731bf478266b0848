package tail

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// LinkStats is a copy of what is known about the connection to a log, whatever log it is.
type LinkStats struct {
	Streaming bool
	Since     time.Time // of Streaming's value
	Waits     string    // why it does not stream; empty while it does
	Begun     uint64    // how often the log was begun
	// Heard is when the server was last heard; the zero time while it does not stream.
	Heard time.Time
}

var (
	streamingDesc = Desc("streaming", "1 while the log is streamed, 0 while the table is polled.")
	begunDesc     = Desc("begun_total", "Times that the log was begun, after each loss of the connection too.")
	silenceDesc   = Desc("silence_seconds", "Time since the server was last heard; 0 while it is not streamed.")
)

// Collect sends the metrics of the connection.
func (s LinkStats) Collect(ch chan<- prometheus.Metric) {
	streaming, silence := 0.0, 0.0
	if s.Streaming {
		streaming, silence = 1, time.Since(s.Heard).Seconds()
	}
	gauge(ch, streamingDesc, streaming)
	counter(ch, begunDesc, s.Begun)
	gauge(ch, silenceDesc, silence)
}
