package lanes

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Row 1 of a key is refused: 2 and 3 wait for it, other keys of the lane go on, and after the
// limit is raised the order is 1, 2, 3.
func TestC19FailedEventHoldsBackItsKey(t *testing.T) {
	s := newStory(t, Config{})
	s.insertSized("orders", "a", 5000)
	s.insert("orders", "a")
	s.insert("orders", "b")
	s.insert("orders", "a")
	s.expect(ids(1, 4))
	s.outcome(source.Acked, 3)
	s.outcome(source.HeldBack, 2, 4)
	s.outcome(source.Record, 1)
	s.expectParked(Parked{Part: keyPart(s.table.byID[1].Event), Event: 1, Class: source.Record, Attempts: 1})
	s.expectLeft(1, 2, 4)

	s.insert("orders", "a")
	s.insert("orders", "c")
	s.wait(time.Second)
	s.expect([]int64{6})
	s.outcome(source.Acked, 6)

	// The second attempt fails as well. Nothing of the key runs ahead of it, at any time.
	s.wait(s.e.cfg.Record.Min)
	s.expect([]int64{1, 2, 4, 5})
	s.outcome(source.Record, 1)
	s.outcome(source.HeldBack, 2, 4, 5)
	s.expectParked(Parked{Part: keyPart(s.table.byID[1].Event), Event: 1, Class: source.Record, Attempts: 2})

	s.wait(2 * s.e.cfg.Record.Min)
	s.expect([]int64{1, 2, 4, 5})
	s.outcome(source.Acked, 1, 2, 4, 5)
	s.expectLeft()
	s.expectParked()
	if n := s.stats().Violations; n != 0 {
		t.Errorf("%d violations are counted", n)
	}
	if n := len(s.noted(Healed)); n != 1 {
		t.Errorf("%d parts are said to be healed", n)
	}
}

// A later row of the key that is acknowledged all the same is counted and named.
func TestC19LaterEventThatIsOutIsAViolation(t *testing.T) {
	s := newStory(t, Config{})
	for range 3 {
		s.insert("orders", "a")
	}
	s.expect(ids(1, 3))
	s.outcome(source.Record, 1)
	s.outcome(source.Acked, 2, 3)
	if n := s.stats().Violations; n != 2 {
		t.Errorf("%d violations are counted, want 2", n)
	}
	notes := s.noted(Violation)
	if len(notes) != 2 || notes[0].Event != 1 || notes[0].Later != 2 || notes[1].Later != 3 {
		t.Errorf("the violations are noted as %+v", notes)
	}
}

// Ten rows at the head can never be written. The thousand behind them go out without delay;
// the ten are listed and go out by command once the cause is gone.
func TestC20PoisonRowsDoNotEatEveryBatch(t *testing.T) {
	s := newStory(t, Config{PageEvents: 10, RunEvents: 10, Record: Backoff{time.Hour, time.Hour}})
	for i := range 10 {
		s.insert("closed", fmt.Sprint("key ", i))
	}
	for i := range 1000 {
		s.insert("open", fmt.Sprint("key ", i%50))
	}
	s.expect(ids(1, 10))
	s.outcome(source.Record, ids(1, 10)...)
	start := s.now
	if got := s.acknowledge(); !slices.Equal(got, ids(11, 1010)) {
		t.Errorf("%d rows were delivered, want 11 to 1010", len(got))
	}
	// A poll's pause after each page is the story's own.
	if took := s.now.Sub(start); took > time.Duration(1000/10+10)*s.e.cfg.MaxPoll {
		t.Errorf("the good rows took %v", took)
	}
	parked := s.e.Parked()
	if len(parked) != 10 {
		t.Fatalf("parked is %+v", parked)
	}
	for i, p := range parked {
		if p.Event != int64(i+1) || p.Topic != "closed" || p.Kind != OneKey || p.Attempts < 1 || p.Size == 0 || !errors.Is(p.Err, errRefused) {
			t.Errorf("parked is %+v", p)
		}
	}
	if n := s.e.RetryAll(s.now); n != 10 {
		t.Errorf("%d parts are retried by command, want 10", n)
	}
	s.expect(ids(1, 10))
	s.outcome(source.Acked, ids(1, 10)...)
	s.expectLeft()
	s.expectParked()
}

