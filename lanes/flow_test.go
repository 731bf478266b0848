package lanes

import (
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// A hot key fills its lane: it waits in the table, and the other lanes' rows behind it go on.
func TestC96HotKeyOverflowsAlone(t *testing.T) {
	s := newStory(t, Config{Lanes: 2, MaxEvents: 40, RunEvents: 5, PageEvents: 20, StallAfter: time.Hour})
	hot, cool := keysOf(0, 1)[0], keysOf(1, 1)[0]
	for range 200 {
		s.insert("orders", hot)
	}
	for range 10 {
		s.insert("orders", cool)
	}
	s.wait(time.Second)
	s.expect(ids(1, 5), ids(201, 205))
	s.outcome(source.Acked, ids(201, 205)...)
	s.expect(ids(206, 210))
	s.outcome(source.Acked, ids(206, 210)...)
	if stats := s.stats(); stats.Overflown != 1 || stats.InMemory > 40 || len(s.e.Parked()) != 0 {
		t.Errorf("with a hot lane: %+v", stats)
	}
	s.outcome(source.Acked, ids(1, 5)...)
	if got := s.acknowledge(); !slices.Equal(got, ids(6, 200)) {
		t.Errorf("the hot key came out as %v", got)
	}
	s.expectLeft()
}

// Under load what is new waits for company, and not otherwise: the next page is asked for 20 ms after
// a large one, and Ready names that moment.
func TestPagesWaitForCompany(t *testing.T) {
	page := func(first, n int64) *source.Page {
		p := &source.Page{}
		for id := first; id < first+n; id++ {
			p.Events = append(p.Events, &source.Event{ID: id, Topic: "orders", Key: []byte("a")})
		}
		return p
	}
	for name, c := range map[string]struct {
		events int64
		full   bool
		waits  time.Duration
	}{
		"few events":   {100, false, 0},
		"many events":  {600, false, 20 * time.Millisecond},
		"a full page":  {600, true, 0},
		"nothing else": {0, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := NewEngine(Config{Lanes: 1})
			now := time.Unix(1000, 0)
			e.Gain(now, 0)
			e.Ready(now)
			p := page(1, c.events)
			p.Full = c.full
			e.Page(now, p)
			e.Ready(now) // of a new lane the rest is read at once
			now = now.Add(time.Millisecond)
			e.Wake(now)
			r := e.Ready(now)
			if c.waits == 0 {
				if r.Read == nil && !e.reading {
					t.Errorf("nothing is read after a wake; the next look is in %v", r.Next.Sub(now))
				}
				return
			}
			due := e.readAt.Add(c.waits)
			if r.Read != nil || !r.Next.Equal(due) {
				t.Fatalf("after a wake: read %v, the next look in %v", r.Read, r.Next.Sub(now))
			}
			if r = e.Ready(due); r.Read == nil {
				t.Errorf("nothing is read %v after the page before", c.waits)
			}
		})
	}
}

// Deletes do not come back: submitting stops at half of the memory, and goes on with them.
func TestUndeletedAcknowledgementsStopSubmits(t *testing.T) {
	s := newStory(t, Config{MaxEvents: 20, RunEvents: 5})
	s.stuck = true
	for range 40 {
		s.insert("orders", "a")
	}
	if got := s.acknowledge(); !slices.Equal(got, ids(1, 10)) {
		t.Errorf("without deletes %v were submitted", got)
	}
	if stats := s.stats(); stats.Undeleted != 10 || stats.InMemory > 10 {
		t.Errorf("without deletes: %+v", stats)
	}
	s.stuck = false
	if got := s.acknowledge(); !slices.Equal(got, ids(11, 40)) {
		t.Errorf("with deletes %v were submitted", got)
	}
	s.expectLeft()
}

// The database is gone between acknowledgement and delete: the delete is tried again from
// memory, with pauses, and the record is not sent again.
func TestC17FailedDeleteIsRetriedFromMemory(t *testing.T) {
	s := newStory(t, Config{})
	s.stuck = true
	s.insert("orders", "a")
	s.insert("orders", "a")
	s.expect(ids(1, 2))
	s.outcome(source.Acked, 1, 2)
	s.wait(s.e.cfg.DeleteWait)
	attempts := 0
	for end := s.now.Add(time.Minute); s.now.Before(end); s.wait(100 * time.Millisecond) {
		sets := s.deletes
		s.deletes = nil
		for _, set := range sets {
			if !slices.Equal(set, ids(1, 2)) {
				t.Fatalf("the delete has the ids %v", set)
			}
			attempts++
			s.e.DeleteFailed(s.now, set)
		}
	}
	if attempts < 5 || attempts > 30 {
		t.Errorf("the delete was tried %d times in a minute", attempts)
	}
	s.expect()
	if stats := s.stats(); stats.DelFails != attempts || stats.Submitted != 2 || stats.Undeleted != 2 {
		t.Errorf("after %d failed deletes: %+v", attempts, stats)
	}
	s.stuck = false
	s.wait(s.e.cfg.Store.Max)
	s.expect()
	s.expectLeft()
	if stats := s.stats(); stats.DelFails != 0 || stats.Deleted != 2 {
		t.Errorf("after the delete: %+v", stats)
	}
}

