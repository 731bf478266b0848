package postgres

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source/sourcetest"
)

const leaseTTL = 10 * time.Second

// leases opens the leases of the test's database until the test ends.
func (w *world) leases(change ...func(*Config)) *Leases {
	w.t.Helper()
	l := NewLeases(w.config(change...))
	w.t.Cleanup(l.Close)
	return l
}

func (w *world) join(l *Leases, ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		if err := l.Join(w.t.Context(), lanes.Member{ID: id, Lanes: lanes.DefaultLanes}, leaseTTL); err != nil {
			w.t.Fatal(err)
		}
	}
}

// overdue lets a member's lease have ended a while ago.
func (w *world) overdue(id string) {
	w.t.Helper()
	w.exec("UPDATE outbox_members SET expires_at = clock_timestamp() - interval '1 second' WHERE id = $1", id)
}

func round(t testing.TB, l *Leases, me string) (table lanes.Table, alive bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	table, alive, err := l.Round(ctx, lanes.Member{ID: me}, leaseTTL, nil)
	if err != nil {
		t.Fatalf("the round of %s: %v", me, err)
	}
	return table, alive
}

func (w *world) members() string {
	w.t.Helper()
	return value[string](w, "SELECT coalesce(string_agg(id, ' ' ORDER BY id), '') FROM outbox_members")
}

