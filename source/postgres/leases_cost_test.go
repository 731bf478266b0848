package postgres

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// TestC92IdleRoundIsOneStatement: with nothing to take or give, a replica sends one statement a
// round, and writes nothing but its heartbeat.
func TestC92IdleRoundIsOneStatement(t *testing.T) {
	t.Parallel()
	server := ownServer(t, map[string]string{"log_statement": "all", "log_line_prefix": "%a|"})
	w := worldAt(t, server.URL("postgres"), outbox)
	w.beside(Config{})
	const members, rounds = 4, 50
	all := make([]*Leases, members)
	for i := range all {
		all[i] = w.leases()
		w.join(all[i], fmt.Sprintf("m%d", i))
		round(t, all[i], fmt.Sprintf("m%d", i))
	}
	before := statementsLogged(t, server.LogPath())
	for range rounds {
		for i, l := range all {
			if _, alive := round(t, l, fmt.Sprintf("m%d", i)); !alive {
				t.Fatal("a member is gone")
			}
		}
	}
	if n := statementsLogged(t, server.LogPath()) - before; n != members*rounds {
		t.Errorf("%d statements in %d rounds", n, members*rounds)
	}
	for _, l := range all {
		l.Close() // what a session did is counted for certain when it ends
	}
	writes := func() string {
		return value[string](w, `SELECT string_agg(format('%s ins %s upd %s del %s', relname, n_tup_ins, n_tup_upd, n_tup_del), ', ' ORDER BY relname)
			FROM pg_stat_user_tables WHERE relname IN ('outbox_members', 'outbox_lanes')`)
	}
	want := fmt.Sprintf("outbox_lanes ins %d upd 0 del 0, outbox_members ins %d upd %d del 0", lanes.DefaultLanes, members, members*(rounds+1))
	last := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s, want %s", last, want)
		}
	}()
	eventually(t, "the writes are counted", func() bool { last = writes(); return last == want })
}

// TestLeaseTablesDoNotGrow: an hour's worth of rounds of four replicas, with reports that change
// and lanes that move, rewrites rows in place, also without any vacuum. Only one round is under
// way at a time, as good as always when each replica has one a second.
func TestLeaseTablesDoNotGrow(t *testing.T) {
	t.Parallel()
	server := ownServer(t, map[string]string{"autovacuum": "off", "fsync": "off"})
	w := worldAt(t, server.URL("postgres"), outbox)
	w.beside(Config{})
	const members, rounds, moves = 4, 3600, 8
	all := make([]*Leases, members)
	held := make([][]lanes.Lease, members)
	for i := range all {
		all[i] = w.leases()
		w.join(all[i], fmt.Sprintf("m%d", i))
	}
	size := func() int64 {
		return value[int64](w, "SELECT pg_total_relation_size('outbox_members') + pg_total_relation_size('outbox_lanes')")
	}
	var before int64
	for n := range rounds {
		if n == rounds/moves {
			before = size()
		}
		for i, l := range all {
			me := fmt.Sprintf("m%d", i)
			var report []byte
			if n%5 == 0 {
				report = fmt.Appendf(nil, `{"n": %d, "parked": "%s"}`, n, bytes.Repeat([]byte{'x'}, rand.IntN(400)))
			}
			table, alive, err := l.Round(t.Context(), lanes.Member{ID: me}, time.Hour, report)
			if err != nil || !alive {
				t.Fatalf("round %d of %s: alive %v, %v", n, me, alive, err)
			}
			if n%(rounds/moves) == 0 {
				if err := l.Release(t.Context(), me, held[i]); err != nil {
					t.Fatal(err)
				}
				share := table.Leases[i*64 : (i+1)*64]
				for k := range share {
					if share[k].Owner == me {
						share[k].Owner, share[k].Epoch = "", share[k].Epoch+1
					}
				}
				if held[i], err = l.Take(t.Context(), me, share); err != nil || len(held[i]) != 64 {
					t.Fatalf("%s took %d lanes: %v", me, len(held[i]), err)
				}
			}
		}
	}
	if after := size(); after > before {
		t.Errorf("the tables grew from %d to %d bytes", before, after)
	}
	for _, l := range all {
		l.Close() // what a session did is counted for certain when it ends
	}
	// Each move is a release and a take, but the first.
	for table, want := range map[string]int{"outbox_members": members * rounds, "outbox_lanes": 256 * (2*moves - 1)} {
		var updates, hot int
		eventually(t, "the updates are counted", func() bool {
			err := w.conn.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", table).Scan(&updates, &hot)
			if err != nil {
				t.Fatal(err)
			}
			return updates >= want
		})
		if updates != want || hot != updates {
			t.Errorf("%s: %d updates for %d, %d of them HOT", table, updates, want, hot)
		}
	}
}

