package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/proxy"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// lanesOf is the number of lanes of an outbox that `forwarder init` has made.
const lanesOf = 256

// leaseTTL is the setting of how long a replica that does not renew keeps its lanes.
func leaseTTL(d time.Duration) string { return "FORWARDER_LANES_LEASE_TTL=" + d.String() }

// signal sends a signal that does not end the process.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("sending %s: %v", s, err)
	}
}

func (p *process) pause()  { p.t.Helper(); p.signal(syscall.SIGSTOP) }
func (p *process) resume() { p.t.Helper(); p.signal(syscall.SIGCONT) }

// fleet is what the lease tables say.
type fleet struct {
	total int               // of lanes
	lanes map[string]int    // how many each member has
	admin map[string]string // each member's admin address, which tells whose it is
}

// fleet reads the lease tables; nil while the database cannot be asked.
func (w *world) fleet() *fleet {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	if w.collection != nil {
		return w.collection.fleet(ctx)
	}
	conn, err := connect(ctx, w.url)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `SELECT m.id, coalesce(m.report->>'admin', ''), count(l.lane), (SELECT count(*) FROM outbox_lanes)
		FROM outbox_members m LEFT JOIN outbox_lanes l ON l.owner = m.id GROUP BY 1, 2`)
	if err != nil {
		return nil
	}
	f := &fleet{lanes: map[string]int{}, admin: map[string]string{}}
	for rows.Next() {
		var id, admin string
		var n int
		if rows.Scan(&id, &admin, &n, &f.total) != nil {
			return nil
		}
		f.lanes[id], f.admin[id] = n, admin
	}
	if rows.Err() != nil {
		return nil
	}
	return f
}

// of is the number of lanes of a process; -1 where it is no member.
func (f *fleet) of(p *process) int {
	for id, admin := range f.admin {
		if admin == p.admin {
			return f.lanes[id]
		}
	}
	return -1
}

// balanced reports whether the processes, and nobody else, share all lanes as their mode wants:
// fairly, or one has them all.
func (f *fleet) balanced(m mode, procs ...*process) bool {
	if f == nil || len(f.lanes) != len(procs) {
		return false
	}
	sum, least, most := 0, f.total, 0
	for _, p := range procs {
		n := f.of(p)
		sum, least, most = sum+n, min(least, n), max(most, n)
	}
	if m.exclusive {
		return sum == f.total && most == f.total
	}
	return sum == f.total && most-least <= 1
}

func (f *fleet) String() string {
	if f == nil {
		return "unknown"
	}
	var list []string
	for _, id := range slices.Sorted(maps.Keys(f.lanes)) {
		list = append(list, fmt.Sprintf("%s %d", id, f.lanes[id]))
	}
	return strings.Join(list, ", ")
}

// awaitFleet waits until the lease tables are as the condition wants them.
func (w *world) awaitFleet(within time.Duration, what string, condition func(*fleet) bool) {
	w.t.Helper()
	var last *fleet
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the fleet: %s", last)
		}
	}()
	eventually(w.t, within, what, func() bool {
		last = w.fleet()
		return last != nil && condition(last)
	})
}

// awaitBalance waits until the processes share all lanes fairly.
func (w *world) awaitBalance(procs ...*process) {
	w.t.Helper()
	w.awaitFleet(30*time.Second, fmt.Sprintf("%d replicas share the lanes", len(procs)), func(f *fleet) bool {
		for _, p := range procs {
			p.mustRun()
		}
		return f.balanced(w.mode, procs...)
	})
}

// mustRun fails the test when the process has ended.
func (p *process) mustRun() {
	p.t.Helper()
	if !p.running() {
		p.t.Fatalf("the forwarder at %s ended by itself, exit code %d", p.admin, p.cmd.ProcessState.ExitCode())
	}
}

// replicas starts n replicas and returns when they share the lanes.
func (w *world) replicas(n int, settings ...string) []*process {
	w.t.Helper()
	var procs []*process
	for range n {
		procs = append(procs, w.start(settings...))
	}
	w.awaitBalance(procs...)
	return procs
}

// epochs reads how often each lane has changed its owner, or has been given up.
func (w *world) epochs() map[int]int64 {
	w.t.Helper()
	conn, err := connect(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close(w.t.Context()) }()
	rows, err := conn.Query(w.t.Context(), "SELECT lane, epoch FROM outbox_lanes")
	if err != nil {
		w.t.Fatal(err)
	}
	epochs := map[int]int64{}
	for rows.Next() {
		var lane int
		var epoch int64
		if err := rows.Scan(&lane, &epoch); err != nil {
			w.t.Fatal(err)
		}
		epochs[lane] = epoch
	}
	if rows.Err() != nil || len(epochs) == 0 {
		w.t.Fatalf("%d lanes, %v", len(epochs), rows.Err())
	}
	return epochs
}

// keysOf returns n keys whose lanes belong to the process.
func (w *world) keysOf(p *process, n int) []string {
	w.t.Helper()
	conn := w.connect()
	rows, err := conn.Query(w.t.Context(), `
		SELECT key FROM (SELECT 'k' || i AS key FROM generate_series(1, 10000) i) keys
		JOIN outbox_lanes l ON l.lane = hashtext(key COLLATE "C") & (SELECT count(*) - 1 FROM outbox_lanes)
		JOIN outbox_members m ON m.id = l.owner
		WHERE m.report->>'admin' = $1 ORDER BY length(key), key LIMIT $2`, p.admin, n)
	if err != nil {
		w.t.Fatal(err)
	}
	var keys []string
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			w.t.Fatal(err)
		}
		keys = append(keys, key)
	}
	if rows.Err() != nil || len(keys) != n {
		w.t.Fatalf("%d keys of %d, %v", len(keys), n, rows.Err())
	}
	return keys
}

// status is `forwarder status --json`.
func (w *world) status() (s statusReport) {
	w.t.Helper()
	stdout, stderr, code := forwarder(w.t, nil, "status", "--json", "--source-url", w.url)
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || code != 0 {
		w.t.Fatalf("forwarder status: exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	return s
}

type statusReport struct {
	Lanes   int
	Unowned int `json:"lanes_unowned"`
	Backlog struct{ Rows int }
	Members []struct {
		ID, State string
		Lanes     int
		Report    struct{ Admin string }
	}
}

// slowKafka starts a broker whose clients all go through a proxy.
func slowKafka(t *testing.T) (*servers.Kafka, *proxy.Proxy) {
	t.Helper()
	p, err := proxy.StartKafka()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	kafka, err := servers.StartKafka(t.Context(), servers.KafkaConfig{Properties: map[string]string{
		"advertised.listeners": "PLAINTEXT://" + p.Addr(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kafka.Close(); err != nil {
			t.Error(err)
		}
	})
	p.SetTarget(kafka.Addr())
	return kafka, p
}

// putKeyed inserts numbered events of the keys by turns, count of them in all.
func (s *stage) putKeyed(topic string, keys []string, from, count int) {
	s.t.Helper()
	var rows []row
	for i := range count {
		rows = append(rows, row{topic, keys[i%len(keys)], fmt.Sprint(from + i), nil})
	}
	s.put(rows...)
}

// endInOrder stops the processes in order, one after the other.
func endInOrder(procs ...*process) {
	for _, p := range procs {
		p.t.Helper()
		p.stop()
	}
}

// restart stops a server and starts it again.
func restart(t *testing.T, stop func() error, start func(context.Context) error) {
	t.Helper()
	if err := errors.Join(stop(), start(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// usual is the workload of the tests with several replicas.
func usual(c *oracle.WriterConfig) { c.Rate = 2000 }
