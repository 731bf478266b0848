package lanes

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// keptLeases is a store in memory, by the clock of the bubble. A fault decides what becomes of
// a call: whether it is carried out, and what the caller hears.
type keptLeases struct {
	mu      sync.Mutex
	members map[string]time.Time
	said    map[string]Member // what the members say of themselves
	lanes   []Lease
	rounds  int
	calls   []string
	fault   func(ctx context.Context, call string) (carryOut bool, err error)
}

var errAway = errors.New("the store is away")

func newKeptLeases(n int) *keptLeases {
	s := &keptLeases{members: make(map[string]time.Time), said: make(map[string]Member), lanes: make([]Lease, n)}
	for i := range s.lanes {
		s.lanes[i].Lane = source.Lane(i)
	}
	return s
}

func (s *keptLeases) call(ctx context.Context, name string, do func()) error {
	if _, ok := ctx.Deadline(); !ok {
		panic(name + " has no deadline")
	}
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	carryOut, err := true, error(nil)
	if fault != nil {
		carryOut, err = fault(ctx, name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name)
	if carryOut {
		do()
	}
	return err
}

// set changes the store under its lock.
func (s *keptLeases) set(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// once makes the next call of that name be carried out and its answer be lost.
func (s *keptLeases) once(name string) {
	done := false
	s.set(func() {
		s.fault = func(_ context.Context, call string) (bool, error) {
			if call != name || done {
				return true, nil
			}
			done = true
			return true, errAway
		}
	})
}

func (s *keptLeases) Join(ctx context.Context, me Member, ttl time.Duration) error {
	return s.call(ctx, "join", func() {
		s.members[me.ID] = time.Now().Add(ttl)
		me.Started = time.Now()
		s.said[me.ID] = me
	})
}

func (s *keptLeases) Round(ctx context.Context, me Member, ttl time.Duration, _ []byte) (table Table, alive bool, err error) {
	err = s.call(ctx, "round", func() {
		s.rounds++
		if _, alive = s.members[me.ID]; alive {
			s.members[me.ID] = time.Now().Add(ttl)
			said := s.said[me.ID]
			said.Retiring = me.Retiring
			s.said[me.ID] = said
		}
		maps.DeleteFunc(s.members, func(_ string, expires time.Time) bool { return !expires.After(time.Now()) })
		for _, id := range slices.Sorted(maps.Keys(s.members)) {
			m := s.said[id]
			m.ID = id
			table.Members = append(table.Members, m)
		}
		table.Leases = slices.Clone(s.lanes)
	})
	return table, alive, err
}

func (s *keptLeases) Take(ctx context.Context, me string, want []Lease) (got []Lease, err error) {
	err = s.call(ctx, "take", func() {
		for _, l := range want {
			now := &s.lanes[l.Lane]
			if _, owned := s.members[now.Owner]; now.Epoch == l.Epoch && !owned {
				now.Owner, now.Epoch = me, now.Epoch+1
				got = append(got, *now)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return got, nil
}

func (s *keptLeases) Release(ctx context.Context, me string, done []Lease) error {
	if len(done) == 0 {
		return nil
	}
	return s.call(ctx, "release", func() {
		for _, l := range done {
			if now := &s.lanes[l.Lane]; now.Owner == me && now.Epoch == l.Epoch {
				now.Owner, now.Epoch = "", now.Epoch+1
			}
		}
	})
}

func (s *keptLeases) Leave(ctx context.Context, me string) error {
	return s.call(ctx, "leave", func() { delete(s.members, me) })
}

// owned counts the lanes of an owner.
func (s *keptLeases) owned(by string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, l := range s.lanes {
		if l.Owner == by {
			n++
		}
	}
	return n
}

// hands is a Holder that finishes with lanes at once, unless it is slow.
type hands struct {
	mu      sync.Mutex
	has     map[source.Lane]bool
	lost    int
	until   time.Time
	slow    bool
	pending []func()
}

func (h *hands) Gain(lanes []source.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, lane := range lanes {
		if h.has[lane] {
			panic("a lane is gained twice")
		}
		h.has[lane] = true
	}
}

func (h *hands) Lose(lanes []source.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, lane := range lanes {
		delete(h.has, lane)
		h.lost++
	}
}

func (h *hands) Drain(lanes []source.Lane, done func(source.Lane)) {
	h.mu.Lock()
	for _, lane := range lanes {
		h.pending = append(h.pending, func() {
			h.mu.Lock()
			delete(h.has, lane)
			h.mu.Unlock()
			done(lane)
		})
	}
	slow := h.slow
	h.mu.Unlock()
	if !slow {
		h.finish()
	}
}

func (h *hands) finish() {
	h.mu.Lock()
	pending := h.pending
	h.pending = nil
	h.mu.Unlock()
	for _, do := range pending {
		do()
	}
}

func (h *hands) Trust(until time.Time) {
	h.mu.Lock()
	h.until = until
	h.mu.Unlock()
}

func (h *hands) state() (has, lost int, trusted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.has), h.lost, time.Now().Before(h.until)
}
