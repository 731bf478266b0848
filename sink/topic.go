package sink

import (
	"sync"
	"sync/atomic"
	"time"
)

// A topic is what the Producer knows about one topic and what it does with it now.
//
// Groups go to the client at once while the topic is ready. While it is not (its settings
// are being asked for, or it moves to another link) groups queue in waiting, in order, and
// the one goroutine that made it unready hands them over before it makes it ready again.
// So the groups of one topic reach the client in the order of their submission.
type topic struct {
	name string

	mu      sync.Mutex
	set     *settings // the last answer; nil before the first
	tried   time.Time // when the last question was put, answered or not
	doubted bool      // a failure since then suggests that set is out of date
	ready   bool      // groups may go to the client
	busy    bool      // a goroutine looks after the topic; true while groups wait
	// sendTime: a timestamp was refused although the settings allow it (they could not be
	// read, or clocks differ). Records get the time of sending until the window changes.
	sendTime bool
	waiting  []*group
	link     *link         // the client that the topic's records go to; nil before the first
	linkID   [16]byte      // the topic's id when it took the link
	open     int           // groups that were handed to link and have outcomes to come
	drained  chan struct{} // closed when open falls to 0; nil when nobody waits for that
	used     time.Time
	warned   bool // the warning about reserved headers was given

	limit atomic.Int32 // the batch limit that the link's client fixes when it first sees the topic
	seen  atomic.Int32 // partition count of the link's client; 0 before the first record
}

// recheckAfter is the age from which settings are not good enough to turn an event away, and
// so the shortest time between two questions about a topic.
const recheckAfter = 500 * time.Millisecond

// usable reports whether the settings will do for a new group. Called with mu held.
func (t *topic) usable(now time.Time) bool {
	return t.set != nil && (now.Sub(t.tried) < recheckAfter || t.set.err == nil && !t.doubted)
}

// leave says that a group has got its last outcome.
func (t *topic) leave() {
	t.mu.Lock()
	t.open--
	if t.open == 0 && t.drained != nil {
		close(t.drained)
		t.drained = nil
	}
	t.mu.Unlock()
}

// partitionCount is the count that a group's keys are hashed over: the catalogue's, unless the
// client does not know as many partitions yet. Called with mu held.
func (t *topic) partitionCount() int32 {
	n := t.set.partitions
	if seen := t.seen.Load(); seen > 0 && seen < n {
		n = seen
	}
	return n
}

// idle reports that nothing goes on with the topic. Called with mu held.
func (t *topic) idle() bool { return !t.busy && t.open == 0 && len(t.waiting) == 0 }

// doubt notes a failure that suggests that the settings are out of date.
func (t *topic) doubt(badTimestamp bool) {
	t.mu.Lock()
	t.doubted = true
	t.sendTime = t.sendTime || badTimestamp
	t.mu.Unlock()
}

// Recheck makes the next events of every topic ask the brokers about it before anything is
// decided by what is known: somebody says that what was wrong no longer is.
func (p *Producer) Recheck() {
	for _, t := range p.allTopics() {
		t.mu.Lock()
		t.doubted, t.tried = true, time.Time{}
		t.mu.Unlock()
	}
}

// ruin marks the topic's client as failed for good.
func (t *topic) ruin() {
	t.mu.Lock()
	if t.link != nil {
		t.link.ruined.Store(true)
	}
	t.mu.Unlock()
}
