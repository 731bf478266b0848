package lanes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// leaseStore is the tables of members and lanes, with the same conditional writes as
// source/postgres has. Each is done in one moment.
type leaseStore struct {
	w       *fleet
	members map[string]*storeMember
	lanes   []Lease
	made    []time.Time // when each lane was put into the table
}

type storeMember struct {
	Member
	expires time.Time
	process *process
}

func newLeaseStore(w *fleet, n int) *leaseStore {
	s := &leaseStore{w: w, members: make(map[string]*storeMember)}
	s.resize(n, 0)
	return s
}

// resize is what an operator does to change the number of lanes: delete rows, all but the first
// keep, and add some.
func (s *leaseStore) resize(n, keep int) {
	keep = min(keep, n, len(s.lanes))
	s.lanes, s.made = s.lanes[:keep:keep], s.made[:keep:keep]
	for i := keep; i < n; i++ {
		s.lanes = append(s.lanes, Lease{Lane: source.Lane(i)})
		s.made = append(s.made, s.w.now)
	}
}

// mixed reports whether some members have another lane count than the store.
func (s *leaseStore) mixed() bool {
	for _, m := range s.members {
		if m.Lanes != len(s.lanes) {
			return true
		}
	}
	return false
}

func (s *leaseStore) String() string {
	var b strings.Builder
	for _, id := range s.ids() {
		m := s.members[id]
		fmt.Fprintf(&b, "%s (retiring %v, exclusive %v) until %v, ", id, m.Retiring, m.Exclusive, m.expires.Sub(epoch))
	}
	for _, l := range s.lanes {
		fmt.Fprintf(&b, "%d:%s ", l.Lane, l.Owner)
	}
	return b.String()
}

