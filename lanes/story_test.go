package lanes

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// story drives an engine by hand: reads are answered from a table and deletes done at once,
// while the broker is the test's.
type story struct {
	t       *testing.T
	e       *Engine
	now     time.Time
	next    time.Time
	table   *table
	deletes [][]int64
	stuck   bool // deletes are not answered
	runs    [][]int64
	notes   []Note
	drained []source.Lane
	reads   int
}

var errRefused = errors.New("the broker refuses it")

// newStory starts an engine that owns every lane, one unless the configuration says more.
func newStory(t *testing.T, cfg Config) *story {
	t.Helper()
	cfg.Lanes = cmp.Or(cfg.Lanes, 1)
	cfg.Rand = rand.New(rand.NewPCG(1, 1))
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	s := &story{t: t, e: NewEngine(cfg), now: epoch, table: newTable()}
	for i := range cfg.Lanes {
		s.e.Gain(s.now, source.Lane(i))
	}
	return s
}

// insert commits a row in a transaction of its own. An empty key is no key.
func (s *story) insert(topic, key string) int64 {
	return s.insertSized(topic, key, 10)
}

func (s *story) insertSized(topic, key string, payload int) int64 {
	tx := &transaction{}
	id := s.insertIn(tx, topic, key, payload)
	s.table.end(tx, true)
	return id
}

func (s *story) insertIn(tx *transaction, topic, key string, payload int) int64 {
	s.t.Helper()
	ev := &source.Event{Topic: topic, Payload: make([]byte, payload), Created: s.now}
	if key != "" {
		ev.Key = []byte(key)
		ev.Lane = LaneOf(ev.Key, s.e.cfg.Lanes)
	} else {
		s.table.takeXid(tx)
		ev.ID = s.table.takeID()
		ev.Lane = LaneOfRow(ev.ID, s.e.cfg.Lanes)
	}
	if _, ok := s.table.insert(tx, ev, key != ""); !ok {
		s.t.Fatalf("another transaction holds key %q", key)
	}
	return ev.ID
}

// work does whatever the engine wants done now.
func (s *story) work() {
	s.t.Helper()
	for {
		r := s.e.Ready(s.now)
		s.next = r.Next
		for _, run := range r.Submit {
			var ids []int64
			for _, ev := range run {
				ids = append(ids, ev.ID)
			}
			s.runs = append(s.runs, ids)
		}
		s.notes = append(s.notes, r.Notes...)
		s.drained = append(s.drained, r.Drained...)
		s.deletes = append(s.deletes, r.Delete...)
		if r.Read != nil {
			s.reads++
			s.e.Page(s.now, s.table.read(r.Read))
		}
		if !s.stuck {
			s.delete()
		}
		if r.Read == nil && len(r.Delete) == 0 {
			return
		}
	}
}

// delete answers the deletes.
func (s *story) delete() {
	for _, ids := range s.deletes {
		for _, id := range ids {
			s.table.remove(s.table.byID[id])
		}
		s.e.Deleted(ids)
	}
	s.deletes = nil
}

// wait lets time pass, in the steps that the engine names.
func (s *story) wait(d time.Duration) {
	s.t.Helper()
	until := s.now.Add(d)
	s.work()
	for !s.next.IsZero() && !s.next.After(until) {
		s.now = s.next
		s.work()
	}
	s.now = until
	s.work()
}

// outcome reports what became of events in flight.
func (s *story) outcome(class source.Class, ids ...int64) {
	s.t.Helper()
	var outcomes []source.Outcome
	for _, id := range ids {
		o := source.Outcome{ID: id, Class: class}
		if class != source.Acked {
			o.Err = errRefused
		}
		outcomes = append(outcomes, o)
	}
	s.e.Outcomes(s.now, outcomes)
	s.work()
}

// expect compares the runs that were submitted since the last time.
func (s *story) expect(runs ...[]int64) {
	s.t.Helper()
	s.work()
	got := s.runs
	s.runs = nil
	if len(got) != len(runs) {
		s.t.Fatalf("the runs %v were submitted, want %v", got, runs)
	}
	for i := range runs {
		if !slices.Equal(got[i], runs[i]) {
			s.t.Fatalf("the runs %v were submitted, want %v", got, runs)
		}
	}
}

// acknowledge takes the runs that were submitted, says that all of it was written, and goes on
// until there is no more. It returns the ids in order.
func (s *story) acknowledge() []int64 {
	s.t.Helper()
	var all []int64
	for {
		s.wait(s.e.cfg.MaxPoll)
		if len(s.runs) == 0 {
			return all
		}
		runs := s.runs
		s.runs = nil
		for _, run := range runs {
			all = append(all, run...)
			s.outcome(source.Acked, run...)
		}
	}
}

// expectLeft compares the rows that are still in the table.
func (s *story) expectLeft(ids ...int64) {
	s.t.Helper()
	s.wait(100 * time.Millisecond)
	got := []int64{}
	for _, r := range s.table.rows {
		got = append(got, r.ID)
	}
	if !slices.Equal(got, append([]int64{}, ids...)) {
		s.t.Fatalf("the rows %v are left in the table, want %v", got, ids)
	}
}

// expectParked compares what is listed as undeliverable: the part, the row and the attempts.
func (s *story) expectParked(want ...Parked) {
	s.t.Helper()
	var got []Parked
	for _, p := range s.e.Parked() {
		got = append(got, Parked{Part: p.Part, Event: p.Event, Class: p.Class, Attempts: p.Attempts})
	}
	if !reflect.DeepEqual(got, want) {
		s.t.Fatalf("parked is\n%+v, want\n%+v", got, want)
	}
}

// noted returns the notes of a kind so far, and forgets them.
func (s *story) noted(kind NoteKind) []Note {
	var found []Note
	s.notes = slices.DeleteFunc(s.notes, func(n Note) bool {
		if n.Kind == kind {
			found = append(found, n)
			return true
		}
		return false
	})
	return found
}

func (s *story) stats() Stats { return s.e.Stats(s.now) }

// ids returns the numbers from first to last.
func ids(first, last int64) []int64 {
	var list []int64
	for id := first; id <= last; id++ {
		list = append(list, id)
	}
	return list
}

// keysOf returns n keys that lie in the lane, of two.
func keysOf(lane source.Lane, n int) []string {
	var keys []string
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("key ", i); LaneOf([]byte(key), 2) == lane {
			keys = append(keys, key)
		}
	}
	return keys
}

// TestReadSaysAgainWhatMayNotHaveBeenHeard: a source that answers from memory must hear of lanes
// that came and events that were dropped, though the read that said so failed.
func TestReadSaysAgainWhatMayNotHaveBeenHeard(t *testing.T) {
	e := NewEngine(Config{Lanes: 1})
	e.Gain(epoch, 0)
	if r := e.Ready(epoch); r.Read == nil || !r.Read.Gained {
		t.Fatalf("the first read is %+v", r.Read)
	}
	e.ReadFailed(epoch)
	if r := e.Ready(epoch.Add(time.Minute)); r.Read == nil || !r.Read.Gained || !r.Read.Dropped {
		t.Errorf("after a failure the read is %+v", r.Read)
	}
}
