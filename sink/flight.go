package sink

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/source"
)

// A flight is one submitted run on its way. It gathers the outcomes of its events and reports
// them together when the last one is there, so that a run costs one report; what a flight has
// when others keep it waiting is reported by the sweep (producer.go).
type flight struct {
	report func([]source.Outcome)
	landed func(*flight) // called once, just before the last report
	began  time.Time

	mu       sync.Mutex
	outcomes []source.Outcome // capacity for the whole run; entries never change once appended
	reported int              // outcomes[:reported] have been reported
	open     int              // events without an outcome: len(run) - len(outcomes)
	failed   map[source.TopicKey]struct{}
	groups   []*group

	anyFailed atomic.Bool // failed is not empty; spares the lock on the good path
}

// A group is the events of one flight that stand together under one topic.
type group struct {
	flight     *flight
	topic      *topic // nil for events that cannot have one
	slots      []slot
	partitions int32 // the partition count to hash keys over; 0 for the client's
	open       int   // slots without an outcome; guarded by flight.mu
	admitted   bool  // topic.open counts it; guarded by flight.mu
}

// A slot is one event on its way. The record's Context is the slot itself, which leads from
// the client's promise back to the event without an allocation or a map.
type slot struct {
	context.Context
	group  *group
	event  *source.Event
	record kgo.Record
}

func newFlight(run []*source.Event, report func([]source.Outcome), landed func(*flight)) *flight {
	return &flight{
		report:   report,
		landed:   landed,
		began:    time.Now(),
		outcomes: make([]source.Outcome, 0, len(run)),
		open:     len(run),
	}
}

// newSlots returns a slot for each event of the run.
func newSlots(run []*source.Event) []slot {
	slots := make([]slot, len(run))
	background := context.Background()
	for i, e := range run {
		slots[i].Context = background
		slots[i].event = e
	}
	return slots
}

// newGroup puts the slots under a topic.
func (f *flight) newGroup(t *topic, slots []slot) *group {
	g := &group{flight: f, topic: t, slots: slots, open: len(slots)}
	for i := range slots {
		slots[i].group = g
	}
	f.mu.Lock()
	f.groups = append(f.groups, g)
	f.mu.Unlock()
	return g
}

// split moves the slots from index i on to a new group of the same topic, which nothing has
// been done with yet.
func (g *group) split(i int) *group {
	f := g.flight
	rest := f.newGroup(g.topic, g.slots[i:])
	g.slots = g.slots[:i]
	f.mu.Lock()
	g.open -= len(rest.slots)
	left := g.leaving()
	f.mu.Unlock()
	if left {
		g.topic.leave()
	}
	return rest
}

// leaving reports whether the group has just lost its last open slot and its topic must be
// told. Called with flight.mu held.
func (g *group) leaving() bool {
	if g.open > 0 || !g.admitted {
		return false
	}
	g.admitted = false
	return true
}

// heldBack reports whether an earlier event of e's topic and key is known to have failed.
func (f *flight) heldBack(e *source.Event) bool {
	if e.Key == nil || !f.anyFailed.Load() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, failed := f.failed[e.TopicKey()]
	return failed
}

// settle records an event's outcome.
func (s *slot) settle(class source.Class, err error) {
	g := s.group
	f := g.flight
	f.mu.Lock()
	if class != source.Acked && s.event.Key != nil {
		if f.failed == nil {
			f.failed = make(map[source.TopicKey]struct{})
		}
		f.failed[s.event.TopicKey()] = struct{}{}
		f.anyFailed.Store(true)
	}
	f.outcomes = append(f.outcomes, source.Outcome{ID: s.event.ID, Class: class, Err: err})
	f.open--
	g.open--
	left := g.leaving()
	var out []source.Outcome
	if f.open == 0 {
		out = f.take()
	}
	f.mu.Unlock()

	// The topic first: a caller that sees the outcome may submit the key's next event.
	if left {
		g.topic.leave()
	}
	if out != nil {
		f.landed(f)
		f.report(out)
	}
}

// take returns the outcomes that were not reported yet. Called with mu held.
func (f *flight) take() []source.Outcome {
	n := len(f.outcomes)
	out := f.outcomes[f.reported:n:n]
	f.reported = n
	return out
}

// reportPart reports the outcomes of a flight that still waits for others, if it has any.
func (f *flight) reportPart() bool {
	f.mu.Lock()
	var out []source.Outcome
	if f.open > 0 && f.reported < len(f.outcomes) {
		out = f.take()
	}
	f.mu.Unlock()
	if out == nil {
		return false
	}
	f.report(out)
	return true
}

// waitingFor returns the topics of the events without an outcome.
func (f *flight) waitingFor() []*topic {
	f.mu.Lock()
	defer f.mu.Unlock()
	var topics []*topic
	for _, g := range f.groups {
		if g.open > 0 && g.topic != nil {
			topics = append(topics, g.topic)
		}
	}
	return topics
}
