// Package sourcetest holds what every database must do alike, as tests that each source's own
// tests run against a real server.
package sourcetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// LeaseTTL is the lease of the tests: longer than any of them.
const LeaseTTL = 5 * time.Minute

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// LeaseStore is an outbox of one test, with lanes.DefaultLanes lanes and no members.
type LeaseStore struct {
	// Open returns a replica's leases, which end with the test.
	Open func() lanes.Leases
	// Overdue lets a member's lease have ended a while ago.
	Overdue func(id string)
	// Remove removes a member.
	Remove func(id string)
	// MakeAnew takes a lane out of the store and puts it there again.
	MakeAnew func(lane int)
	// Members returns the members' ids as the database has them.
	Members func() []string
	// Owned counts the lanes that have an owner.
	Owned func() int
}

// Leases runs the tests. make is called for each of them.
func Leases(t *testing.T, open func(t *testing.T) LeaseStore) {
	for name, test := range map[string]func(*testing.T, LeaseStore){
		"Round":                  leaseRound,
		"Join":                   leaseJoin,
		"Exclusive":              leaseExclusive,
		"Epoch":                  leaseEpoch,
		"RenewalAgainstRemoval":  leaseRenewalAgainstRemoval,
		"C08TakeInAnyOrder":      leaseTakeInAnyOrder,
		"C08OwnersThatAreNoMore": leaseOwnersThatAreNoMore,
		"C95LaneMadeAnew":        leaseLaneMadeAnew,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func join(t testing.TB, l lanes.Leases, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := l.Join(t.Context(), lanes.Member{ID: id, Lanes: lanes.DefaultLanes}, LeaseTTL); err != nil {
			t.Fatal(err)
		}
	}
}

func round(t testing.TB, l lanes.Leases, me string) (table lanes.Table, alive bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	table, alive, err := l.Round(ctx, lanes.Member{ID: me}, LeaseTTL, nil)
	if err != nil {
		t.Fatalf("the round of %s: %v", me, err)
	}
	return table, alive
}

func take(t testing.TB, l lanes.Leases, me string, want []lanes.Lease) []lanes.Lease {
	t.Helper()
	got, err := l.Take(t.Context(), me, want)
	if err != nil {
		t.Fatalf("%s takes: %v", me, err)
	}
	slices.SortFunc(got, func(a, b lanes.Lease) int { return int(a.Lane) - int(b.Lane) })
	return got
}

func memberIDs(members []lanes.Member) string {
	var list []string
	for _, m := range members {
		list = append(list, m.ID)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// leaseRound: a round renews, and says who is there and who owns what.
func leaseRound(t *testing.T, s LeaseStore) {
	a, b := s.Open(), s.Open()
	join(t, a, "a")
	join(t, b, "b")
	table, alive := round(t, a, "a")
	if !alive || memberIDs(table.Members) != "a b" || len(table.Leases) != lanes.DefaultLanes {
		t.Fatalf("alive %v, members %v, %d lanes", alive, table.Members, len(table.Leases))
	}
	for i, l := range table.Leases {
		if l != (lanes.Lease{Lane: source.Lane(i)}) {
			t.Fatalf("lane %d is %+v", i, l)
		}
	}
	got := take(t, a, "a", table.Leases[3:5])
	if want := []lanes.Lease{{Lane: 3, Owner: "a", Epoch: 1}, {Lane: 4, Owner: "a", Epoch: 1}}; !slices.Equal(got, want) {
		t.Fatalf("took %v", got)
	}
	if err := b.Release(t.Context(), "b", got); err != nil || s.Owned() != 2 {
		t.Errorf("b gave up lanes of a: %v", err)
	}
	if err := a.Release(t.Context(), "a", got[:1]); err != nil {
		t.Fatal(err)
	}
	if err := a.Leave(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, alive := round(t, a, "a"); alive {
		t.Error("a member that has left is renewed")
	}
	table, _ = round(t, b, "b")
	if memberIDs(table.Members) != "b" || table.Leases[3].Owner != "" || table.Leases[4] != (lanes.Lease{Lane: 4, Owner: "a", Epoch: 1}) {
		t.Errorf("left behind: %v, %v", table.Members, table.Leases[3:5])
	}
	if got := take(t, a, "a", table.Leases[:1]); len(got) != 0 {
		t.Errorf("somebody who is no member took %v", got)
	}
	if s.Owned() != 1 {
		t.Errorf("%d lanes have an owner", s.Owned())
	}
}

// leaseExclusive: a member that cannot share is seen as one, and who joined first as well.
func leaseExclusive(t *testing.T, s LeaseStore) {
	a, b := s.Open(), s.Open()
	join(t, a, "b")
	if err := b.Join(t.Context(), lanes.Member{ID: "a", Exclusive: true, Lanes: lanes.DefaultLanes}, LeaseTTL); err != nil {
		t.Fatal(err)
	}
	for _, l := range []lanes.Leases{a, b} {
		table, _ := round(t, l, "b")
		members := slices.SortedFunc(slices.Values(table.Members), func(m, n lanes.Member) int { return m.Started.Compare(n.Started) })
		if memberIDs(members) != "a b" || members[0].ID != "b" || members[0].Exclusive || !members[1].Exclusive {
			t.Errorf("members %+v", members)
		}
	}
}

// leaseJoin: what a member says of itself is seen by others, and an id is taken once.
func leaseJoin(t *testing.T, s LeaseStore) {
	a, b := s.Open(), s.Open()
	join(t, b, "b")
	if err := a.Join(t.Context(), lanes.Member{ID: "$a", Lanes: 64}, LeaseTTL); err != nil {
		t.Fatal(err)
	}
	if err := a.Join(t.Context(), lanes.Member{ID: "$a", Lanes: 64}, LeaseTTL); err == nil {
		t.Error("a second member joined by the same id")
	}
	if _, alive, err := a.Round(t.Context(), lanes.Member{ID: "$a", Retiring: true}, LeaseTTL, []byte(`{"x": "$y"}`)); err != nil || !alive {
		t.Fatalf("alive %v: %v", alive, err)
	}
	table, _ := round(t, b, "b")
	if !slices.ContainsFunc(table.Members, func(m lanes.Member) bool {
		m.Started = time.Time{}
		return m == lanes.Member{ID: "$a", Retiring: true, Lanes: 64}
	}) {
		t.Errorf("members %+v", table.Members)
	}
	if got := take(t, a, "$a", table.Leases[:1]); len(got) != 1 || got[0].Owner != "$a" {
		t.Errorf("took %v", got)
	}
}

// leaseEpoch: a lane whose epoch is another one by now is not taken and not given up.
func leaseEpoch(t *testing.T, s LeaseStore) {
	a := s.Open()
	join(t, a, "a")
	table, _ := round(t, a, "a")
	stale := table.Leases[:2]
	got := take(t, a, "a", stale)
	if err := a.Release(t.Context(), "a", got); err != nil || s.Owned() != 0 {
		t.Fatalf("%d lanes are owned: %v", s.Owned(), err)
	}
	if again := take(t, a, "a", stale); len(again) != 0 || s.Owned() != 0 {
		t.Errorf("took %v by an epoch that has passed", again)
	}
	table, _ = round(t, a, "a")
	again := take(t, a, "a", table.Leases[:2])
	if err := a.Release(t.Context(), "a", got); err != nil || s.Owned() != 2 {
		t.Errorf("gave up %v as %v: %v", again, got, err)
	}
}

// leaseRenewalAgainstRemoval: however the two meet, the replica and its peers agree.
func leaseRenewalAgainstRemoval(t *testing.T, s LeaseStore) {
	a, b := s.Open(), s.Open()
	join(t, b, "b")
	lives, deaths := 0, 0
	var late time.Duration // how much later the renewal is sent, so that either can come first
	for n := 0; n < 100 || lives == 0 || deaths == 0; n++ {
		if n > 5000 {
			t.Fatalf("%d renewals and %d removals came first: the two never raced", lives, deaths)
		}
		me := fmt.Sprintf("a%d", n)
		join(t, a, me)
		s.Overdue(me)
		var alive bool
		var errs [2]error
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(late)
			_, alive, errs[0] = a.Round(t.Context(), lanes.Member{ID: me}, LeaseTTL, nil)
		})
		wg.Go(func() {
			time.Sleep(-late)
			_, _, errs[1] = b.Round(t.Context(), lanes.Member{ID: "b"}, LeaseTTL, nil)
		})
		wg.Wait()
		if errs[0] != nil || errs[1] != nil {
			t.Fatal(errs)
		}
		if there := slices.Contains(s.Members(), me); alive != there {
			t.Fatalf("the replica believes %v, the database says %v", alive, there)
		}
		if alive {
			lives++
			late += 100 * time.Microsecond
		} else {
			deaths++
			late -= 100 * time.Microsecond
		}
		s.Remove(me)
	}
	t.Logf("%d renewals and %d removals came first", lives, deaths)
}

// leaseTakeInAnyOrder: replicas that take the same lanes at the same time, in any order, each
// get what nobody else has.
func leaseTakeInAnyOrder(t *testing.T, s LeaseStore) {
	const replicas = 4
	all := make([]lanes.Leases, replicas)
	for i := range all {
		all[i] = s.Open()
		join(t, all[i], fmt.Sprintf("r%d", i))
	}
	for n := range 30 {
		table, _ := round(t, all[0], "r0")
		var wg sync.WaitGroup
		got := make([][]lanes.Lease, replicas)
		for i, l := range all {
			want := slices.Clone(table.Leases[i*40 : i*40+120])
			rand.Shuffle(len(want), func(a, b int) { want[a], want[b] = want[b], want[a] })
			wg.Go(func() {
				var err error
				if got[i], err = l.Take(t.Context(), fmt.Sprintf("r%d", i), want); err != nil {
					t.Errorf("replica %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		owner := make(map[source.Lane]string)
		for i := range got {
			for _, l := range got[i] {
				if owner[l.Lane] != "" || l.Epoch != table.Leases[l.Lane].Epoch+1 {
					t.Fatalf("round %d: lane %d for %s and %s, %+v", n, l.Lane, owner[l.Lane], l.Owner, l)
				}
				owner[l.Lane] = l.Owner
			}
		}
		table, _ = round(t, all[0], "r0")
		for _, l := range table.Leases {
			if l.Owner != owner[l.Lane] {
				t.Fatalf("round %d: lane %d belongs to %q, and %q got it", n, l.Lane, l.Owner, owner[l.Lane])
			}
		}
		if len(owner) != 240 {
			t.Fatalf("round %d: %d lanes were taken", n, len(owner))
		}
		// Given up in any order too.
		for i, l := range all {
			rand.Shuffle(len(got[i]), func(a, b int) { got[i][a], got[i][b] = got[i][b], got[i][a] })
			wg.Go(func() {
				if err := l.Release(t.Context(), fmt.Sprintf("r%d", i), got[i]); err != nil {
					t.Errorf("replica %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	}
	if n := s.Owned(); n != 0 {
		t.Errorf("%d lanes are still owned", n)
	}
}

// leaseOwnersThatAreNoMore: the lanes of a member that is gone are free for one of its peers,
// and those of a member that is there for nobody.
func leaseOwnersThatAreNoMore(t *testing.T, s LeaseStore) {
	a, b, c := s.Open(), s.Open(), s.Open()
	join(t, a, "a")
	join(t, b, "b")
	join(t, c, "c")
	table, _ := round(t, a, "a")
	take(t, a, "a", table.Leases[:10])
	take(t, b, "b", table.Leases[10:20])
	s.Overdue("a")
	table, _ = round(t, b, "b") // which removes a
	if memberIDs(table.Members) != "b c" || slices.Contains(s.Members(), "a") {
		t.Fatalf("members %v, in the database %v", table.Members, s.Members())
	}
	var wg sync.WaitGroup
	var got [2][]lanes.Lease
	for i, l := range []lanes.Leases{b, c} {
		wg.Go(func() {
			var err error
			if got[i], err = l.Take(t.Context(), []string{"b", "c"}[i], table.Leases[:20]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	taken := slices.Concat(got[0], got[1])
	if len(taken) != 10 || slices.ContainsFunc(taken, func(l lanes.Lease) bool { return l.Lane >= 10 || l.Epoch != 2 }) {
		t.Errorf("took %v", taken)
	}
	if _, alive := round(t, a, "a"); alive {
		t.Error("a was removed, and is renewed")
	}
}

// leaseLaneMadeAnew: who owned a lane before it was taken out of the store and put there again
// need not have noticed, so nobody else takes it before that member is gone or has had the time.
func leaseLaneMadeAnew(t *testing.T, s LeaseStore) {
	a, b := s.Open(), s.Open()
	join(t, a, "a")
	table, _ := round(t, a, "a")
	take(t, a, "a", table.Leases[:4])
	for lane := range 4 {
		s.MakeAnew(lane)
	}
	<-time.After(2 * time.Millisecond) // a database may count in milliseconds
	join(t, b, "b")
	table, _ = round(t, b, "b")
	want := table.Leases[:5]
	if want[0] != (lanes.Lease{}) {
		t.Fatalf("lane 0 is %+v", want[0])
	}
	expect := func(what string, got []lanes.Lease, numbers ...source.Lane) {
		t.Helper()
		if !slices.EqualFunc(got, numbers, func(l lanes.Lease, n source.Lane) bool { return l.Lane == n && l.Epoch == 1 }) {
			t.Fatalf("%s takes %v, want the lanes %v", what, got, numbers)
		}
	}
	expect("b, beside a,", take(t, b, "b", want), 4)
	expect("a, who was there before,", take(t, a, "a", want[:1]), 0)
	if _, _, err := b.Round(t.Context(), lanes.Member{ID: "b"}, time.Millisecond, nil); err != nil {
		t.Fatal(err)
	}
	<-time.After(2 * time.Millisecond)
	expect("b, after its lease's time,", take(t, b, "b", want[1:2]), 1)
	round(t, b, "b")
	expect("b, beside a again,", take(t, b, "b", want[2:4]))
	s.Remove("a")
	expect("b, when a is gone,", take(t, b, "b", want[2:4]), 2, 3)
}
