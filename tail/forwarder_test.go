package tail_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/tail"
)

// store is an outbox whose transactions have one row each, are visible at once, and are told to
// a log in the order of their commits.
type store struct {
	mu   sync.Mutex
	next int64
	rows []*source.Event
	gone *sync.Cond // rows were deleted
	log  chan *source.Event
}

// newStore returns an empty store whose log has room for so many rows.
func newStore(room int) *store {
	s := &store{log: make(chan *source.Event, room)}
	s.gone = sync.NewCond(&s.mu)
	return s
}

// drained waits until there is no row.
func (s *store) drained() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.rows) > 0 {
		s.gone.Wait()
	}
}

func (s *store) write(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	ev := &source.Event{ID: s.next, Topic: "t", Key: []byte(key), Lane: lanes.LaneOf([]byte(key), 4)}
	s.rows = append(s.rows, ev)
	s.log <- ev
}

func (s *store) Read(_ context.Context, r *source.Read) (*source.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := uint64(1000 + s.next + 1)
	page := &source.Page{Snapshot: source.Snapshot{Xmin: x, Xmax: x}}
	for _, ev := range s.rows {
		if page.Full = len(page.Events) == r.Limit; page.Full {
			break
		}
		if ev.ID > r.Floor && !slices.Contains(r.Known, ev.ID) && (r.Lanes == nil || slices.Contains(r.Lanes, ev.Lane)) {
			page.Events = append(page.Events, ev)
		}
	}
	return page, nil
}

func (s *store) DeleteRows(_ context.Context, ids []int64, _ func(uint64)) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.rows)
	s.rows = slices.DeleteFunc(s.rows, func(ev *source.Event) bool { _, found := slices.BinarySearch(ids, ev.ID); return found })
	s.gone.Broadcast()
	return before - len(s.rows), nil
}

// broker acknowledges everything, each run from a goroutine of its own.
type broker struct {
	mu   sync.Mutex
	last map[string]int64
	got  int
	bad  []string
	done chan struct{}
	want int
}

func (b *broker) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	for _, run := range runs {
		go func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			outcomes := make([]source.Outcome, len(run))
			for i, ev := range run {
				if last := b.last[string(ev.Key)]; ev.ID <= last {
					b.bad = append(b.bad, fmt.Sprintf("row %d after %d", ev.ID, last))
				}
				b.last[string(ev.Key)] = ev.ID
				outcomes[i].ID = ev.ID
				if b.got++; b.got == b.want {
					close(b.done)
				}
			}
			report(outcomes)
		}()
	}
}

func (b *broker) Recall() {}

// forward runs a forwarder until n events were submitted.
func forward(t *testing.T, src lanes.Source, n int) {
	t.Helper()
	b := &broker{last: make(map[string]int64), want: n, done: make(chan struct{})}
	f, err := lanes.NewForwarder(lanes.Config{Lanes: 4, MaxEvents: 200}, src, b, slog.New(slog.DiscardHandler), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- f.Run(ctx, lanes.Sole{Lanes: 4}) }()
	select {
	case <-b.done:
	case <-t.Context().Done():
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.bad) > 0 || b.got != n {
		t.Errorf("%d of %d events were submitted, and out of order: %v", b.got, n, b.bad)
	}
}

const written = 5000

// TestForwarderOverMirror is all goroutines at once, with a log that is lost again and again.
func TestForwarderOverMirror(t *testing.T) {
	s := newStore(written)
	m := tail.NewMirror(tail.Config{MaxEvents: 100, Patience: time.Millisecond, Resync: 50 * time.Millisecond}, s)
	var work sync.WaitGroup
	work.Go(func() {
		for i := range written {
			if i >= written-100 {
				s.drained() // so that the mirror can keep up, however slow the machine is
			}
			s.write(fmt.Sprint(i % 7))
		}
		close(s.log)
	})
	work.Go(func() {
		n := 0
		for ev := range s.log {
			if n%1000 == 0 {
				m.Detach()
				s.mu.Lock() // the log starts at a point that no transaction is in the middle of
				for len(s.log) > 0 {
					<-s.log
				}
				m.Attach(uint64(1000 + s.next + 1))
				s.mu.Unlock()
				n++
				continue // it was committed before
			}
			n++
			var events []*source.Event
			if m.Wants(ev.Lane) {
				events = append(events, ev)
			}
			if err := m.Append(t.Context(), uint64(1000+ev.ID), events, len(events) == 0); err != nil {
				t.Error(err)
			}
		}
	})
	forward(t, m, written)
	work.Wait()
	if s.mu.Lock(); len(s.rows) > 0 {
		t.Errorf("%d rows are left", len(s.rows))
	}
	s.mu.Unlock()
	if st := m.Stats(); st.Memory == 0 {
		t.Errorf("nothing was answered from memory: %+v", st)
	}
}

// TestForwarderOverLog: what is delivered is deleted and then confirmed.
func TestForwarderOverLog(t *testing.T) {
	var mu sync.Mutex
	deleted := 0
	l := tail.NewLog[uint64](tail.LogConfig{MaxEvents: 50}, func(_ context.Context, rows []int64, _ func(uint64)) error {
		mu.Lock()
		defer mu.Unlock()
		deleted += len(rows)
		return nil
	})
	var work sync.WaitGroup
	work.Go(func() {
		for i := range uint64(written) {
			key := fmt.Append(nil, i%7)
			ev := &source.Event{ID: int64(i) + 1, Topic: "t", Key: key, Lane: lanes.LaneOf(key, 4)}
			if err := l.Append(t.Context(), i+1, true, []tail.Entry{{Event: ev, NoRow: i%2 == 0}}); err != nil {
				t.Error(err)
			}
		}
		l.Idle(written + 1)
	})
	forward(t, l, written)
	work.Wait()
	if pos, ok := l.Confirmed(); !ok || pos != written+1 || deleted != written/2 {
		t.Errorf("%d is confirmed and %d rows are deleted, of %d", pos, deleted, written)
	}
	if st := l.Stats(); st != (tail.LogStats{}) {
		t.Errorf("the log still has %+v", st)
	}
}

// TestLogBlocksUntilDeleted: nothing is dropped for want of memory.
func TestLogBlocksUntilDeleted(t *testing.T) {
	l := tail.NewLog[int](tail.LogConfig{MaxEvents: 1}, func(context.Context, []int64, func(uint64)) error { return nil })
	one := []tail.Entry{{Event: event(1)}}
	if err := l.Append(t.Context(), 1, true, one); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Append(ctx, 2, true, one); !errors.Is(err, context.Canceled) {
		t.Errorf("an append without room returned %v", err)
	}
	page, _ := l.Read(t.Context(), everything())
	if len(page.Events) != 1 || page.Events[0].Name() != "1" {
		t.Fatalf("the log gave %v", page.Events)
	}
	appended := make(chan error, 1)
	go func() { appended <- l.Append(t.Context(), 2, true, one) }()
	if err := l.Delete(t.Context(), []int64{page.Events[0].ID}, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-appended; err != nil {
		t.Error(err)
	}
}
