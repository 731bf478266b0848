package lanes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// kept is a keeper at work in a bubble.
type kept struct {
	t      *testing.T
	store  *keptLeases
	hands  *hands
	keeper *Keeper
	stop   context.CancelCauseFunc
	ended  chan error
}

const keptTTL = 10 * time.Second

func keep(t *testing.T, store *keptLeases, n int) *kept {
	return keepAs(t, KeeperConfig{}, store, n)
}

func keepAs(t *testing.T, cfg KeeperConfig, store *keptLeases, n int) *kept {
	cfg.Host, cfg.TTL = "host", keptTTL
	k := &kept{t: t, store: store, hands: &hands{has: make(map[source.Lane]bool)}, ended: make(chan error, 1)}
	k.keeper = NewKeeper(cfg, store, n)
	ctx, stop := context.WithCancelCause(t.Context())
	k.stop = stop
	go func() { k.ended <- k.keeper.Own(ctx, k.hands) }()
	pass(0)
	return k
}

// pass lets time go by in the bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (k *kept) want(what string, lanes, lost int) {
	k.t.Helper()
	has, gone, trusted := k.hands.state()
	owned := k.store.owned(k.keeper.Member())
	if has != lanes || owned != lanes || gone != lost || !trusted {
		k.t.Errorf("%s: %d lanes in hand, %d in the store, %d lost, trusted %v; want %d lanes and %d lost", what, has, owned, gone, trusted, lanes, lost)
	}
}

func (k *kept) end(cause error) {
	k.t.Helper()
	k.stop(cause)
	if err := <-k.ended; err != nil {
		k.t.Errorf("the keeper ends with %v", err)
	}
}

// TestKeeperLostAnswers: a call that was carried out though its answer was lost costs neither
// lanes nor order.
func TestKeeperLostAnswers(t *testing.T) {
	for _, call := range []string{"join", "round", "take", "release"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newKeptLeases(8)
				store.once(call)
				k := keep(t, store, 8)
				if call == "join" {
					// The row of the id that was given up counts as a member until it expires.
					pass(keptTTL + 2*time.Second)
				} else {
					pass(2 * time.Second)
				}
				k.want("alone", 8, 0)
				other := keep(t, store, 8)
				pass(3 * time.Second)
				k.want("the first of two", 4, 0)
				other.want("the second of two", 4, 0)
				other.end(nil)
				pass(2 * time.Second)
				k.want("alone again", 8, 0)
				k.end(nil)
				if slices.ContainsFunc(store.lanes, func(l Lease) bool { return l.Owner != "" }) || len(store.members) > 0 {
					t.Errorf("left behind: %v, %v", store.lanes, store.members)
				}
			})
		})
	}
}

// TestKeeperDeclaredDead: a replica whose member row is gone drops everything and joins again
// under a new id.
func TestKeeperDeclaredDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeptLeases(8)
		k := keep(t, store, 8)
		pass(2 * time.Second)
		k.want("before", 8, 0)
		before := k.keeper.Member()
		store.set(func() { delete(store.members, before) })
		pass(2 * time.Second)
		k.want("after", 8, 8)
		if me := k.keeper.Member(); me == before || !strings.HasPrefix(me, "host-") {
			t.Errorf("it was %q and is %q", before, me)
		}
		k.end(nil)
	})
}

// TestKeeperMember: the id is there exactly while the replica is a member.
func TestKeeperMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeptLeases(1)
		store.set(func() { store.fault = func(context.Context, string) (bool, error) { return false, errAway } })
		k := keep(t, store, 1)
		pass(5 * time.Second)
		if me := k.keeper.Member(); me != "" {
			t.Errorf("member %q without having joined", me)
		}
		store.set(func() { store.fault = nil })
		pass(2 * time.Second)
		if _, ok := store.members[k.keeper.Member()]; !ok {
			t.Errorf("member %q, the store has %v", k.keeper.Member(), store.members)
		}
		k.end(nil)
		if me := k.keeper.Member(); me != "" {
			t.Errorf("member %q after having left", me)
		}
	})
}

// TestKeeperGrace: a shutdown that was cut short may have records on the wire, so the lanes
// wait for the end of the lease.
func TestKeeperGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeptLeases(4)
		k := keep(t, store, 4)
		pass(time.Second)
		me := k.keeper.Member()
		k.end(errors.Join(ErrGrace))
		if _, ok := store.members[me]; !ok || store.owned(me) != 4 {
			t.Errorf("members %v, lanes %v", store.members, store.lanes)
		}
		other := keep(t, store, 4)
		pass(keptTTL - 2*time.Second)
		other.want("before the lease ends", 0, 0)
		pass(4 * time.Second)
		other.want("after it", 4, 0)
		other.end(nil)
	})
}

