package tail

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outbox-forwarder/forwarder/source"
)

// logStory is a log in the hands of one forwarder.
type logStory struct {
	*testing.T
	state *logState[int]
	known []int64 // IDs that the forwarder has
}

func newLogStory(t *testing.T) *logStory {
	return &logStory{T: t, state: newLogState[int]()}
}

// append brings a whole transaction.
func (s *logStory) append(pos int, rows ...int64) {
	var entries []Entry
	for _, row := range rows {
		entries = append(entries, Entry{Event: &source.Event{ID: row, Topic: "t"}})
	}
	s.state.append(pos, true, entries)
}

func (s *logStory) scan(end bool, rows ...int64) {
	var events []*source.Event
	for _, row := range rows {
		events = append(events, &source.Event{ID: row, Topic: "t"})
	}
	s.state.addScan(events, end)
}

// read takes what there is, and expects these rows.
func (s *logStory) read(dropped bool, want ...int64) {
	s.Helper()
	page := s.state.take(&source.Read{Known: s.known, Dropped: dropped, Limit: 100, Bytes: 1 << 20})
	var got, names []string
	for _, ev := range page.Events {
		s.known = append(s.known, ev.ID)
		got = append(got, ev.Ref)
	}
	for _, row := range want {
		names = append(names, fmt.Sprint(row))
	}
	if !slices.Equal(got, names) {
		s.Fatalf("the forwarder gets the rows %v, want %v", got, names)
	}
}

// deliver delivers and deletes all that the forwarder has.
func (s *logStory) deliver() {
	s.state.deleting(s.known)
	s.state.deleted(s.known)
	s.known = nil
}

func (s *logStory) confirmed(want int) {
	s.Helper()
	if pos, _ := s.state.confirmed(); pos != want {
		s.Fatalf("%d is confirmed, want %d", pos, want)
	}
}

// TestLogSkipsAScannedRowOnce: a writer that uses the id of a deleted row again writes another event.
func TestLogSkipsAScannedRowOnce(t *testing.T) {
	s := newLogStory(t)
	s.scan(true, 5)
	s.read(false, 5)
	s.deliver()
	s.append(10, 5)
	s.read(false)
	s.append(20, 5)
	s.read(false, 5)
	s.deliver()
	s.confirmed(20)
}

// TestLogOfAnotherReplica: what another replica has delivered meanwhile is not brought again, and
// nothing waits for it.
func TestLogOfAnotherReplica(t *testing.T) {
	s := newLogStory(t)
	s.append(10, 1)
	s.append(20, 2)
	s.read(false, 1, 2)
	s.append(30, 3)
	s.state.reset(false)
	s.known = nil // they could not be delivered
	s.read(true)
	// The log goes on after 30.
	s.append(40, 4)
	s.read(false, 4)
	if n := len(s.state.undone); n > 0 {
		t.Errorf("%d entries of before are remembered", n)
	}
	s.deliver()
	s.confirmed(40)
}

// TestLogDropsWhatItHasNotBroughtAgain: what the forwarder drops after the log was lost is for
// whoever has the log next, in the order of the log.
func TestLogDropsWhatItHasNotBroughtAgain(t *testing.T) {
	s := newLogStory(t)
	s.append(10, 1)
	s.append(20, 2)
	s.read(false, 1, 2)
	s.state.reset(false)
	s.known = nil
	s.read(true)
	s.append(10, 1)
	s.append(20, 2)
	s.read(false, 1, 2)
	s.deliver()
	s.confirmed(20)
}

// TestLogScansInPieces: that all rows so far are delivered is not the end of a scan.
func TestLogScansInPieces(t *testing.T) {
	s := newLogStory(t)
	s.append(10)
	s.scan(false, 1, 2)
	s.read(false, 1, 2)
	s.deliver()
	if s.state.scan == nil {
		t.Fatal("the scan is over before its last rows")
	}
	s.scan(true, 3)
	s.read(false, 3)
	if s.state.scan == nil {
		t.Error("the scan is over before its last row is deleted")
	}
	s.deliver()
	if s.state.scan != nil {
		t.Error("the scan goes on without rows")
	}
	s.confirmed(10)
}

// TestLogTellsWhatHoldsIt: of what is not delivered the first in the order of the log, and nothing that
// the log is still to bring again.
func TestLogTellsWhatHoldsIt(t *testing.T) {
	s := newLogStory(t)
	holding := func(want string, at int) {
		t.Helper()
		ev, pos := s.state.holding()
		got := ""
		if ev != nil {
			got = ev.Ref
		}
		if got != want || pos != at {
			t.Fatalf("row %q at %d holds the log, want %q at %d", got, pos, want, at)
		}
	}
	holding("", 0)
	s.append(10, 11)
	s.append(20, 12, 13, 14)
	s.append(30, 15)
	s.read(false, 11, 12, 13, 14, 15)
	holding("11", 10)
	s.state.deleting([]int64{1, 3})
	holding("", 10)
	s.state.deleted([]int64{1, 3})
	holding("12", 20)
	s.state.reset(false)
	holding("", 0)
	s.append(20, 12, 13, 14)
	holding("12", 20)
	s.state.reset(true)
	s.scan(true, 12, 16)
	holding("12", 0)
}
