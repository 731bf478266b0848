package e2e

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// onlyLanes makes the outbox one of n lanes.
func (w *world) onlyLanes(n int) {
	w.t.Helper()
	conn := w.connect()
	w.execute(conn, "DELETE FROM outbox_lanes WHERE lane >= $1", n)
	w.execute(conn, "INSERT INTO outbox_lanes (lane) SELECT generate_series((SELECT count(*) FROM outbox_lanes), $1::bigint - 1)", n)
}

// TestC91FairShares starts one replica after another, with many lanes and with fewer lanes than
// replicas. The shares become fair, `forwarder status` shows them, and then nothing moves.
func TestC91FairShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ lanes, replicas int }{{lanesOf, 5}, {4, 3}, {2, 4}} {
		t.Run(fmt.Sprintf("%d lanes %d replicas", c.lanes, c.replicas), func(t *testing.T) {
			w := newWorld(t, nil, nil)
			w.onlyLanes(c.lanes)
			var procs []*process
			for range c.replicas {
				procs = append(procs, w.start())
				begun := time.Now()
				w.awaitBalance(procs...)
				t.Logf("%d replicas: balanced after %s: %s", len(procs), time.Since(begun).Round(10*time.Millisecond), w.fleet())
			}
			before := w.epochs()
			always(t, 3*time.Second, "no lane moves", func() bool { return maps.Equal(before, w.epochs()) })
			s := w.status()
			if s.Lanes != c.lanes || s.Unowned != 0 || len(s.Members) != c.replicas {
				t.Errorf("forwarder status: %+v", s)
			}
			sum := 0
			for _, m := range s.Members {
				sum += m.Lanes
				if share := c.lanes / c.replicas; m.Lanes < share || m.Lanes > share+1 || m.State != "live" {
					t.Errorf("forwarder status shows %+v, want a share of %d or one more", m, share)
				}
			}
			if sum != c.lanes {
				t.Errorf("the members have %d lanes, want %d", sum, c.lanes)
			}
			endInOrder(procs...)
		})
	}
}

// statementLog is a server's log of the statements of forwarders.
type statementLog struct {
	t    *testing.T
	path string
	from int64
}