func memberIDs(members []lanes.Member) string {
	var list []string
	for _, m := range members {
		list = append(list, m.ID)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// waitsForLock waits until a session of the forwarder waits for a lock.
func (w *world) waitsForLock() {
	w.t.Helper()
	eventually(w.t, "a session waits for the lock", func() bool {
		return value[int](w, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = $1 AND wait_event_type = 'Lock'`, applicationName) > 0
	})
}

// TestLeases is what all databases do alike, at whatever isolation level the database has by
// default (C09).
func TestLeases(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			sourcetest.Leases(t, func(t *testing.T) sourcetest.LeaseStore {
				w := newWorld(t)
				w.exec("ALTER DATABASE " + pgx.Identifier{value[string](w, "SELECT current_database()")}.Sanitize() +
					" SET default_transaction_isolation = '" + level + "'")
				return sourcetest.LeaseStore{
					Open:    func() lanes.Leases { return w.leases() },
					Overdue: w.overdue,
					Remove:  func(id string) { w.exec("DELETE FROM outbox_members WHERE id = $1", id) },
					MakeAnew: func(lane int) {
						w.exec("DELETE FROM outbox_lanes WHERE lane = $1", lane)
						w.exec("INSERT INTO outbox_lanes (lane) VALUES ($1)", lane)
					},
					Members: func() []string { return strings.Fields(w.members()) },
					Owned:   func() int { return value[int](w, "SELECT count(*) FROM outbox_lanes WHERE owner IS NOT NULL") },
				}
			})
		})
	}
}

// TestLeaseRenewalUnderWay: a member whose renewal has not committed yet is not removed, and
// nobody waits for it.
func TestLeaseRenewalUnderWay(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		w := newWorld(t)
		a := w.leases()
		w.join(a, "a", "b")
		w.overdue("b")
		renewal := w.session()
		run(t, renewal, "BEGIN")
		run(t, renewal, "UPDATE outbox_members SET expires_at = clock_timestamp() + interval '1 minute' WHERE id = 'b'")
		if table, alive := round(t, a, "a"); !alive || memberIDs(table.Members) != "a b" {
			t.Errorf("while the renewal is under way: alive %v, members %v", alive, table.Members)
		}
		run(t, renewal, end)
		want := "a b"
		if end == "ROLLBACK" {
			want = "a"
		}
		if table, _ := round(t, a, "a"); memberIDs(table.Members) != want || w.members() != want {
			t.Errorf("after %s: %v, in the table %s", end, table.Members, w.members())
		}
	}
}

// TestLeaseRemovalUnderWay: a renewal waits for the removal of its row, and then knows.
func TestLeaseRemovalUnderWay(t *testing.T) {
	t.Parallel()
	for end, want := range map[string]bool{"COMMIT": false, "ROLLBACK": true} {
		w := newWorld(t)
		a := w.leases()
		w.join(a, "a")
		w.overdue("a")
		removal := w.session()
		run(t, removal, "BEGIN")
		run(t, removal, "DELETE FROM outbox_members WHERE id = 'a' AND expires_at <= clock_timestamp()")
		begun := value[time.Time](w, "SELECT clock_timestamp()")
		got := make(chan bool, 1)
		go func() {
			_, alive, err := a.Round(context.Background(), lanes.Member{ID: "a"}, leaseTTL, nil)
			got <- alive && err == nil
		}()
		w.waitsForLock()
		run(t, removal, end)
		if alive := <-got; alive != want {
			t.Errorf("after %s: alive %v", end, alive)
		}
		if want && value[time.Time](w, "SELECT expires_at FROM outbox_members").Before(begun.Add(leaseTTL)) {
			t.Error("renewed for less than the lease from the start of the request")
		}
	}
}

// TestLeaseClock: a renewal that waited is counted from when it had the row, and not from when
// its statement or transaction began.
func TestLeaseClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.leases()
	w.join(a, "a")
	holder := w.session()
	run(t, holder, "BEGIN")
	run(t, holder, "UPDATE outbox_members SET report = '{}' WHERE id = 'a'")
	done := make(chan error, 1)
	go func() {
		_, _, err := a.Round(context.Background(), lanes.Member{ID: "a"}, leaseTTL, nil)
		done <- err
	}()
	w.waitsForLock()
	var released time.Time
	if err := holder.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&released); err != nil {
		t.Fatal(err)
	}
	run(t, holder, "COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if at := value[time.Time](w, "SELECT expires_at FROM outbox_members"); at.Before(released.Add(leaseTTL)) {
		t.Errorf("expires %v after the row was free", at.Sub(released))
	}
}

// TestLeaseRowLockedElsewhere: somebody who holds the row of a dead member costs nobody a lease.
func TestLeaseRowLockedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.leases()
	w.join(a, "a", "b")
	w.overdue("b")
	somebody := w.session()
	run(t, somebody, "BEGIN")
	run(t, somebody, "SELECT FROM outbox_members WHERE id = 'b' FOR UPDATE")
	if _, alive := round(t, a, "a"); !alive {
		t.Error("not renewed")
	}
	run(t, somebody, "ROLLBACK")
	if round(t, a, "a"); w.members() != "a" {
		t.Errorf("members %s", w.members())
	}
}

// TestC51LeaseConnectionDies: a call whose packets are dropped ends by its deadline, and the next
// one connects anew.
func TestC51LeaseConnectionDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.url)
	l := w.leases(func(c *Config) { c.URL = p.url })
	w.join(l, "a")
	round(t, l, "a")
	for range 3 {
		p.silence(true)
		for name, call := range map[string]func(context.Context) error{
			"round": func(ctx context.Context) error {
				_, _, err := l.Round(ctx, lanes.Member{ID: "a"}, leaseTTL, nil)
				return err
			},
			"take":    func(ctx context.Context) error { _, err := l.Take(ctx, "a", []lanes.Lease{{}}); return err },
			"release": func(ctx context.Context) error { return l.Release(ctx, "a", []lanes.Lease{{}}) },
			"join":    func(ctx context.Context) error { return l.Join(ctx, lanes.Member{ID: "b"}, leaseTTL) },
			"leave":   func(ctx context.Context) error { return l.Leave(ctx, "b") },
		} {
			const deadline = 300 * time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			begun := time.Now()
			err := call(ctx)
			cancel()
			// Closing the connection may take another moment.
			if took := time.Since(begun); err == nil || took > deadline+patience/6 {
				t.Errorf("%s ended after %v with %v", name, took, err)
			}
		}
		p.silence(false)
		if _, alive := round(t, l, "a"); !alive {
			t.Error("the member is gone")
		}
	}
}
