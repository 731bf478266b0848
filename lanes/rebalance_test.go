package lanes

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// shares is a store of members and lanes, in which rounds are done one after the other: each
// member looks at the rows, does what Rebalance says by conditional writes, and drains at once.
type shares struct {
	members []Member
	lanes   []Lease
	born    int
	moves   []int // changes of owner to another member, for each lane
	last    []string
	failed  int // claims that found the lane taken
	takes   int64
	alone   bool // who joins is exclusive
}

func newShares(lanes, members int) *shares {
	s := &shares{lanes: make([]Lease, lanes), moves: make([]int, lanes), last: make([]string, lanes)}
	for i := range s.lanes {
		s.lanes[i].Lane = source.Lane(i)
	}
	for range members {
		s.join(nil)
	}
	return s
}

// join adds a member. Its id says nothing about when it joined.
func (s *shares) join(r *rand.Rand) string {
	s.born++
	id := fmt.Sprintf("m%d", s.born)
	if r != nil {
		id = fmt.Sprintf("%c-%d", 'a'+rune(r.IntN(26)), s.born)
	}
	s.members = append(s.members, Member{ID: id, Exclusive: s.alone, Started: epoch.Add(time.Duration(s.born) * time.Second)})
	return id
}

// crash removes a member and leaves its lanes behind in its name.
func (s *shares) crash(id string) {
	s.members = slices.DeleteFunc(s.members, func(m Member) bool { return m.ID == id })
}

// leave is a clean stop.
func (s *shares) leave(id string) {
	for i := range s.lanes {
		if s.lanes[i].Owner == id {
			s.lanes[i].Owner = ""
			s.lanes[i].Epoch++
		}
	}
	s.crash(id)
}

func (s *shares) retire(id string) {
	for i := range s.members {
		if s.members[i].ID == id {
			s.members[i].Retiring = true
		}
	}
}

func (s *shares) live(id string) bool {
	return slices.ContainsFunc(s.members, func(m Member) bool { return m.ID == id })
}

// view is what a member sees: the rows of some moment, in no particular order.
func (s *shares) view(r *rand.Rand) Table {
	v := Table{Members: slices.Clone(s.members), Leases: slices.Clone(s.lanes)}
	if r != nil {
		r.Shuffle(len(v.Members), func(i, j int) { v.Members[i], v.Members[j] = v.Members[j], v.Members[i] })
	}
	return v
}

// act does what Rebalance says of a view, which may be old.
func (s *shares) act(t testing.TB, me string, v Table) (changes int) {
	t.Helper()
	take, give := Rebalance(me, v.Members, v.Leases)
	for _, l := range give {
		if l.Owner != me {
			t.Fatalf("%s is to give lane %d of %q", me, l.Lane, l.Owner)
		}
		if now := &s.lanes[l.Lane]; now.Owner == me && now.Epoch == l.Epoch {
			now.Owner = ""
			now.Epoch++
			changes++
		}
	}
	if n := len(v.Leases); exclusive(v.Members) && len(take) > 0 {
		for _, l := range v.Leases {
			if l.Owner == me {
				n--
			}
		}
		if len(take) != n {
			t.Fatalf("%s is to take %d lanes of the %d that it lacks", me, len(take), n)
		}
	}
	s.takes++
	for _, l := range take {
		now := &s.lanes[l.Lane]
		if now.Epoch != l.Epoch || now.Owner != "" && s.live(now.Owner) || !s.live(me) {
			s.failed++
			if exclusive(v.Members) {
				break // see Keeper.claim
			}
			continue
		}
		now.Owner = me
		now.Epoch++
		now.gained = s.takes
		changes++
		if s.last[l.Lane] != me {
			s.moves[l.Lane]++
			s.last[l.Lane] = me
		}
	}
	return changes
}

