package lanes

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// newStalled starts a story in which rows 1 and 3, of the key "dead", have stalled while rows 2
// and 4, of another one, are acknowledged. Rows 5 and 6 follow, one of each.
func newStalled(t *testing.T, cfg Config) *story {
	t.Helper()
	s := newStory(t, cfg)
	for range 2 {
		s.insert("orders", "dead")
		s.insert("orders", "fine")
	}
	s.expect(ids(1, 4))
	s.outcome(source.Acked, 2, 4)
	s.insert("orders", "dead")
	s.insert("orders", "fine")
	s.wait(s.e.cfg.StallAfter - time.Millisecond)
	s.expect()
	s.wait(time.Millisecond)
	return s
}

// A partition without leader takes longer to answer than others: only its keys wait, in order,
// and what waits is on view.
func TestC96DeadPartitionHoldsUpItsKeysOnly(t *testing.T) {
	s := newStalled(t, Config{})
	s.expect([]int64{6})
	s.outcome(source.Acked, 6)
	s.expectParked(Parked{Part: Part{Kind: OneKey, Topic: "orders", Key: "dead"}, Event: 1, Class: source.Broker})
	if p := s.e.Parked()[0]; !errors.Is(p.Err, ErrStalled) || p.Since != epoch {
		t.Errorf("parked since %v with %v", p.Since.Sub(epoch), p.Err)
	}
	if stats := s.stats(); stats.Stalled != 2 || stats.Waiting != 1 || stats.Flying != 2 || stats.Blocked != [4]int{} || stats.Overflown != 0 {
		t.Errorf("while events have stalled: %+v", stats)
	}
	if notes := s.noted(Stalled); len(notes) != 1 || notes[0].Part.Topic != "orders" || notes[0].Event != 1 {
		t.Errorf("the notes are %+v", notes)
	}
	for range 3 {
		s.insert("orders", "fine")
	}
	if got := s.acknowledge(); !slices.Equal(got, ids(7, 9)) {
		t.Errorf("of the other key %v were submitted", got)
	}
	s.outcome(source.Acked, 1)
	s.wait(time.Minute)
	s.expect()
	s.outcome(source.Acked, 3)
	s.expect([]int64{5})
	s.outcome(source.Acked, 5)
	s.expectParked()
	if notes := s.noted(Flowing); len(notes) != 1 || len(s.noted(Stalled)) != 0 {
		t.Errorf("the notes are %+v", notes)
	}
	s.expectLeft()
	if stats := s.stats(); stats.Stalled != 0 || stats.Waiting != 0 || stats.Submitted != 9 {
		t.Errorf("in the end: %+v", stats)
	}
}

// What has stalled and fails comes back ahead of what follows it.
func TestC96StalledEventsFailInOrder(t *testing.T) {
	s := newStalled(t, Config{})
	s.expect([]int64{6})
	s.outcome(source.Acked, 6)
	s.outcome(source.HeldBack, 3)
	s.outcome(source.Broker, 1)
	s.wait(s.e.cfg.Broker.Max)
	if got := s.acknowledge(); !slices.Equal(got, []int64{1, 3, 5}) {
		t.Errorf("after the failure %v were submitted", got)
	}
	s.expectLeft()
}

// Where nothing is acknowledged all of the broker may be gone: nothing more is given to it.
func TestC96OutageSplitsNothing(t *testing.T) {
	s := newStory(t, Config{Lanes: 2})
	for _, lane := range []source.Lane{0, 1} {
		s.insert("orders", keysOf(lane, 1)[0])
	}
	s.expect([]int64{1}, []int64{2})
	for _, lane := range []source.Lane{0, 1} {
		s.insert("orders", keysOf(lane, 2)[1])
	}
	s.wait(time.Minute)
	s.expect()
	s.outcome(source.Acked, 2)
	if got := s.acknowledge(); !slices.Equal(got, []int64{4, 3}) && !slices.Equal(got, []int64{3, 4}) {
		t.Errorf("once the broker has answered %v were submitted", got)
	}
}

// The whole broker goes while some of a run is acknowledged: what is sent later has no answer
// either, so nothing is split before something has.
func TestC96OutageInTheMiddleOfARun(t *testing.T) {
	s := newStory(t, Config{Lanes: 2})
	first, second := keysOf(0, 2), keysOf(1, 1)[0]
	s.insert("orders", first[0])
	s.insert("orders", first[1])
	s.expect(ids(1, 2))
	s.outcome(source.Acked, 2)
	s.insert("orders", second)
	s.wait(s.e.cfg.StallAfter / 10)
	s.expect([]int64{3})
	s.insert("orders", first[1])
	s.wait(time.Minute)
	s.expect()
	s.expectParked()
	s.outcome(source.Acked, 3)
	s.expect([]int64{4})
}

