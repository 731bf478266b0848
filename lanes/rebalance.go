package lanes

import (
	"cmp"
	"slices"

	"github.com/outbox-forwarder/forwarder/source"
)

// Lease is one lane's row in the store.
type Lease struct {
	Lane  source.Lane
	Owner string // empty for nobody
	Epoch int64  // grows with every change of owner
}

// Member is one live replica.
type Member struct {
	ID string
	// Retiring says that it gives up its lanes and takes none.
	Retiring bool
	// Lanes is the lane count that it started with.
	Lanes int
}

// Rebalance says what the member me should take and give so that shares become fair: each
// live member has floor(N / members) lanes, or one more, and who has more already keeps it.
// Leases whose owner is no member are free. take holds free lanes only: what others have to
// give, they give themselves.
//
// It is a pure function. Members that look at the same rows ask for different lanes; where
// their views differ, the conditional writes decide.
func Rebalance(me string, members []Member, leases []Lease) (take, give []Lease) {
	live := make(map[string]bool, len(members)) // whether it wants lanes
	var sharers []string
	for _, m := range members {
		if _, seen := live[m.ID]; !seen && !m.Retiring {
			sharers = append(sharers, m.ID)
		}
		live[m.ID] = !m.Retiring
	}
	owned := make(map[string]int, len(members))
	var free, mine []Lease
	for _, l := range leases {
		if _, ok := live[l.Owner]; !ok {
			free = append(free, l)
			continue
		}
		owned[l.Owner]++
		if l.Owner == me {
			mine = append(mine, l)
		}
	}
	if wants, ok := live[me]; !ok || !wants {
		return nil, mine
	}
	share, extra := len(leases)/len(sharers), len(leases)%len(sharers)
	// Who has more than the share already keeps one more, so that no lane moves only because an
	// id sorts first. How much more does not matter: it changes while lanes are given up.
	slices.SortFunc(sharers, func(a, b string) int {
		if more := owned[a] > share; more != (owned[b] > share) {
			if more {
				return -1
			}
			return 1
		}
		return cmp.Compare(a, b)
	})
	// Those lanes are given that have moved least, so that no lane moves in every restart of a fleet.
	slices.SortStableFunc(mine, func(a, b Lease) int { return cmp.Compare(b.Epoch, a.Epoch) })
	before := 0 // free lanes that those before us in the list lack
	for i, member := range sharers {
		want := share
		if i < extra {
			want++
		}
		lack := max(want-owned[member], 0)
		if member != me {
			before += lack
			continue
		}
		from := min(before, len(free))
		return free[from:min(from+lack, len(free))], mine[min(want, len(mine)):]
	}
	return nil, nil
}