// The broker is away for half an hour: no row's attempts are counted, retries are rare, and
// afterwards everything arrives in order.
func TestC21OutageCountsNoAttempts(t *testing.T) {
	s := newStory(t, Config{})
	for i := range 1000 {
		s.insert("orders", fmt.Sprint("key ", i%7))
	}
	const outage = 30 * time.Minute
	attempts := 0
	end := s.now.Add(outage)
	for s.now.Before(end) {
		s.work()
		for _, run := range s.runs {
			attempts++
			s.outcome(source.Broker, run...)
		}
		s.runs = nil
		if s.now = s.next; s.next.IsZero() {
			t.Fatal("the engine waits for nothing during the outage")
		}
		if len(s.e.Parked()) > 0 {
			t.Fatalf("an outage parks %+v", s.e.Parked())
		}
		if !s.stats().Paused && attempts == 0 {
			t.Fatal("the engine does not pause")
		}
	}
	if most := int(outage/(s.e.cfg.Broker.Max*4/5)) + 10; attempts > most {
		t.Errorf("%d attempts were made in %v, want at most %d", attempts, outage, most)
	}
	if most := int(outage / s.e.cfg.MaxPoll * 21 / 20); s.reads > most {
		t.Errorf("%d reads were made in %v, want at most %d", s.reads, outage, most)
	}
	s.wait(s.e.cfg.Broker.Max)
	if got := s.acknowledge(); !slices.Equal(got, ids(1, 1000)) {
		t.Errorf("after the outage %d rows arrived, not 1 to 1000 in order", len(got))
	}
	s.expectLeft()
	if stats := s.stats(); stats.Repeated == 0 || stats.Violations != 0 || stats.Dropped != 0 {
		t.Errorf("after the outage: %+v", stats)
	}
	if paused, resumed := len(s.noted(Paused)), len(s.noted(Resumed)); paused != attempts || resumed != 1 {
		t.Errorf("%d pauses of %d attempts and %d resumptions are noted", paused, attempts, resumed)
	}
}

// One record is too large: it alone waits, with its size and cause, and its neighbours are
// sent once. When the limit is raised it goes out without a restart.
func TestC71TooLargeRecordWaitsAlone(t *testing.T) {
	s := newStory(t, Config{})
	s.insert("orders", "a")
	large := s.insertSized("orders", "b", 1_200_000)
	s.insert("orders", "")
	s.insertSized("orders", "", 1_200_000)
	s.expect([]int64{1})
	s.outcome(source.Acked, 1)
	s.expect([]int64{large})
	s.outcome(source.Record, large)
	s.expect([]int64{3})
	s.outcome(source.Acked, 3)
	s.expect([]int64{4})
	s.outcome(source.Record, 4)
	notes := s.noted(Blocked)
	if len(notes) != 2 || notes[0].Event != large || notes[0].Size < 1_200_000 || !errors.Is(notes[0].Err, errRefused) ||
		notes[0].Class != source.Record || !notes[0].RetryAt.After(s.now) || notes[1].Part.Kind != OneRow {
		t.Errorf("the large records are noted as %+v", notes)
	}
	s.insert("orders", "a")
	s.insert("orders", "")
	s.wait(s.e.cfg.MaxPoll)
	s.expect([]int64{5, 6})
	s.outcome(source.Acked, 5, 6)
	s.wait(s.e.cfg.Record.Min)
	s.expect([]int64{2})
	s.outcome(source.Acked, 2)
	s.expect([]int64{4})
	s.outcome(source.Acked, 4)
	s.expectLeft()
	s.expectParked()
}

// A topic is missing: its rows wait in the table and not in memory, the good topic is not
// delayed, and once the topic exists everything flows in order.
func TestC73MissingTopicWaitsAlone(t *testing.T) {
	s := newStory(t, Config{Lanes: 4, MaxEvents: 100, Topic: Backoff{500 * time.Millisecond, 10 * time.Second}})
	topics := []string{"missing", "good"}
	const rows = 1000
	for i := range rows {
		s.insert(topics[i%2], fmt.Sprint("key ", i%10))
	}
	good, wasted := 0, 0
	end := s.now.Add(2 * time.Minute)
	for s.now.Before(end) {
		s.wait(s.e.cfg.MaxPoll)
		runs := s.runs
		s.runs = nil
		for _, run := range runs {
			for _, id := range run {
				if s.table.byID[id].Topic == "good" {
					good++
					s.outcome(source.Acked, id)
				} else {
					wasted++
					s.outcome(source.Topic, id)
				}
			}
		}
		if n := s.stats().InMemory; n > 100 {
			t.Fatalf("%d events are in memory", n)
		}
		if good == rows/2 && s.now.Sub(epoch) > 10*time.Second && s.stats().InMemory > 0 {
			t.Fatalf("%d events of the missing topic stay in memory", s.stats().InMemory)
		}
	}
	if good != rows/2 {
		t.Errorf("%d good rows were delivered of %d", good, rows/2)
	}
	parked := s.e.Parked()
	if len(parked) != 1 || parked[0].Part != topicPart("missing") || parked[0].Attempts < 5 {
		t.Fatalf("parked is %+v", parked)
	}
	if wasted > 100*(parked[0].Attempts+1) {
		t.Errorf("%d events were submitted in vain in %d attempts", wasted, parked[0].Attempts)
	}
	s.wait(s.e.cfg.Topic.Max)
	last := make(map[source.TopicKey]int)
	for _, id := range s.acknowledge() {
		r := s.table.byID[id]
		if r.Topic != "missing" || r.place != last[r.TopicKey()] {
			t.Fatalf("row %d is number %d of its key and came after %d", id, r.place, last[r.TopicKey()])
		}
		last[r.TopicKey()]++
	}
	s.expectLeft()
	s.expectParked()
}

