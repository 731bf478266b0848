package e2e

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/proxy"
)

// TestC86AckLaterThanLease delays acknowledgements beyond the lease. It is renewed meanwhile,
// so that the peer takes nothing and nothing is sent twice.
func TestC86AckLaterThanLease(t *testing.T) {
	t.Parallel()
	kafka, slow := slowKafka(t)
	s := newStage(t, nil, kafka)
	topic := s.makeTopic("events", 4, nil)
	const ttl = 2 * time.Second
	procs := s.replicas(2, leaseTTL(ttl))
	slow.DelayAcks(5 * time.Second)
	before := s.epochs()
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	s.putKeyed(topic, keys, 0, 500)
	s.arrive(topic, 500, drainLimit)
	s.putKeyed(topic, keys, 500, 500) // these wait behind those in flight
	begun := time.Now()
	s.awaitEmpty()
	if took := time.Since(begun); took < 2*ttl {
		t.Fatalf("all was acknowledged after %s, so no lease was outlived", took)
	}
	if !maps.Equal(before, s.epochs()) {
		t.Error("lanes changed their owner")
	}
	records := s.records(topic)
	if len(records) != 1000 {
		t.Errorf("%d records, want 1000", len(records))
	}
	byID(t, records)
	for i, key := range keys {
		var want []string
		for n := i; n < 1000; n += len(keys) {
			want = append(want, fmt.Sprint(n))
		}
		if got := values(records, key); got != strings.Join(want, ",") {
			t.Errorf("key %s has %s", key, got)
		}
	}
	for _, p := range procs {
		if n := p.metrics()["leases_ended_total"]; n != 0 {
			t.Errorf("the lease ended %v times at %s", n, p.admin)
		}
	}
	endInOrder(procs...)
}

// TestC97StartAmidFlight starts two more replicas while everything that the first one has sent
// is not acknowledged yet. They touch nothing of it.
func TestC97StartAmidFlight(t *testing.T) {
	t.Parallel()
	kafka, slow := slowKafka(t)
	s := newStage(t, nil, kafka)
	topic := s.makeTopic("events", 4, nil)
	procs := s.replicas(1)
	slow.DelayAcks(8 * time.Second)
	var keys []string
	for i := range 50 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	s.putKeyed(topic, keys, 0, 100)
	s.arrive(topic, 100, drainLimit)
	procs = append(procs, s.start(), s.start())
	if left := s.left(); left != 100 {
		t.Fatalf("%d rows are left when the others have started, want all 100 in flight", left)
	}
	s.awaitBalance(procs...)
	s.awaitEmpty()
	pause(t, time.Second) // for whoever might send them again
	records := s.records(topic)
	byID(t, records)
	if len(records) != 100 {
		t.Errorf("%d records, want 100", len(records))
	}
	endInOrder(procs...)
}

// TestC87PausedHolder stops a replica with SIGSTOP for three leases while ten events of a key
// are on the wire and forty more wait in its memory. The peer sends all fifty. When the first
// one wakes it sends nothing.
func TestC87PausedHolder(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	kafka, slow := slowKafka(t)
	s := newStage(t, nil, kafka)
	topic := s.makeTopic("events", 1, nil)
	procs := s.replicas(2, leaseTTL(ttl), inJSON)
	a, b := procs[0], procs[1]
	keys := s.keysOf(a, 1)
	slow.DelayAcks(20 * time.Second)
	s.putKeyed(topic, keys, 1, 10)
	s.arrive(topic, 10, drainLimit)
	s.putKeyed(topic, keys, 11, 40)
	eventually(t, 10*time.Second, "forty events wait in memory behind ten in flight", func() bool {
		m := a.metrics()
		return m["events_in_memory"] == 50 && m["events_in_flight"] == 10
	})
	begun := time.Now()
	a.pause()
	slow.DelayAcks(0)
	s.awaitFleet(ttl+10*time.Second, "the peer has all lanes", func(f *fleet) bool { return f.of(a) < 0 && f.of(b) == lanesOf })
	s.arrive(topic, 60, drainLimit)
	s.awaitEmpty()
	pause(t, 3*ttl-time.Since(begun))
	a.resume()
	s.awaitBalance(a, b)
	if text := a.output(); !strings.Contains(text, "declared dead") {
		t.Errorf("the paused replica does not say that it was declared dead:\n%s", text)
	}
	// It is alive, and sends what comes from now on.
	s.putKeyed(topic, append(s.keysOf(a, 1), s.keysOf(b, 1)...), 51, 2)
	s.arrive(topic, 62, drainLimit)
	s.awaitEmpty()
	if got, want := values(s.records(topic), keys[0]), upTo(10)+","+upTo(50); !strings.HasPrefix(got, want) {
		t.Errorf("the key has %s, want %s", got, want)
	}
	endInOrder(a, b)
}

