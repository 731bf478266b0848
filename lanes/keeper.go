package lanes

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/repeat"
	"github.com/outbox-forwarder/forwarder/source"
)

// KeeperConfig tunes a Keeper.
type KeeperConfig struct {
	// Host begins the member's id; a random part makes it unique to this start.
	Host string
	// TTL is how long a member that does not renew keeps its lanes. Default 10 s.
	TTL time.Duration
	// Exclusive says that this replica cannot share: it has all lanes or none. One such member
	// makes the whole fleet so.
	Exclusive bool
	// Every is the pause between rounds. Default 1 s, and at most a fifth of TTL.
	Every time.Duration
	// Report returns what the member's row is to show to people, as JSON. It is asked now and
	// then, and written with a renewal when it has changed.
	Report func() []byte
	Logger *slog.Logger
}

// Bounds of KeeperConfig.TTL: below, a pause of the garbage collector or of the network
// would cost the lanes.
const (
	MinTTL     = time.Second
	DefaultTTL = 10 * time.Second
)

func (c KeeperConfig) withDefaults() KeeperConfig {
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.Every == 0 {
		c.Every = min(time.Second, c.TTL/5)
	}
	if c.Report == nil {
		c.Report = func() []byte { return nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// reportEvery is how often the report is asked for.
const reportEvery = 5 * time.Second

// margin is how much earlier than the store this replica ends its trust in a lease.
func (c KeeperConfig) margin() time.Duration { return c.TTL / 10 }

// Keeper is the Owner of a forwarder that shares the outbox with others. It runs rounds on
// its own: renew, see who is there, give what is too much, take what is free.
//
// A lane is ours while its row names us and our member row exists. Locally that is trusted
// until the start of the last successful renewal plus TTL less a margin, by the monotonic
// clock; after that nothing more is submitted. Nobody ever owns a lane because Rebalance
// says so.
type Keeper struct {
	cfg    KeeperConfig
	leases Leases
	lanes  int
	log    *repeat.Log
	// time.Now, pause and rand.Text, but in simulated time.
	now    func() time.Time
	wait   func(ctx context.Context, d time.Duration)
	unique func() string

	// Only the goroutine of Own touches these.
	me       string
	joined   bool
	holds    map[source.Lane]hold // what we own
	draining map[source.Lane]bool // of holds: being given up
	gains    int64                // how often lanes have come
	alone    bool                 // the members do not share: what we have, we give up at once
	reported []byte               // the report in our row
	reportAt time.Time            // when the next one is due

	mu      sync.Mutex
	drained []source.Lane // to be released
	retire  bool          // this replica gives everything up and takes nothing
	member  string        // a copy of me for others
	wake    chan struct{}
}

// ErrLaneCount says that the store has another number of lanes than this replica started with.
var ErrLaneCount = errors.New("the store's lane count has changed")

// NewKeeper returns a keeper for a store of n lanes.
func NewKeeper(cfg KeeperConfig, leases Leases, n int) *Keeper {
	cfg = cfg.withDefaults()
	k := &Keeper{
		cfg: cfg, leases: leases, lanes: n,
		log: repeat.New(cfg.Logger, LogEvery),
		now: time.Now, unique: rand.Text,
		wake: make(chan struct{}, 1),
	}
	k.wait = k.pause
	return k
}

// pause waits for d, for a poke, or for the end of ctx.
func (k *Keeper) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-k.wake:
	case <-time.After(d):
	}
}

// Member is this replica's id in the store, empty while it is not a member.
func (k *Keeper) Member() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.member
}

// Retire makes this replica give up its lanes and take none until it is restarted.
func (k *Keeper) Retire() {
	k.mu.Lock()
	k.retire = true
	k.mu.Unlock()
	k.poke()
}

