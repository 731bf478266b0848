package lanes

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// owner is the one member that has lanes, empty if none has. There must never be two.
func (s *shares) owner(t testing.TB) string {
	t.Helper()
	owner := ""
	for _, l := range s.lanes {
		switch {
		case l.Owner == "" || !s.live(l.Owner) || l.Owner == owner:
		case owner == "":
			owner = l.Owner
		default:
			t.Fatalf("%s and %s have lanes: %s", owner, l.Owner, s)
		}
	}
	return owner
}

// TestExclusive: all lanes are with one member. It keeps them until it goes, and then the one has them
// that has been there longest. There are never two with lanes, also where members act on what
// they saw some time ago.
func TestExclusive(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 9))
		s := newShares(pick(r, 1, 4, 16), 0)
		s.alone = true
		views := []Table{s.view(r)}
		for range 20 {
			holder := s.owner(t)
			s.change(t, r)
			if chance(r, 0.5) {
				settleExclusive(t, r, s, holder)
			}
			views = append(views, s.view(r))
			for _, m := range slices.Clone(s.members) {
				if chance(r, 0.5) {
					s.act(t, m.ID, views[max(0, len(views)-1-r.IntN(4))])
					s.owner(t)
				}
			}
		}
	}
}

// settleExclusive is settle after one change, before which holder had all the lanes or none.
func settleExclusive(t *testing.T, r *rand.Rand, s *shares, holder string) {
	t.Helper()
	var able []Member
	for _, m := range s.members {
		if !m.Retiring {
			able = append(able, m)
		}
	}
	next := "" // in the order of joining
	if len(able) > 0 {
		next = able[0].ID
	}
	if slices.ContainsFunc(able, func(m Member) bool { return m.ID == holder }) {
		next = holder
	}
	if now := s.owner(t); now != "" && now != holder {
		next = now // it has them already
	}
	s.settle(t, r)
	if got := s.owner(t); next != "" && got != next {
		t.Fatalf("%q has the lanes after %q, want %q: %s", got, holder, next, s)
	}
}

// TestExclusiveBesideShared: one exclusive member makes the whole fleet so, and the last one that goes
// ends it.
func TestExclusiveBesideShared(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 10))
		s := newShares(pick(r, 1, 4, 16), r.IntN(4))
		for range 12 {
			s.alone = chance(r, 0.5)
			for range 1 + r.IntN(3) {
				s.change(t, r)
			}
			s.settle(t, r)
		}
	}
}

// TestExclusiveJoinsShared: when a fleet that shares becomes exclusive, the one with most lanes keeps
// them and gets the others.
func TestExclusiveJoinsShared(t *testing.T) {
	for members := 1; members <= 9; members++ {
		s := newShares(16, members)
		s.settle(t, nil)
		clear(s.moves)
		most := s.counts()[0]
		s.alone = true
		s.join(nil)
		s.settle(t, nil)
		if want := 16 - most; s.total() != want {
			t.Errorf("%d members: %d lanes move, %d suffice: %s", members, s.total(), want, s)
		}
	}
}

// TestExclusiveFirstLaneDecides: of two that claim everything at the same time, where claims of several
// lanes are not one step, the one that is late at the first lane gets none of the others.
func TestExclusiveFirstLaneDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeptLeases(8)
		store.set(func() {
			store.fault = func(_ context.Context, call string) (bool, error) {
				if first := &store.lanes[0]; call == "take" && first.Owner == "" {
					store.set(func() {
						store.members["rival"] = time.Now().Add(keptTTL)
						store.said["rival"] = Member{ID: "rival", Exclusive: true, Lanes: 8, Started: time.Now()}
						first.Owner, first.Epoch = "rival", first.Epoch+1
					})
				}
				return true, nil
			}
		})
		k := keepAs(t, KeeperConfig{Exclusive: true}, store, 8)
		pass(keptTTL / 2)
		k.want("beside the rival", 0, 0)
		pass(keptTTL)
		k.want("after the rival is gone", 8, 0)
		k.end(nil)
	})
}

// TestExclusiveGivesAllAtOnce: lanes that are finished wait for the last one, and the next member takes
// them all in one round.
func TestExclusiveGivesAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeptLeases(8)
		k := keepAs(t, KeeperConfig{Exclusive: true}, store, 8)
		pass(2 * time.Second)
		other := keepAs(t, KeeperConfig{Exclusive: true}, store, 8)
		pass(2 * time.Second)
		k.want("the first", 8, 0)
		other.want("the second stands by", 0, 0)
		k.hands.mu.Lock()
		k.hands.slow = true
		k.hands.mu.Unlock()
		k.keeper.Retire()
		pass(2 * time.Second)
		k.hands.mu.Lock()
		last := k.hands.pending[7]
		rest := k.hands.pending[:7]
		k.hands.pending = nil
		k.hands.mu.Unlock()
		for _, done := range rest {
			done()
		}
		pass(5 * time.Second)
		if n := store.owned(k.keeper.Member()); n != 8 {
			t.Errorf("%d lanes are kept before the last one is finished", n)
		}
		other.want("before the last lane is finished", 0, 0)
		last()
		pass(3 * time.Second)
		other.want("after it", 8, 0)
		k.end(nil)
		other.end(nil)
	})
}