// Past MaxParts the whole lane waits, and comes back: the keys that are on trial inside it make
// room for the one that stands in the way.
func TestLaneWaitsPastMaxPartsAndComesBack(t *testing.T) {
	s := newStory(t, Config{MaxParts: 2, PageEvents: 3, RunEvents: 1, Record: Backoff{time.Second, time.Second}})
	for _, key := range []string{"a", "b", "c", "d"} {
		s.insert("orders", key)
	}
	for id := int64(1); id <= 3; id++ {
		s.expect([]int64{id})
		s.outcome(source.Record, id)
	}
	s.expectParked(
		Parked{Part: keyPart(s.table.byID[1].Event), Event: 1, Class: source.Record, Attempts: 1},
		Parked{Part: keyPart(s.table.byID[2].Event), Event: 2, Class: source.Record, Attempts: 1},
		Parked{Part: lanePart(0), Event: 3, Class: source.Record, Attempts: 1})
	// Only the last row can be written now.
	var delivered []int64
	for range 100 {
		s.wait(100 * time.Millisecond)
		runs := s.runs
		s.runs = nil
		for _, run := range runs {
			if run[0] == 4 {
				delivered = append(delivered, 4)
				s.outcome(source.Acked, 4)
			} else {
				s.outcome(source.Record, run[0])
			}
		}
		if n := s.e.kinds[OneKey] + s.e.kinds[OneRow]; n > 2 {
			t.Fatalf("%d keys wait on their own", n)
		}
	}
	if len(delivered) > 1 {
		t.Errorf("row 4 was delivered %d times", len(delivered))
	}
	// With the first row written, there is room for the two others.
	for range 100 {
		s.wait(100 * time.Millisecond)
		runs := s.runs
		s.runs = nil
		for _, run := range runs {
			if run[0] == 1 || run[0] == 4 {
				s.outcome(source.Acked, run[0])
			} else {
				s.outcome(source.Record, run[0])
			}
		}
	}
	if s.table.left() != 2 {
		t.Errorf("%d rows are left, parked %+v", s.table.left(), s.e.Parked())
	}
}

// A lane and a topic fall behind by the same run, and the event that the lane waits for is of
// that topic: each remembers for itself where it must be read from.
func TestLaneAndTopicFallBehindTogether(t *testing.T) {
	s := newStory(t, Config{Lanes: 2, MaxParts: 1, Rescan: time.Hour,
		Record: Backoff{10 * time.Second, 10 * time.Second}, Topic: Backoff{time.Hour, time.Hour}})
	near, far := keysOf(0, 3), keysOf(1, 2)
	s.insert("orders", far[0])
	s.expect([]int64{1})
	s.outcome(source.Record, 1) // the one part that may wait on its own
	s.wait(7 * time.Second)
	s.insert("closed", near[0])
	s.insert("closed", near[1])
	s.wait(s.e.cfg.MaxPoll)
	s.expect([]int64{2, 3})
	s.outcome(source.Record, 2)
	s.outcome(source.Topic, 3)
	if blocked := s.stats().Blocked; blocked[WholeLane] != 1 || blocked[WholeTopic] != 1 {
		t.Fatalf("the parts that wait are %v", blocked)
	}
	s.insert("orders", near[2])
	s.insert("orders", far[1])
	s.wait(s.e.cfg.MaxPoll)
	s.expect([]int64{5})
	s.outcome(source.Acked, 5)
	s.wait(3 * time.Second)
	s.expect([]int64{1})
	s.outcome(source.Acked, 1)
	s.wait(s.e.cfg.Record.Max)
	s.expect([]int64{4})
	s.outcome(source.Acked, 4)
	s.expectLeft(2, 3)
}