// A failed read is tried again with pauses, and the table is then read from its start.
func TestFailedReadIsRetriedFromTheStart(t *testing.T) {
	s := newStory(t, Config{Rescan: time.Hour})
	for range 3 {
		s.insert("orders", "a")
	}
	s.expect(ids(1, 3))
	s.outcome(source.Acked, 1, 2, 3)
	s.wait(time.Second)
	if at := s.e.floor.At(); at != 3 {
		t.Fatalf("the floor is at %d", at)
	}
	attempts := 0
	end := s.now.Add(time.Minute)
	for s.now.Before(end) {
		r := s.e.Ready(s.now)
		if r.Read != nil {
			if attempts++; attempts > 1 && r.Read.Floor != Start {
				t.Fatalf("attempt %d reads from %d", attempts, r.Read.Floor)
			}
			s.e.ReadFailed(s.now)
			continue
		}
		s.now = r.Next
	}
	if attempts < 12 || attempts > 30 {
		t.Errorf("the read was tried %d times in a minute", attempts)
	}
	s.insert("orders", "a")
	s.wait(s.e.cfg.Store.Max)
	s.expect([]int64{4})
}

// The reads from the start of a table full of dead rows take a twentieth of the time of all
// replicas together, and not of each.
func TestRescansShareATwentieth(t *testing.T) {
	const (
		dear  = 300 * time.Millisecond // what each takes
		total = 10 * time.Minute
	)
	for _, replicas := range []int{1, 2, 4} {
		e := NewEngine(Config{Lanes: 8})
		for lane := range 8 / replicas {
			e.Gain(epoch, source.Lane(lane))
		}
		rescans, table := 0, newTable()
		for now := epoch; now.Before(epoch.Add(total)); {
			r := e.Ready(now)
			if r.Read == nil {
				now = r.Next
				continue
			}
			if r.Read.Rescan {
				now = now.Add(dear)
				rescans++
			}
			e.Page(now, table.read(r.Read))
		}
		most := int(total/20/dear) / replicas
		if rescans > most+1 || rescans < most*9/10 {
			t.Errorf("%d replicas: %d reads from the start by each in %v, want about %d", replicas, rescans, total, most)
		}
	}
}

// A drained lane submits nothing more; it is named once its last row is deleted, and read
// from the start when it comes back.
func TestC90DrainedLaneLeavesNothingBehind(t *testing.T) {
	s := newStory(t, Config{RunEvents: 2})
	for range 4 {
		s.insert("orders", "a")
	}
	s.expect(ids(1, 2))
	s.stuck = true
	s.e.Drain(0)
	s.outcome(source.Acked, 1)
	s.outcome(source.Broker, 2)
	s.wait(time.Minute)
	s.expect()
	if len(s.drained) != 0 {
		t.Fatal("the lane is said to be drained while row 1 is not deleted")
	}
	s.stuck = false
	s.delete()
	s.wait(time.Minute)
	if !slices.Equal(s.drained, []source.Lane{0}) {
		t.Fatalf("the lanes %v are said to be drained", s.drained)
	}
	s.e.Gain(s.now, 0)
	if got := s.acknowledge(); !slices.Equal(got, ids(2, 4)) {
		t.Errorf("the lane that came back delivers %v", got)
	}
	s.expectLeft()
}

// A lane that is gained again before anybody heard that it was drained is not named.
func TestGainedLaneIsNotDrained(t *testing.T) {
	s := newStory(t, Config{})
	s.work()
	s.e.Drain(0)
	s.e.Gain(s.now, 0)
	s.wait(time.Second)
	if len(s.drained) != 0 {
		t.Errorf("the lanes %v are said to be drained", s.drained)
	}
}

// The stop waits for what is in flight and for its delete, and for nothing else.
func TestC93StopFinishesWhatIsInFlight(t *testing.T) {
	s := newStory(t, Config{RunEvents: 2})
	for range 5 {
		s.insert("orders", "a")
	}
	s.expect(ids(1, 2))
	s.stuck = true
	s.e.Stop()
	s.wait(time.Second)
	s.expect()
	if s.e.Done() {
		t.Fatal("the engine is done with two events in flight")
	}
	s.outcome(source.Acked, 1, 2)
	if s.e.Done() || len(s.deletes) != 1 {
		t.Fatalf("the engine is done %v, with the deletes %v", s.e.Done(), s.deletes)
	}
	s.delete()
	if !s.e.Done() {
		t.Fatal("the engine is not done")
	}
	reads := s.reads
	s.wait(time.Minute)
	s.expect()
	if s.reads != reads {
		t.Errorf("%d reads were made after the stop", s.reads-reads)
	}
	s.expectLeft(3, 4, 5)
	if stats := s.stats(); stats.Read != stats.Acked+uint64(stats.InMemory)+stats.Dropped || stats.Dropped != 3 {
		t.Errorf("after the stop: %+v", stats)
	}
}