// The next key of a dead partition costs its lane less, and a row without a key holds up nobody.
func TestC96SecondStallIsShort(t *testing.T) {
	s := newStalled(t, Config{})
	s.expect([]int64{6})
	s.outcome(source.Acked, 6)
	s.insert("orders", "dead as well")
	s.insert("orders", "")
	s.insert("orders", "fine")
	s.work()
	s.wait(s.e.cfg.MaxPoll)
	s.expect(ids(7, 9))
	s.outcome(source.Acked, 9)
	s.insert("orders", "fine")
	s.wait(s.e.cfg.StallAfter / 10)
	s.expect([]int64{10})
	if stats := s.stats(); stats.Stalled != 4 || stats.Waiting != 2 {
		t.Errorf("with a second key and a row without one: %+v", stats)
	}
	s.outcome(source.Broker, 8)
	s.outcome(source.Acked, 10)
	s.wait(s.e.cfg.Broker.Max)
	s.expect([]int64{8})
}

// Past the bound on keys that wait, the lane waits.
func TestC96StalledKeysAreBounded(t *testing.T) {
	s := newStory(t, Config{MaxParts: 1})
	for _, key := range []string{"dead", "dead as well", "fine"} {
		s.insert("orders", key)
	}
	s.expect(ids(1, 3))
	s.outcome(source.Acked, 3)
	s.insert("orders", "fine")
	s.wait(time.Minute)
	s.expect()
	s.outcome(source.Acked, 2)
	s.expect([]int64{4})
}

// A lane with stalled events is not drained before they are acknowledged and deleted.
func TestC96StalledLaneIsNotDrained(t *testing.T) {
	s := newStalled(t, Config{})
	s.expect([]int64{6})
	s.outcome(source.Acked, 6)
	s.e.Drain(0)
	s.wait(time.Minute)
	if len(s.drained) != 0 {
		t.Fatal("the lane is said to be drained while events are in flight")
	}
	s.outcome(source.Acked, 1, 3)
	s.wait(time.Minute)
	if !slices.Equal(s.drained, []source.Lane{0}) {
		t.Fatalf("the lanes %v are said to be drained", s.drained)
	}
	s.expect()
	s.expectLeft(5)
}

// The key still waits when the lane stays ours: after a lease that was renewed late, and after a
// drain that was called off.
func TestC96StalledKeyWaitsAcrossASuspension(t *testing.T) {
	for name, interrupt := range map[string]func(s *story){
		"suspended": func(s *story) {
			s.e.Trust(s.now, s.now.Add(time.Second))
			s.wait(2 * time.Second)
			s.e.Trust(s.now, s.now.Add(time.Hour))
		},
		"drain called off": func(s *story) {
			s.e.Drain(0)
			s.wait(time.Second)
			s.e.Gain(s.now, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStalled(t, Config{})
			s.expect([]int64{6})
			s.outcome(source.Acked, 6)
			interrupt(s)
			s.insert("orders", "fine")
			if got := s.acknowledge(); !slices.Equal(got, []int64{7}) {
				t.Fatalf("while events have stalled %v were submitted", got)
			}
			s.outcome(source.Acked, 1, 3)
			if got := s.acknowledge(); !slices.Equal(got, []int64{5}) {
				t.Fatalf("after them %v were submitted", got)
			}
			s.expectLeft()
		})
	}
}

// Whatever was asked of a lane since it was lost, it is read anew only when nothing of it is in
// flight: another replica may have sent those events, and what follows them.
func TestLostLaneWaitsForItsOutcomes(t *testing.T) {
	s := newStory(t, Config{})
	s.insert("orders", "a")
	s.insert("orders", "a")
	s.expect(ids(1, 2))
	s.e.Lose(0)
	s.e.Gain(s.now, 0)
	s.e.Drain(0)
	s.e.Gain(s.now, 0)
	s.insert("orders", "b")
	s.wait(time.Minute)
	s.expect()
	s.table.remove(s.table.byID[1]) // by the other replica
	s.outcome(source.Broker, 1, 2)
	if got := s.acknowledge(); !slices.Equal(got, ids(2, 3)) {
		t.Errorf("once the outcomes are there %v were submitted", got)
	}
}