// round lets every member act once, in a random order, each after the one before or, now and
// then, all at the same time.
func (s *shares) round(t testing.TB, r *rand.Rand) (changes int) {
	t.Helper()
	order := slices.Clone(s.members)
	if r != nil {
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	together := r != nil && chance(r, 0.3)
	view := s.view(r)
	for _, m := range order {
		if !together {
			view = s.view(r)
		}
		changes += s.act(t, m.ID, view)
	}
	return changes
}

// settle runs the two rounds after which everything must be in its place.
func (s *shares) settle(t testing.TB, r *rand.Rand) {
	t.Helper()
	s.round(t, r)
	s.round(t, r)
	s.checkBalanced(t)
	before := s.String()
	if n := s.round(t, r); n != 0 {
		t.Fatalf("%d changes once balanced: %s, before %s", n, s, before)
	}
}

// counts returns how many lanes each member has, that wants any, in descending order.
func (s *shares) counts() []int {
	owned := make(map[string]int)
	for _, l := range s.lanes {
		owned[l.Owner]++
	}
	var counts []int
	for _, m := range s.members {
		if !m.Retiring {
			counts = append(counts, owned[m.ID])
		}
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	return counts
}

func (s *shares) checkBalanced(t testing.TB) {
	t.Helper()
	counts := s.counts()
	if len(counts) == 0 {
		return
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	fair := counts[0]-counts[len(counts)-1] <= 1
	if exclusive(s.members) {
		fair = counts[0] == len(s.lanes)
	}
	if total != len(s.lanes) || !fair {
		t.Fatalf("not balanced after two rounds: %v of %d lanes: %s", counts, len(s.lanes), s)
	}
}

// held counts the lanes in a member's name.
func (s *shares) held(id string) int {
	n := 0
	for _, l := range s.lanes {
		if l.Owner == id {
			n++
		}
	}
	return n
}

func (s *shares) total() int {
	n := 0
	for _, m := range s.moves {
		n += m
	}
	return n
}

func (s *shares) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "members %v, lanes", s.members)
	for _, l := range s.lanes {
		fmt.Fprintf(&b, " %d:%s", l.Lane, l.Owner)
	}
	return b.String()
}

var rebalanceSeed = flag.Int64("rebalance.seed", -1, "run the properties of Rebalance with this seed only")

// TestRebalance: after any sequence of joins, clean stops, crashes and retirements the lanes
// are shared out fairly within two rounds, and then stay where they are. Members that see the
// same rows never claim the same lane.
func TestRebalance(t *testing.T) {
	seeds := []uint64{uint64(*rebalanceSeed)}
	if *rebalanceSeed < 0 {
		seeds = nil
		for seed := range uint64(3000) {
			seeds = append(seeds, seed)
		}
	}
	for _, seed := range seeds {
		rebalance(t, seed)
	}
}

func rebalance(t *testing.T, seed uint64) {
	defer func() {
		if t.Failed() {
			t.Logf("replay: go test ./lanes -run '^%s$' -rebalance.seed %d", t.Name(), seed)
		}
	}()
	r := rand.New(rand.NewPCG(seed, 5))
	s := newShares(pick(r, 1, 2, 4, 8, 16, 32), r.IntN(4))
	for range 1 + r.IntN(12) {
		for range 1 + r.IntN(4) {
			s.change(t, r)
		}
		s.settle(t, r)
		if s.failed > 0 {
			t.Fatalf("%d claims failed although everybody saw the same", s.failed)
		}
	}
}

// change is one random change of the members, or a round in the middle of them.
func (s *shares) change(t testing.TB, r *rand.Rand) {
	switch n := r.IntN(10); {
	case n < 4 || len(s.members) == 0:
		if len(s.members) < 8 {
			s.join(r)
		}
	case n < 6:
		s.leave(pick(r, s.members...).ID)
	case n < 8:
		s.crash(pick(r, s.members...).ID)
	case n < 9:
		s.retire(pick(r, s.members...).ID)
	default:
		s.round(t, r)
	}
}

// TestRebalanceOldViews: members that act on what they saw some time ago disturb nobody: no
// lane is taken from a member, and once the views are fresh all is well within two rounds.
func TestRebalanceOldViews(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 6))
		s := newShares(pick(r, 2, 4, 8, 16), 2)
		views := []Table{s.view(r)}
		for range 30 {
			s.change(t, r)
			views = append(views, s.view(r))
			for _, m := range slices.Clone(s.members) {
				if chance(r, 0.5) {
					s.act(t, m.ID, views[max(0, len(views)-1-r.IntN(4))])
				}
			}
		}
		s.settle(t, r)
	}
}