// tenure is a time in which a replica would have submitted a lane.
type tenure struct {
	lane     source.Lane
	owner    string
	from, to time.Time
}

// tenant is a Holder that writes down what it holds, and until when.
type tenant struct {
	name string
	log  func(tenure)

	mu    sync.Mutex
	holds map[source.Lane]time.Time
	until time.Time
}

func (h *tenant) Gain(lanes []source.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, lane := range lanes {
		h.holds[lane] = time.Now()
	}
}

// end closes the tenure of a lane. mu is held.
func (h *tenant) end(lane source.Lane) {
	from, ok := h.holds[lane]
	delete(h.holds, lane)
	to := time.Now()
	if h.until.Before(to) {
		to = h.until
	}
	if ok && from.Before(to) {
		h.log(tenure{lane, h.name, from, to})
	}
}

func (h *tenant) Lose(lanes []source.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, lane := range lanes {
		h.end(lane)
	}
}

func (h *tenant) Drain(lanes []source.Lane, done func(source.Lane)) {
	h.Lose(lanes)
	for _, lane := range lanes {
		done(lane)
	}
}

// Trust notes how long the lanes are ours. Where the trust had ended in between, the tenures
// begin anew.
func (h *tenant) Trust(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.until.Before(now) {
		for lane := range h.holds {
			h.end(lane)
			h.holds[lane] = now
		}
	}
	h.until = until
}

// leave ends everything: the process is gone, or has finished with all lanes.
func (h *tenant) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for lane := range h.holds {
		h.end(lane)
	}
}

// TestC89NoOverlap: a thousand starts of replicas on a real store, with clean stops and
// crashes, and a log of who held which lane from when to when: no two at one time.
func TestC89NoOverlap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("DELETE FROM outbox_lanes WHERE lane >= 16")
	const starts, atOnce = 1000, 8
	var mu sync.Mutex
	var log []tenure
	var next int
	var wg sync.WaitGroup
	crashes := 0
	for range atOnce {
		wg.Go(func() {
			for {
				mu.Lock()
				n := next
				next++
				mu.Unlock()
				if n >= starts {
					return
				}
				crash := w.live(n, func(e tenure) {
					mu.Lock()
					log = append(log, e)
					mu.Unlock()
				})
				if crash {
					mu.Lock()
					crashes++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	byLane := make(map[source.Lane][]tenure)
	for _, e := range log {
		byLane[e.lane] = append(byLane[e.lane], e)
	}
	for lane, list := range byLane {
		for i, a := range list {
			for _, b := range list[:i] {
				if a.from.Before(b.to) && b.from.Before(a.to) {
					t.Fatalf("lane %d: %s from %v to %v, and %s from %v to %v", lane, a.owner, a.from, a.to, b.owner, b.from, b.to)
				}
			}
		}
	}
	t.Logf("%d starts, %d crashes, %d tenures of %d lanes", starts, crashes, len(log), len(byLane))
	if len(byLane) != 16 || len(log) < starts/10 || crashes < starts/20 {
		t.Error("the lanes were hardly ever held")
	}
}

// live is one replica's life of some rounds, and says whether it ended in a crash.
func (w *world) live(n int, log func(tenure)) (crash bool) {
	h := &tenant{name: fmt.Sprintf("r%d", n), log: log, holds: make(map[source.Lane]time.Time)}
	l := NewLeases(w.config())
	defer l.Close()
	keeper := lanes.NewKeeper(lanes.KeeperConfig{Host: h.name, TTL: time.Second, Every: 10 * time.Millisecond}, l, 16)
	ctx, stop := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	var cause error
	if crash = rand.IntN(8) == 0; crash {
		cause = lanes.ErrGrace // the rows stay, as after a crash
	}
	time.AfterFunc(time.Duration(20+rand.IntN(150))*time.Millisecond, func() {
		h.leave()
		stop(cause)
	})
	go func() { ended <- keeper.Own(ctx, h) }()
	if err := <-ended; err != nil {
		w.t.Errorf("%s: %v", h.name, err)
	}
	return crash
}