// loggedPostgres starts a server that logs every statement, with who sent it.
func loggedPostgres(t *testing.T) (*servers.Postgres, *statementLog) {
	t.Helper()
	db, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{Settings: map[string]string{
		"fsync": "off", "log_statement": "all", "log_line_prefix": "%a|",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db, &statementLog{t: t, path: db.LogPath()}
}

// next counts the statements since it was called last: all of them, and by the first name that
// they contain.
func (l *statementLog) next(names ...string) (all int, by map[string]int) {
	l.t.Helper()
	text, err := os.ReadFile(l.path)
	if err != nil {
		l.t.Fatal(err)
	}
	news := string(text[l.from:])
	l.from = int64(len(text))
	by = map[string]int{}
	// What goes on on another line begins with a tab.
	for entry := range strings.SplitSeq(strings.ReplaceAll(news, "\n\t", " "), "\n") {
		who, statement, found := strings.Cut(entry, "|")
		if !found || who == oracle.ApplicationName || !strings.Contains(statement, "execute") {
			continue
		}
		all++
		for _, name := range names {
			if strings.Contains(statement, name) {
				by[name]++
				break
			}
		}
	}
	return all, by
}

// TestC92IdleFleet leaves six replicas alone with eight lanes: each renews its lease about once
// a second, and nobody tries to take anything. Then all of them are restarted in turns, and
// lanes move about twice.
func TestC92IdleFleet(t *testing.T) {
	t.Parallel()
	db, log := loggedPostgres(t)
	w := newWorld(t, db, nil)
	const lanes, replicas = 8, 6
	w.onlyLanes(lanes)
	procs := w.replicas(replicas)
	const (
		round = "WITH renewed"
		claim = `UPDATE "public"."outbox_lanes"`
		bury  = `DELETE FROM "public"."outbox_members"`
	)
	_, by := log.next(round, claim, bury)
	if by[round] < replicas || by[claim] == 0 {
		t.Fatalf("the log shows %v while the fleet came together: the statements are not recognised", by)
	}
	before := w.epochs()
	const idle = 15 * time.Second
	log.next()
	begun := time.Now()
	pause(t, idle)
	all, by := log.next(round, claim, bury)
	took := time.Since(begun).Seconds()
	perReplica := float64(by[round]) / took / replicas
	t.Logf("%d idle replicas for %.1f s: %.2f rounds and %.1f statements per replica and second; %d claims, %d burials",
		replicas, took, perReplica, float64(all)/took/replicas, by[claim], by[bury])
	if perReplica > 1.3 || perReplica < 0.5 {
		t.Errorf("%.2f rounds per replica and second, want about one", perReplica)
	}
	if by[claim]+by[bury] != 0 {
		t.Errorf("%d claims and %d burials in an idle fleet, want none", by[claim], by[bury])
	}
	if !maps.Equal(before, w.epochs()) {
		t.Error("lanes moved in an idle fleet")
	}

	for i := range procs {
		procs[i].stop()
		procs[i] = w.start()
		w.awaitBalance(procs...)
	}
	sum, most := 0.0, 0.0
	for lane, epoch := range w.epochs() {
		// A planned move is two changes: given up, and taken.
		moves := float64(epoch-before[lane]) / 2
		sum, most = sum+moves, max(most, moves)
	}
	t.Logf("rolling restart of %d: %.1f moves a lane, at most %.1f", replicas, sum/lanes, most)
	if sum/lanes > 2.5 || most > 4 {
		t.Errorf("lanes moved %.1f times and at most %.1f times, want about twice", sum/lanes, most)
	}
	endInOrder(procs...)
}

// TestC95LaneCountChanges changes the number of lanes under two running replicas, once to fewer
// and once to more, and starts new replicas at that very moment. The old ones end and say why.
// No key is ever served by both: nothing is repeated.
func TestC95LaneCountChanges(t *testing.T) {
	w := newWorld(t, nil, nil)
	writer := w.write(usual)
	procs := w.replicas(2)
	for _, lanes := range []int{lanesOf / 2, 2 * lanesOf} {
		w.received(w.checker.Received() + 1000)
		w.onlyLanes(lanes)
		young := w.start()
		for _, p := range procs {
			if code := p.wait(25 * time.Second); code <= 0 {
				t.Errorf("exit code %d of a replica with another number of lanes, want a failure", code)
			}
			if text := p.output(); !strings.Contains(text, "lane count") {
				t.Errorf("the replica does not say why it ended:\n%s", text)
			}
		}
		procs = []*process{young, w.start()}
		w.awaitBalance(procs...)
		w.received(w.checker.Received() + 1000)
	}
	writer.stop()
	noRepeats(t, w.verdict())
	endInOrder(procs...)
}

// TestHandOver measures how long lanes and their events wait in each kind of move, under load.
// The limits are the targets and two seconds for a busy machine.
func TestHandOver(t *testing.T) {
	const ttl = 3 * time.Second
	const slack = 2 * time.Second
	w := newWorld(t, nil, nil)
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate, c.Hold, c.Rollback = 1000, 0, 0 })
	procs := w.replicas(2, leaseTTL(ttl))
	for _, move := range []struct {
		name  string
		limit time.Duration
		do    func()
	}{
		{"join", 5 * time.Second, func() { procs = append(procs, w.start(leaseTTL(ttl))) }},
		{"clean stop", 2 * time.Second, func() { procs[0].stop(); procs = procs[1:] }},
		{"crash", ttl + 2*time.Second, func() { procs[0].kill(); procs = procs[1:] }},
	} {
		w.received(w.checker.Received() + 2000)
		w.watch.Recent()
		begun := time.Now()
		move.do()
		w.awaitBalance(procs...)
		balanced := time.Since(begun)
		w.awaitForwarded(30 * time.Second)
		w.received(w.checker.Received() + 1)
		longest := w.watch.Recent().Max
		t.Logf("%s: lanes balanced after %s, the longest wait of an event %s (target %s)",
			move.name, balanced.Round(10*time.Millisecond), longest.Round(time.Millisecond), move.limit)
		if balanced > move.limit+slack || longest > move.limit+slack {
			t.Errorf("%s took too long", move.name)
		}
	}
	writer.stop()
	w.verdict()
	endInOrder(procs...)
}