// TestRebalanceMovesOnce: a single change moves as few lanes as can be, and none twice.
func TestRebalanceMovesOnce(t *testing.T) {
	for _, lanes := range []int{1, 2, 4, 8, 16, 64, 256} {
		for members := 1; members <= 9; members++ {
			for _, what := range []string{"join", "leave", "crash", "retire"} {
				r := rand.New(rand.NewPCG(uint64(lanes), uint64(members)))
				s := newShares(lanes, members)
				s.settle(t, r)
				clear(s.moves)
				someone := pick(r, s.members...).ID
				want := s.held(someone) // everything that somebody has who goes, if there is anybody left
				if members == 1 {
					want = 0
				}
				switch what {
				case "join":
					s.join(r)
					want = lanes / (members + 1)
				case "leave":
					s.leave(someone)
				case "crash":
					s.crash(someone)
				case "retire":
					s.retire(someone)
				}
				s.settle(t, r)
				if s.total() != want || slices.Max(s.moves) > 1 {
					t.Errorf("%d lanes, %d members, %s: %d lanes move, %d suffice: %v", lanes, members, what, s.total(), want, s.moves)
				}
			}
		}
	}
}

// TestC91NewReplicaGetsItsShare: rounding up the share would leave a new replica without any.
func TestC91NewReplicaGetsItsShare(t *testing.T) {
	for _, c := range []struct {
		lanes, before, after int
		want                 []int
	}{
		{4, 2, 3, []int{2, 1, 1}},
		{16, 4, 5, []int{4, 3, 3, 3, 3}},
		{2, 4, 5, []int{1, 1, 0, 0, 0}},
	} {
		s := newShares(c.lanes, c.before)
		s.settle(t, nil)
		for range c.after - c.before {
			s.join(nil)
		}
		s.settle(t, nil)
		if got := s.counts(); !slices.Equal(got, c.want) {
			t.Errorf("%d lanes, %d to %d members: %v, want %v", c.lanes, c.before, c.after, got, c.want)
		}
	}
}

// TestC92RollingRestart: while the replicas of a fleet are restarted one after the other, no more lanes move
// than must, none much more often than others, whatever the new ids are, and no claim fails; also
// when nobody has taken the lanes before the replica is back, and when the new one starts first.
func TestC92RollingRestart(t *testing.T) {
	for _, how := range []string{"stop first", "back at once", "start first"} {
		for _, lanes := range []int{8, 16, 64, 256} {
			for members := 2; members <= 9; members++ {
				for seed := range uint64(10) {
					rollingRestart(t, how, lanes, members, rand.New(rand.NewPCG(seed, 7)))
				}
			}
		}
	}
}

func rollingRestart(t *testing.T, how string, lanes, members int, r *rand.Rand) {
	t.Helper()
	s := newShares(lanes, 0)
	spread := 1 // how much more than the mean a lane may move
	for range members {
		s.join(r)
		if chance(r, 0.3) {
			s.settle(t, r)
			spread = 2 // lanes have moved more or less often before
		}
	}
	s.settle(t, r)
	clear(s.moves)
	least := 0
	for _, m := range slices.Clone(s.members) {
		if how == "start first" {
			s.join(r)
			s.settle(t, r)
			least += lanes / len(s.members)
		}
		least += s.held(m.ID)
		s.leave(m.ID)
		if how != "back at once" {
			s.settle(t, r)
		}
		if how != "start first" {
			s.join(r)
			s.settle(t, r)
		}
		if how == "stop first" {
			least += lanes / len(s.members)
		}
	}
	mean := (s.total() + lanes - 1) / lanes // rounded up
	if most := slices.Max(s.moves); s.failed > 0 || s.total() != least || most > mean+spread {
		t.Errorf("%s, %d lanes, %d members: %d moves, %d suffice; %d of one lane; %d claims failed", how, lanes, members, s.total(), least, most, s.failed)
	}
}

// TestC92RestlessReplica: a replica that comes and goes all the time does not always move the same
// lanes.
func TestC92RestlessReplica(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 8))
		s := newShares(256, 6)
		s.settle(t, r)
		clear(s.moves)
		for range 30 {
			if restless := s.members[len(s.members)-1].ID; chance(r, 0.5) {
				s.leave(restless)
			} else {
				s.crash(restless)
			}
			s.settle(t, r)
			s.join(r)
			s.settle(t, r)
		}
		if mean, most := s.total()/256, slices.Max(s.moves); most > mean+restless+2 {
			t.Errorf("%d moves of a lane and %d of one", mean, most)
		}
	}
}