func (k *Keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Own implements Owner. It gives up its lanes, the member row last, when ctx is done: by then
// h has drained them, or never will.
func (k *Keeper) Own(ctx context.Context, h Holder) error {
	k.newLife()
	for {
		next := k.cfg.Every
		err := k.turn(ctx, h)
		switch {
		case errors.Is(err, ErrLaneCount):
			return errors.Join(err, k.leave(ctx))
		case err != nil && ctx.Err() == nil:
			k.log.Log(ctx, slog.LevelWarn, "leases", "keeping the leases failed, it is tried again", "err", err)
			next = min(k.cfg.Every, 200*time.Millisecond)
		case err == nil:
			k.log.Recovered("leases", "the leases are kept again")
		}
		k.wait(ctx, next)
		if ctx.Err() != nil {
			return k.leave(ctx)
		}
	}
}

// newLife takes a new id: a member that was declared dead never comes back.
func (k *Keeper) newLife() {
	k.me = fmt.Sprintf("%s-%.8s", k.cfg.Host, k.unique())
	k.joined = false
	k.reported, k.reportAt = nil, time.Time{}
	k.holds = make(map[source.Lane]hold)
	k.draining = make(map[source.Lane]bool)
	k.setMember("")
	k.mu.Lock()
	k.drained = nil
	k.mu.Unlock()
}

func (k *Keeper) setMember(id string) {
	k.mu.Lock()
	k.member = id
	k.mu.Unlock()
}

// self is what we say of ourselves.
func (k *Keeper) self(retiring bool) Member {
	return Member{ID: k.me, Retiring: retiring, Exclusive: k.cfg.Exclusive, Lanes: k.lanes}
}

// turn is one round: everything in it together has the time of a third of the lease.
func (k *Keeper) turn(ctx context.Context, h Holder) error {
	// A turn that has begun is finished: half a call would leave behind a dead connection, and
	// doubts.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.cfg.TTL/3)
	defer cancel()
	if !k.joined {
		start := k.now()
		if err := k.leases.Join(ctx, k.self(false), k.cfg.TTL); err != nil {
			// It may have joined. The row of an id that is not used again expires.
			k.newLife()
			return fmt.Errorf("joining: %w", err)
		}
		k.joined = true
		k.setMember(k.me)
		h.Trust(start.Add(k.cfg.TTL - k.cfg.margin()))
		k.cfg.Logger.Info("joined", "member", k.me, "ttl", k.cfg.TTL)
	}
	start := k.now()
	k.mu.Lock()
	retiring := k.retire
	k.mu.Unlock()
	var report []byte
	if !start.Before(k.reportAt) {
		k.reportAt = start.Add(reportEvery)
		if report = k.cfg.Report(); bytes.Equal(report, k.reported) {
			report = nil
		}
	}
	table, alive, err := k.leases.Round(ctx, k.self(retiring), k.cfg.TTL, report)
	if err != nil {
		return fmt.Errorf("renewing: %w", err)
	}
	if !alive {
		k.cfg.Logger.Warn("this replica was declared dead by another one: it drops its lanes and joins again", "member", k.me, "lanes", len(k.holds))
		k.lose(h)
		k.newLife()
		k.poke()
		return nil
	}
	if report != nil {
		k.reported = report
	}
	h.Trust(start.Add(k.cfg.TTL - k.cfg.margin()))
	// Released last: in the table that was just read, the lanes are still ours.
	if err := errors.Join(k.rebalance(ctx, h, table), k.release(ctx)); err != nil {
		return err
	}
	if n := len(table.Leases); n != k.lanes && len(k.holds) == 0 {
		return fmt.Errorf("%w: %d now, and %d when this replica started: restart it", ErrLaneCount, n, k.lanes)
	}
	return nil
}

// misfits counts the members whose lane count is another one than the store's. A key may be in
// one lane for them and in another one for the rest, so nothing is taken before they are gone.
func misfits(table Table) int {
	n := 0
	for _, m := range table.Members {
		if m.Lanes != len(table.Leases) {
			n++
		}
	}
	return n
}

// rebalance gives and takes what the table asks for.
func (k *Keeper) rebalance(ctx context.Context, h Holder, table Table) error {
	k.adopt(h, table)
	for i := range table.Leases {
		l := &table.Leases[i]
		if held, ok := k.holds[l.Lane]; ok {
			l.gained = held.gained
		}
	}
	k.alone = exclusive(table.Members)
	take, give := Rebalance(k.me, table.Members, table.Leases)
	if n := misfits(table); n > 0 {
		take = nil
		if len(table.Leases) != k.lanes {
			give = k.own() // which need not be in the table any more
		}
		k.log.Log(ctx, slog.LevelWarn, "misfits", "the number of lanes was changed: nothing is taken before the replicas with another number are gone",
			"lanes", len(table.Leases), "members", n)
	} else {
		k.log.Recovered("misfits", "all replicas have the same number of lanes")
	}
	var drain []source.Lane
	for _, l := range give {
		if !k.draining[l.Lane] && k.holds[l.Lane].epoch == l.Epoch {
			k.draining[l.Lane] = true
			drain = append(drain, l.Lane)
		}
	}
	if len(drain) > 0 {
		k.cfg.Logger.Info("giving up lanes", "count", len(drain), "members", len(table.Members))
		me := k.me
		h.Drain(drain, func(lane source.Lane) { k.onDrained(me, lane) })
	}
	if len(take) == 0 {
		return nil
	}
	got, err := k.claim(ctx, take)
	if err != nil {
		return fmt.Errorf("taking lanes: %w", err)
	}
	k.gain(h, got)
	if len(got) > 0 {
		k.cfg.Logger.Info("took lanes", "count", len(got), "wanted", len(take), "members", len(table.Members), "owned", len(k.holds))
	}
	return nil
}

// leave frees every lane that we hold and then removes the member row, so that peers go on
// within a round. What is left undone, expires; so do the leases of a shutdown that was cut
// short, whose last records may still be on the wire.
func (k *Keeper) leave(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), ErrGrace) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.cfg.TTL/3)
	defer cancel()
	if err := k.leases.Release(ctx, k.me, k.own()); err != nil {
		k.cfg.Logger.Warn("giving up the lanes failed: peers take them when the lease ends", "err", err)
		return nil
	}
	if err := k.leases.Leave(ctx, k.me); err != nil {
		k.cfg.Logger.Warn("leaving failed: the member row expires", "err", err)
	}
	k.setMember("")
	return nil
}
