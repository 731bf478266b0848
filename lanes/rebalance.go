package lanes

import (
	"cmp"
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Lease is one lane's row in the store.
type Lease struct {
	Lane  source.Lane
	Owner string // empty for nobody
	Epoch int64  // grows with every change of owner

	gained int64 // of our own leases: the higher, the later we gained it
}

// Member is one live replica.
type Member struct {
	ID string
	// Retiring says that it gives up its lanes and takes none.
	Retiring bool
	// Exclusive says that it cannot share: it has all lanes or none.
	Exclusive bool
	// Lanes is the lane count that it started with.
	Lanes int
	// Started is when it joined, by the store's clock. Join does not read it.
	Started time.Time
}

// Rebalance says what the member me should take and give. Leases whose owner is no member are
// free. take holds free lanes only: what others have to give, they give themselves.
//
// Shares become fair: each live member has floor(N / members) lanes, or one more, and who has
// more already keeps it. Where any member is exclusive, one member has all lanes and the others
// stand by, also those that could share: an exclusive one could not work beside them.
//
// It is a pure function. Members that look at the same rows ask for different lanes; where
// their views differ, the conditional writes decide.
func Rebalance(me string, members []Member, leases []Lease) (take, give []Lease) {
	s := survey(me, members, leases)
	switch {
	case !slices.ContainsFunc(s.sharers, func(m Member) bool { return m.ID == me }):
		return nil, s.mine
	case exclusive(members):
		return s.all(me, len(leases))
	default:
		return s.share(me, len(leases))
	}
}

// exclusive reports whether the members must not share.
func exclusive(members []Member) bool {
	return slices.ContainsFunc(members, func(m Member) bool { return m.Exclusive })
}

// surveyed is what the rows say.
type surveyed struct {
	sharers    []Member // those that want lanes, each once
	owned      map[string]int
	free, mine []Lease
}

func survey(me string, members []Member, leases []Lease) surveyed {
	s := surveyed{owned: make(map[string]int, len(members))}
	live := make(map[string]bool, len(members))
	for _, m := range members {
		if !live[m.ID] && !m.Retiring {
			s.sharers = append(s.sharers, m)
		}
		live[m.ID] = true
	}
	for _, l := range leases {
		if !live[l.Owner] {
			s.free = append(s.free, l)
			continue
		}
		s.owned[l.Owner]++
		if l.Owner == me {
			s.mine = append(s.mine, l)
		}
	}
	return s
}

// share is the fair share of me, in a fleet of n lanes.
func (s *surveyed) share(me string, n int) (take, give []Lease) {
	share, extra := n/len(s.sharers), n%len(s.sharers)
	// Who has more than the share already keeps one more, so that no lane moves only because an
	// id sorts first. How much more does not matter: it changes while lanes are given up. The rest of
	// the division goes to the newest, so that who replaces a member takes what that one had.
	slices.SortFunc(s.sharers, func(a, b Member) int {
		if more := s.owned[a.ID] > share; more != (s.owned[b.ID] > share) {
			if more {
				return -1
			}
			return 1
		}
		return cmp.Or(b.Started.Compare(a.Started), cmp.Compare(a.ID, b.ID))
	})
	sortKept(s.mine)
	before := 0 // free lanes that those before us in the list lack
	for i, member := range s.sharers {
		want := share
		if i < extra {
			want++
		}
		lack := max(want-s.owned[member.ID], 0)
		if member.ID != me {
			before += lack
			continue
		}
		from := min(before, len(s.free))
		return s.free[from:min(from+lack, len(s.free))], s.mine[min(want, len(s.mine)):]
	}
	return nil, nil
}

// restless is how many changes of owner a lane may have had more than the quietest one of its
// owner, before others go in its stead: two moves, each a release and a claim.
const restless = 4

// sortKept puts those lanes last that are to be given first: the ones that came last. So a restart
// moves the lanes of that replica away and the same ones back, and a rolling restart each lane
// twice. Where one replica comes and goes all the time, it would always be the same lanes: those that
// have moved much more often than others are kept.
func sortKept(mine []Lease) {
	if len(mine) == 0 {
		return
	}
	quietest := slices.MinFunc(mine, func(a, b Lease) int { return cmp.Compare(a.Epoch, b.Epoch) }).Epoch
	excess := func(l Lease) int64 { return max(l.Epoch-quietest-restless, 0) }
	slices.SortStableFunc(mine, func(a, b Lease) int {
		return cmp.Or(cmp.Compare(excess(b), excess(a)), cmp.Compare(a.gained, b.gained))
	})
}

// all is everything for one member, in a fleet of n lanes: for the one that has most lanes already,
// and where none has any, for the one that has been there longest. It takes nothing before the
// others have given up all that they have, so that there are never two at work.
func (s *surveyed) all(me string, n int) (take, give []Lease) {
	holder := slices.MinFunc(s.sharers, func(a, b Member) int {
		return cmp.Or(cmp.Compare(s.owned[b.ID], s.owned[a.ID]), a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
	})
	switch {
	case holder.ID != me:
		return nil, s.mine
	case len(s.free)+len(s.mine) < n:
		return nil, nil
	default:
		return s.free, nil
	}
}
