package lanes

import (
	"fmt"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Kind says how much of the key space a Part is.
type Kind uint8

// The kinds of part.
const (
	WholeLane  Kind = iota // every row of Lane
	WholeTopic             // every row of Topic, in all owned lanes
	OneKey                 // the rows of (Topic, Key), which lie in Lane
	OneRow                 // the row ID, which has no key and so no order to keep
)

var kindNames = [...]string{"lane", "topic", "key", "row"}

func (k Kind) String() string { return kindNames[k] }

// Part is a share of the outbox that is live or behind as a whole. Fields that its kind does
// not use are zero, so that equal parts are equal values.
type Part struct {
	Kind  Kind
	Lane  source.Lane
	Topic string
	Key   string
	ID    int64
	Ref   string // of the row ID, see source.Event.Ref
}

func (p Part) String() string {
	switch p.Kind {
	case WholeLane:
		return fmt.Sprintf("lane %d", p.Lane)
	case WholeTopic:
		return fmt.Sprintf("topic %q", p.Topic)
	case OneKey:
		return fmt.Sprintf("key %q of topic %q", p.Key, p.Topic)
	default:
		return fmt.Sprintf("row %s of topic %q", (&source.Event{ID: p.ID, Ref: p.Ref}).Name(), p.Topic)
	}
}

// overlaps reports whether some row can belong to both parts. Parts of one kind are
// disjoint unless they are equal.
func (p Part) overlaps(q Part) bool {
	if p.Kind == q.Kind {
		return p == q
	}
	if p.Kind > q.Kind {
		p, q = q, p
	}
	switch p.Kind {
	case WholeLane:
		return q.Kind == WholeTopic || q.Lane == p.Lane
	case WholeTopic:
		return q.Topic == p.Topic
	default:
		return false // a row without a key is in no key's part
	}
}

// partOf is the smallest part that the event belongs to: the one that waits when only this
// event cannot be delivered.
func partOf(ev *source.Event) Part {
	if ev.Key == nil {
		return Part{Kind: OneRow, Lane: ev.Lane, Topic: ev.Topic, ID: ev.ID, Ref: ev.Ref}
	}
	return keyPart(ev)
}

func keyPart(ev *source.Event) Part {
	return Part{Kind: OneKey, Lane: ev.Lane, Topic: ev.Topic, Key: string(ev.Key)}
}

func topicPart(topic string) Part { return Part{Kind: WholeTopic, Topic: topic} }

func lanePart(lane source.Lane) Part { return Part{Kind: WholeLane, Lane: lane} }

// waiting is a part that is behind, or live again on trial: nothing of it has been
// acknowledged since.
type waiting struct {
	part     Part
	room     bool         // it waits for room in memory or for its first read, whatever failed before
	gained   bool         // a lane that waits for its first read
	class    source.Class // of the last failure; Acked where there was none
	err      error
	event    int64 // the row that could not be delivered
	name     string
	size     int // its size in bytes
	attempts int
	since    time.Time
	retryAt  time.Time
	trial    bool
	stalled  *run // of the key, for whose outcomes it waits besides; nil for none
}

// blocked reports whether the part waits because something of it could not be delivered, and
// not for room.
func (w *waiting) blocked() bool { return !w.room }

// failed reports whether something of the part could not be delivered, and nothing of it was
// delivered since.
func (w *waiting) failed() bool { return w.class != source.Acked }

// Parked describes a part that waits because something of it could not be delivered, or has no
// answer from the broker while others have.
type Parked struct {
	Part
	Event    int64  // the row that could not be delivered, or the first without an answer
	Name     string // what users call it
	Size     int    // its size, see source.Event.Size
	Class    source.Class
	Err      error
	Attempts int
	Since    time.Time
	RetryAt  time.Time // past or zero while a retry or the answer is on its way
}

// covers reports whether the event belongs to the part.
func (p Part) covers(ev *source.Event) bool {
	switch p.Kind {
	case WholeLane:
		return p.Lane == ev.Lane
	case WholeTopic:
		return p.Topic == ev.Topic
	case OneKey:
		return ev.Key != nil && p.Topic == ev.Topic && p.Key == string(ev.Key)
	default:
		return p.ID == ev.ID
	}
}
