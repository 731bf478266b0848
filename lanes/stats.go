package lanes

import (
	"math/bits"
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Stats are counts since the start, and gauges. Read = Acked + InMemory + Dropped at any time.
type Stats struct {
	Read       uint64 // events taken into memory
	Submitted  uint64 // events handed to the broker's client
	Repeated   uint64 // of these, after an attempt that may have been written
	Acked      uint64 // acknowledged by the broker
	Deleted    uint64 // deleted from the outbox after that
	Dropped    uint64 // dropped from memory, to be read again
	Discarded  uint64 // pages thrown away because a transaction that was set aside had ended
	Violations uint64 // events acknowledged before an earlier one of their key
	// LeasesEnded counts the times that the leases were not renewed in time.
	LeasesEnded uint64
	Latency     Histogram

	InMemory  int // events queued, in flight, or waiting for the rest of their run
	Bytes     int // their size
	Flying    int // events in flight
	Undeleted int // events acknowledged and not yet deleted
	FloorLag  int64
	Blocked   [4]int // parts that wait after a failure, by Kind
	Overflown int    // lanes that wait for room in memory or for their first read
	Stalled   int    // events in flight that have no answer while others have
	Waiting   int    // keys that wait for those
	Owned     int    // lanes that are ours
	Paused    bool   // submits wait for the broker side
	ReadFails int    // reads failed in a row
	DelFails  int    // deletes failed in a row
}

// Histogram counts durations in buckets that double: bucket i holds those below
// HistogramBound(i), the last one the rest.
type Histogram struct {
	Buckets [histogramBuckets]uint64
	Sum     time.Duration
}

const (
	histogramBuckets = 24
	histogramShift   = 8 // the first bucket ends at 256 µs
)

// HistogramBound is the upper bound of a bucket; the last bucket has none.
func HistogramBound(i int) time.Duration {
	return time.Microsecond << (histogramShift + i)
}

func (h *Histogram) add(d time.Duration) {
	d = max(d, 0) // the database's clock and ours differ
	h.Sum += d
	i := bits.Len64(uint64(d/time.Microsecond) >> histogramShift)
	h.Buckets[min(i, histogramBuckets-1)]++
}

// Stats returns the counts and gauges of now.
func (e *Engine) Stats(now time.Time) Stats {
	s := e.stats
	s.InMemory = e.known.Len() - e.undeleted
	s.Bytes = e.bytes
	s.Flying = e.flying
	s.Undeleted = e.undeleted
	if e.floor.Top() != Start && e.floor.At() != Start {
		s.FloorLag = e.floor.Top() - e.floor.At()
	}
	for part, w := range e.parts {
		switch {
		case w.failed():
			s.Blocked[part.Kind]++
		case w.stalled == nil:
			s.Overflown++
		}
		if w.stalled != nil {
			s.Waiting++
		}
	}
	s.Owned = e.owns[owned]
	s.Stalled = e.stalled
	s.Paused = now.Before(e.pausedUntil)
	s.ReadFails = e.readFails
	for i := range e.shards {
		s.DelFails = max(s.DelFails, e.shards[i].fails)
	}
	return s
}

// Parked lists what waits because it could not be delivered or has no answer, oldest first.
func (e *Engine) Parked() []Parked {
	var list []Parked
	for part, w := range e.parts {
		if !w.failed() && w.stalled == nil {
			continue
		}
		p := Parked{
			Part: part, Event: w.event, Name: w.name, Size: w.size, Class: w.class, Err: w.err,
			Attempts: w.attempts, Since: w.since,
		}
		switch {
		case w.stalled != nil:
			first := w.stalled.first()
			p.Event, p.Name, p.Size, p.Class, p.Err, p.Since = first.id, first.ev.Name(), int(first.size), source.Broker, ErrStalled, w.stalled.sent
		case !w.trial:
			p.RetryAt = w.retryAt
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Parked) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return int(min(max(a.Event-b.Event, -1), 1))
	})
	return list
}
