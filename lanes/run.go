package lanes

import "time"

// run is what a lane has in flight: its events in order. The next one is formed once each event
// has its outcome, or once those that keep the others waiting are split off, see split.
type run struct {
	items   []*item
	left    int  // events without an outcome
	next    int  // items[:next] have theirs
	failed  bool // an outcome was not Acked
	lone    bool // it is one event that was sent with nothing else of its topic in flight
	sent    time.Time
	stalled bool     // it was split off
	behind  *waiting // the key that waits for it; nil for a row without a key
}

// first returns the first event without an outcome, of which there must be one.
func (r *run) first() *item {
	for r.items[r.next].state != flying {
		r.next++
	}
	return r.items[r.next]
}
