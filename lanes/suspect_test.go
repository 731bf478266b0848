package lanes

import (
	"testing"

	"github.com/outbox-forwarder/forwarder/source"
)

// The broker refuses a batch for the sake of one record: each is sent alone, one at a time,
// until it is found. Its neighbours are delivered, and other topics do not wait.
func TestSuspectsAreSentAlone(t *testing.T) {
	s := newStory(t, Config{Lanes: 1})
	for _, key := range []string{"a", "b", "c", "a"} {
		s.insert("orders", key)
	}
	s.expect(ids(1, 4))
	s.outcome(source.Suspect, ids(1, 4)...)
	s.insert("orders", "d")
	s.insert("other", "d")
	s.expect([]int64{1})
	s.outcome(source.Acked, 1)
	s.wait(s.e.cfg.MaxPoll)
	s.expect([]int64{2})
	s.outcome(source.Suspect, 2)
	s.expectParked(Parked{Part: keyPart(s.table.byID[2].Event), Event: 2, Class: source.Record, Attempts: 1})
	s.expect([]int64{3})
	s.outcome(source.Acked, 3)
	s.expect([]int64{4})
	s.outcome(source.Acked, 4)
	s.expect([]int64{5, 6})
	s.outcome(source.Acked, 5, 6)
	s.expectLeft(2)
}

// While a topic has suspects in one lane, another lane sends other topics, and of this one
// nothing.
func TestInquestHoldsUpItsTopicOnly(t *testing.T) {
	s := newStory(t, Config{Lanes: 2})
	key0, key1 := keysOf(0, 1)[0], keysOf(1, 1)[0]
	s.insert("orders", key0)
	s.insert("orders", key0)
	s.insert("orders", key1)
	s.expect([]int64{1, 2}, []int64{3})
	s.outcome(source.Suspect, 1, 2)
	s.insert("orders", key1)
	s.insert("other", key1)
	s.wait(s.e.cfg.MaxPoll)
	s.expect() // 3 is still in flight
	s.outcome(source.Acked, 3)
	s.expect([]int64{1}, []int64{5})
	s.outcome(source.Acked, 5)
	s.expect()
	s.outcome(source.Acked, 1)
	s.expect([]int64{2})
	s.outcome(source.Acked, 2)
	s.expect([]int64{4})
	s.outcome(source.Acked, 4)
	s.expectLeft()
}

// A key has a row that the broker refuses and, behind it, one that is too large. The rows ahead
// of both must come out although each retry meets both.
func TestEventsAheadOfAFailedOneDoNotWait(t *testing.T) {
	s := newStory(t, Config{})
	for range 4 {
		s.insert("orders", "a")
	}
	s.expect(ids(1, 4))
	s.outcome(source.Record, 3)
	s.outcome(source.HeldBack, 4)
	s.outcome(source.Suspect, 1, 2)
	s.expect([]int64{1})
	s.outcome(source.Acked, 1)
	s.expect([]int64{2})
	s.outcome(source.Suspect, 2)
	s.expectLeft(2, 3, 4)
	s.wait(s.e.cfg.Record.Min)
	s.expect(ids(2, 4))
	s.outcome(source.Acked, ids(2, 4)...)
	s.expectLeft()
}

// Of two rows ahead of a parked one the first fails later: the second may not pass it.
func TestEventAheadOfAFailedOneFailsLater(t *testing.T) {
	s := newStory(t, Config{RunEvents: 3})
	for range 3 {
		s.insert("orders", "a")
	}
	s.expect(ids(1, 3))
	s.outcome(source.Record, 3)
	s.outcome(source.Suspect, 1, 2)
	s.expect([]int64{1})
	s.outcome(source.Record, 1)
	s.expect()
	s.expectLeft(1, 2, 3)
	s.wait(s.e.cfg.Record.Max)
	s.expect(ids(1, 3))
	s.outcome(source.Acked, ids(1, 3)...)
	s.expectLeft()
}
