package sourcetest

import (
	"errors"
	"slices"
	"sync"

	"github.com/outbox-forwarder/forwarder/source"
)

// broker acknowledges what it is given, and remembers it. Several forwarders may share one.
type broker struct {
	mu sync.Mutex
	// judge says what becomes of an event; nil acknowledges all.
	judge func(*source.Event) fate
	acked []*source.Event
}

// fate is what becomes of an event.
type fate int

const (
	acknowledged fate = iota
	inFlight          // no outcome ever
	refused           // the broker never takes this record
)

var errRefused = errors.New("refused")

// Submit implements lanes.Sink. Behind a refused event those of its key are held back.
func (b *broker) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, run := range runs {
		held := map[source.TopicKey]bool{}
		var outcomes []source.Outcome
		for _, ev := range run {
			f := acknowledged
			if b.judge != nil {
				f = b.judge(ev)
			}
			switch {
			case f == inFlight:
			case ev.Key != nil && held[ev.TopicKey()]:
				outcomes = append(outcomes, source.Outcome{ID: ev.ID, Class: source.HeldBack, Err: errRefused})
			case f == refused:
				if ev.Key != nil {
					held[ev.TopicKey()] = true
				}
				outcomes = append(outcomes, source.Outcome{ID: ev.ID, Class: source.Record, Err: errRefused})
			default:
				b.acked = append(b.acked, ev)
				outcomes = append(outcomes, source.Outcome{ID: ev.ID, Class: source.Acked})
			}
		}
		report(outcomes)
	}
}

// Recall takes nothing back: what has no outcome counts as on the wire.
func (b *broker) Recall() {}

func (b *broker) events() []*source.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.acked)
}

// payloads are those of the events in the order in which they were acknowledged.
func (b *broker) payloads() []string {
	var list []string
	for _, ev := range b.events() {
		list = append(list, string(ev.Payload))
	}
	return list
}

func (b *broker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.acked)
}

func (b *broker) setJudge(judge func(*source.Event) fate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.judge = judge
}