// TestKeeperRetire: a replica that retires gives up each lane as it is finished, takes none, and
// stays a member.
func TestKeeperRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeptLeases(8)
		k := keep(t, store, 8)
		pass(time.Second)
		k.hands.mu.Lock()
		k.hands.slow = true
		k.hands.mu.Unlock()
		k.keeper.Retire()
		pass(3 * time.Second)
		if n := store.owned(k.keeper.Member()); n != 8 {
			t.Errorf("%d lanes are kept while all are in use", n)
		}
		k.hands.finish()
		pass(3 * time.Second)
		k.want("retired", 0, 0)
		if _, ok := store.members[k.keeper.Member()]; !ok {
			t.Error("it is no member any more")
		}
		k.end(nil)
	})
}

// TestC51KeeperCallsEnd: a call that is never answered ends by its deadline, and the lease is
// kept by the next one. Only a store that is away for as long as the lease costs the trust.
func TestC51KeeperCallsEnd(t *testing.T) {
	for _, call := range []string{"round", "take", "release"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newKeptLeases(8)
				k := keep(t, store, 8)
				pass(time.Second)
				var swallowed atomic.Int64
				store.set(func() {
					store.fault = func(ctx context.Context, name string) (bool, error) {
						if name == call && swallowed.CompareAndSwap(0, 1) {
							<-ctx.Done()
							return false, ctx.Err()
						}
						return true, nil
					}
				})
				other := keep(t, store, 8)
				trusted := true
				for range 10 {
					pass(time.Second)
					_, _, now := k.hands.state()
					trusted = trusted && now
				}
				if swallowed.Load() != 1 || !trusted {
					t.Errorf("%d calls were swallowed, trusted all the time: %v", swallowed.Load(), trusted)
				}
				k.want("the first", 4, 0)
				other.want("the second", 4, 0)
				other.end(nil)
				k.end(nil)
			})
		})
	}
}

// TestKeeperLaneCount: C95, a replica that was started with another number of lanes gives up.
func TestC95KeeperLaneCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeptLeases(8)
		k := keep(t, store, 8)
		pass(time.Second)
		store.set(func() { store.lanes = newKeptLeases(16).lanes })
		if err := <-k.ended; !errors.Is(err, ErrLaneCount) || !strings.Contains(err.Error(), "16 now, and 8") {
			t.Errorf("the keeper ends with %v", err)
		}
		if has, lost, _ := k.hands.state(); has != 0 || lost != 8 {
			t.Errorf("%d lanes in hand, %d lost", has, lost)
		}
	})
}

// TestC95NothingIsTakenBesideAnotherLaneCount: lanes were added under a running replica. It ends
// in order, and a new one, for which keys lie in other lanes, takes nothing before.
func TestC95NothingIsTakenBesideAnotherLaneCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newKeptLeases(8)
		old := keep(t, store, 8)
		pass(3 * time.Second)
		old.hands.mu.Lock()
		old.hands.slow = true
		old.hands.mu.Unlock()
		store.set(func() {
			for i := 8; i < 16; i++ {
				store.lanes = append(store.lanes, Lease{Lane: source.Lane(i)})
			}
		})
		young := keep(t, store, 16)
		pass(5 * time.Second)
		if has, lost, _ := old.hands.state(); has != 8 || lost != 0 {
			t.Errorf("the old replica drains: it has %d lanes and lost %d", has, lost)
		}
		if has, _, _ := young.hands.state(); has != 0 {
			t.Errorf("the new replica has %d lanes beside the old one", has)
		}
		old.hands.finish()
		if err := <-old.ended; !errors.Is(err, ErrLaneCount) {
			t.Errorf("the old replica ends with %v", err)
		}
		pass(3 * time.Second)
		if has, _, _ := young.hands.state(); has != 16 {
			t.Errorf("the new replica has %d lanes after the old one is gone", has)
		}
		young.end(nil)
	})
}

// TestC88TrustIsMonotonic: what the keeper says of its trust carries a reading of the monotonic
// clock, so that a step of the wall clock changes nothing.
func TestC88TrustIsMonotonic(t *testing.T) {
	h := &hands{has: make(map[source.Lane]bool)}
	k := NewKeeper(KeeperConfig{Host: "host"}, newKeptLeases(4), 4)
	k.newLife()
	before := time.Now()
	if err := k.turn(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if h.until == h.until.Round(0) {
		t.Errorf("%v has no monotonic reading", h.until)
	}
	if d := h.until.Sub(before); d < k.cfg.TTL-k.cfg.margin() || d >= k.cfg.TTL {
		t.Errorf("trusted for %v of a lease of %v", d, k.cfg.TTL)
	}
	f, err := NewForwarder(Config{Lanes: 4}, nil, nil, nil, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	f.Trust(h.until)
	f.engine.Trust(before, h.until)
	if got := f.trust.Load(); *got != h.until || f.engine.trusted != h.until {
		t.Errorf("kept as %v and %v, given as %v", got, f.engine.trusted, h.until)
	}
}
