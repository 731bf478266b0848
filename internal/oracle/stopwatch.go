package oracle

import (
	"math"
	"sync"
	"time"
)

// Stopwatch measures from the moment at which a writer's commit returned to the moment at
// which the consumer had the record. A fast forwarder can be ahead of the writer's answer;
// that counts as zero. The zero Stopwatch is ready, and is shared by a Writer and a Checker
// of one process.
type Stopwatch struct {
	mu sync.Mutex
	// Events of which one end is known. A commit whose answer was lost leaves its event in
	// consumed: a few for each database outage.
	committed, consumed map[int64]time.Time
	commits             int64 // since Recent was called last
	total, recent       histogram
}

func (s *Stopwatch) commit(n int64, at time.Time) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits++
	if end, ok := s.consumed[n]; ok {
		delete(s.consumed, n)
		s.add(end.Sub(at))
		return
	}
	if s.committed == nil {
		s.committed = map[int64]time.Time{}
	}
	s.committed[n] = at
}

func (s *Stopwatch) consume(n int64, at time.Time) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if start, ok := s.committed[n]; ok {
		delete(s.committed, n)
		s.add(at.Sub(start))
		return
	}
	if s.consumed == nil {
		s.consumed = map[int64]time.Time{}
	}
	s.consumed[n] = at
}

func (s *Stopwatch) add(d time.Duration) {
	s.total.add(d)
	s.recent.add(d)
}

// Total is the latency of everything so far.
func (s *Stopwatch) Total() Latency {
	if s == nil {
		return Latency{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total.latency()
}

// Recent is the latency of what was measured since Recent was called last.
func (s *Stopwatch) Recent() Latency {
	if s == nil {
		return Latency{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.recent.latency()
	l.Committed = s.commits
	s.recent, s.commits = histogram{}, 0
	return l
}

// Latency is a summary of measured times. Percentiles are exact to 2 percent.
type Latency struct {
	Count         int64
	Committed     int64 // events committed in the time, by Recent only
	P50, P99, Max time.Duration
}

// histogram has buckets whose bounds grow by 2 percent, from a microsecond to over an hour.
type histogram struct {
	buckets [1200]int64
	count   int64
	max     time.Duration
}

var bucketStep = math.Log(1.02)

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	i := 0
	if d > time.Microsecond {
		i = min(1+int(math.Log(float64(d)/float64(time.Microsecond))/bucketStep), len(h.buckets)-1)
	}
	h.buckets[i]++
	h.count++
	h.max = max(h.max, d)
}

func (h *histogram) latency() Latency {
	return Latency{Count: h.count, P50: h.quantile(0.50), P99: h.quantile(0.99), Max: h.max}
}

// quantile is the upper bound of the bucket that holds the quantile, never above the maximum.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(h.count)))
	if rank == 0 {
		return 0
	}
	for i, n := range h.buckets {
		rank -= n
		if rank <= 0 {
			return min(time.Duration(math.Exp(float64(i)*bucketStep)*float64(time.Microsecond)), h.max)
		}
	}
	return h.max
}