func (s *leaseStore) ids() []string {
	var ids []string
	for id := range s.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (s *leaseStore) join(p *process, me Member, ttl time.Duration) {
	me.Started = s.w.now
	s.members[me.ID] = &storeMember{me, s.w.now.Add(ttl), p}
}

// renew is the round's one statement: it renews me and reads the tables, me as it was before.
func (s *leaseStore) renew(me Member, ttl time.Duration) (table Table, overdue []string, alive bool) {
	for _, id := range s.ids() {
		m := s.members[id]
		seen := m.Member
		seen.Retiring = m.Retiring || id == me.ID && me.Retiring
		table.Members = append(table.Members, seen)
		if id != me.ID && !m.expires.After(s.w.now) {
			overdue = append(overdue, id)
		}
	}
	table.Leases = slices.Clone(s.lanes)
	m := s.members[me.ID]
	if m != nil {
		m.expires, m.Retiring = s.w.now.Add(ttl), me.Retiring
	}
	return table, overdue, m != nil
}

// bury removes a member whose lease has ended.
func (s *leaseStore) bury(id string) (gone bool) {
	m := s.members[id]
	if m == nil || m.expires.After(s.w.now) {
		return false
	}
	s.w.buried(id, m.process)
	delete(s.members, id)
	return true
}

func (s *leaseStore) take(me string, want []Lease) (got []Lease) {
	if s.members[me] == nil {
		return nil
	}
	for _, want := range want {
		if int(want.Lane) >= len(s.lanes) {
			continue
		}
		l := &s.lanes[want.Lane]
		if l.Epoch != want.Epoch || l.Owner != "" && s.members[l.Owner] != nil {
			continue
		}
		if l.Epoch == 0 && s.mayBeHeld(me, s.made[l.Lane]) {
			continue
		}
		l.Owner = me
		l.Epoch++
		s.w.record('T', int64(l.Lane), l.Epoch)
		got = append(got, *l)
	}
	s.checkAlone(me)
	return got
}

// mayBeHeld reports whether some member of before a lane was made may not have noticed yet.
func (s *leaseStore) mayBeHeld(me string, made time.Time) bool {
	for id, m := range s.members {
		if id != me && !m.Started.After(made) && s.w.now.Before(made.Add(s.w.plan.ttl)) {
			return true
		}
	}
	return false
}

// checkAlone: where all replicas are exclusive, never do two members have lanes.
func (s *leaseStore) checkAlone(me string) {
	if s.w.plan.alone < 1 {
		return
	}
	for _, l := range s.lanes {
		if l.Owner != me && s.members[l.Owner] != nil {
			failf("%s takes lanes while %s has some: %v", me, l.Owner, s)
		}
	}
}

func (s *leaseStore) release(p *process, me string, done []Lease) {
	for _, done := range done {
		if int(done.Lane) >= len(s.lanes) {
			continue
		}
		l := &s.lanes[done.Lane]
		if l.Epoch != done.Epoch || l.Owner != me {
			continue
		}
		if e := &p.forwarder.engine.lanes[l.Lane]; !p.dead && e.flying+e.undeleted > 0 {
			failf("%s gives lane %d up with %d events in flight and %d not deleted", me, l.Lane, e.flying, e.undeleted)
		}
		l.Owner = ""
		l.Epoch++
		s.w.record('F', int64(l.Lane), l.Epoch)
	}
}

// storeClient is a process's connection to the store: its Leases. Calls are late, or lost on
// the way there or back, and what was given up on may still be carried out.
type storeClient struct{ p *process }

// storeCalls is where a process stands with its calls.
type storeCalls struct {
	turn     context.Context // that the deadline belongs to
	deadline time.Time
	n        int // numbers the calls
	err      error
}

var errStore = errors.New("the simulated store does not answer")

func (c *storeClient) Join(ctx context.Context, me Member, ttl time.Duration) error {
	return c.call(ctx, func() time.Duration { c.p.w.store.join(c.p, me, ttl); return 0 })
}

func (c *storeClient) Round(ctx context.Context, me Member, ttl time.Duration, _ []byte) (table Table, alive bool, err error) {
	s := c.p.w.store
	var overdue []string
	step := 0
	err = c.call(ctx, func() time.Duration {
		if step == 0 {
			table, overdue, alive = s.renew(me, ttl)
		} else if id := overdue[step-1]; s.bury(id) {
			table.Members = slices.DeleteFunc(table.Members, func(m Member) bool { return m.ID == id })
		}
		if step == len(overdue) {
			return 0
		}
		step++
		if w := c.p.w; w.faulty(w.plan.answerLate) {
			return time.Duration(w.r.Int64N(int64(w.plan.ttl/3))) + 1
		}
		return c.p.w.some(c.p.w.plan.latency) + 1
	})
	if err == nil && !alive {
		c.p.w.deaths++
	}
	return table, alive, err
}

func (c *storeClient) Take(ctx context.Context, me string, want []Lease) (got []Lease, err error) {
	err = c.call(ctx, func() time.Duration { got = c.p.w.store.take(me, want); return 0 })
	if err != nil {
		return nil, err
	}
	return got, nil
}

func (c *storeClient) Release(ctx context.Context, me string, done []Lease) error {
	if len(done) == 0 {
		return nil
	}
	return c.call(ctx, func() time.Duration { c.p.w.store.release(c.p, me, done); return 0 })
}

func (c *storeClient) Leave(ctx context.Context, me string) error {
	return c.call(ctx, func() time.Duration { delete(c.p.w.store.members, me); return 0 })
}

// call hands a call to the simulation and stands still until it has its answer. do carries it
// out, in several steps if it returns the time until the next one.
func (c *storeClient) call(ctx context.Context, do func() time.Duration) error {
	p := c.p
	if p.killed {
		return errSimulatedStop
	}
	at, ok := ctx.Deadline()
	if !ok || time.Until(at) > p.w.plan.ttl/3 {
		failf("a call of the store has the deadline %v, %v", at, ok)
	}
	if p.calls.turn != ctx {
		p.calls.turn = ctx
		p.calls.deadline = p.w.now.Add(p.w.plan.ttl / 3)
	}
	if !p.yield(request{call: func() { c.send(do) }}) {
		return errSimulatedStop
	}
	return p.calls.err
}

func (c *storeClient) send(do func() time.Duration) {
	p, w := c.p, c.p.w
	p.calls.n++
	call := p.calls.n
	answer := func(err error) {
		if p.calls.n == call {
			p.calls.n++
			p.calls.err = err
			p.run()
		}
	}
	p.after(max(p.calls.deadline.Sub(w.now), 0), func() { answer(errStore) })
	// The process may be stopped between reading its clock and sending.
	p.after(w.some(w.plan.latency/20), func() {
		switch {
		case w.down() && chance(w.r, 0.5):
			p.after(w.some(w.plan.latency), func() { answer(errStore) }) // refused
			return
		case w.down() || w.faulty(w.plan.callLost):
			w.troubled(w.now.Add(w.plan.ttl / 3))
			return // swallowed
		}
		d, lost := w.some(w.plan.latency), w.faulty(w.plan.answerLost)
		if w.faulty(w.plan.callLate) {
			d = time.Duration(w.r.Int64N(int64(2 * w.plan.ttl)))
		}
		back := w.some(w.plan.latency)
		if w.faulty(w.plan.answerLate) {
			back = time.Duration(w.r.Int64N(int64(w.plan.ttl / 3)))
		}
		if lost || d+back > w.plan.ttl/10 {
			w.troubled(w.now.Add(max(d, w.plan.ttl/3)))
		}
		var carryOut func()
		carryOut = func() {
			if w.down() {
				return
			}
			if d := do(); d > 0 {
				w.after(d, carryOut)
				return
			}
			if !lost {
				p.after(back, func() { answer(nil) })
			}
		}
		w.after(d, carryOut)
	})
}