// TestC51SilentDatabaseConnections lets the connections of one replica to the database fall
// silent without an end: first those that exist, then all, new ones too. Its peer takes over,
// it says that it is not ready, and it is back within a minute.
func TestC51SilentDatabaseConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, nil)
	direct := w.url
	through, err := proxy.Start(hostOf(t, direct))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := through.Close(); err != nil {
			t.Error(err)
		}
	})
	const ttl = 3 * time.Second
	w.url = withHost(t, direct, through.Addr())
	a := w.start(leaseTTL(ttl))
	w.url = direct
	b := w.start(leaseTTL(ttl))
	w.awaitBalance(a, b)
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate = 500 })
	w.received(500)

	// The connections that exist die. New ones can be made.
	begun := time.Now()
	through.Mute()
	a.awaitUnready("reading the outbox has had no answer")
	w.awaitForwarded(time.Minute)
	a.awaitReady()
	t.Logf("dead connections: ready, and all earlier rows forwarded, %s later", time.Since(begun).Round(100*time.Millisecond))

	begun = time.Now()
	through.Silence(true)
	through.Mute()
	w.awaitFleet(ttl+10*time.Second, "the peer has all lanes", func(f *fleet) bool { return f.of(b) == lanesOf })
	t.Logf("no connections: the peer has all lanes %s later", time.Since(begun).Round(100*time.Millisecond))
	eventually(t, time.Minute, "the replica says that it is not ready", func() bool { ok, _ := a.ready(); return !ok })
	w.awaitForwarded(time.Minute)
	a.mustRun()
	begun = time.Now()
	through.Silence(false)
	w.awaitFleet(time.Minute, "both share the lanes again", func(f *fleet) bool { return f.balanced(w.mode, a, b) })
	w.awaitForwarded(time.Minute)
	// A read that was lost may be what it still waits for.
	eventually(t, time.Minute-time.Since(begun), "the replica is ready within a minute", func() bool { ok, _ := a.ready(); return ok })
	t.Logf("connections again: ready with a fair share %s later", time.Since(begun).Round(100*time.Millisecond))

	if n := a.metrics()["leases_ended_total"]; n < 1 {
		t.Errorf("the replica counts %v ends of its lease", n)
	}
	writer.stop()
	v := w.judge()
	if err := v.ErrWithPauses(); err != nil {
		t.Fatalf("promises broken: %v", err)
	}
	if v.Latency.Max > time.Minute {
		t.Errorf("an event waited for %s", v.Latency.Max)
	}
	t.Logf("%d repeats, %d of them no suffix; the longest wait was %s", v.Repeated, v.BrokenRepeats, v.Latency.Max)
	endInOrder(a, b)
}

// awaitForwarded waits until the rows that are in the outbox now are gone. Others may come.
func (w *world) awaitForwarded(within time.Duration) {
	w.t.Helper()
	conn := w.connect()
	var last int64
	if err := conn.QueryRow(w.t.Context(), "SELECT coalesce(max(id), 0) FROM outbox").Scan(&last); err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, within, "the rows of this moment are forwarded", func() bool {
		var left bool
		if err := conn.QueryRow(w.t.Context(), "SELECT EXISTS (SELECT FROM outbox WHERE id <= $1)", last).Scan(&left); err != nil {
			w.t.Fatal(err)
		}
		return !left
	})
}

// hostOf is the address in a connection URL.
func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// withHost is the connection URL with another address.
func withHost(t *testing.T, address, host string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = host
	return u.String()
}
