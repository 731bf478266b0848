package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// upTo joins the numbers from 1 to n by commas, as values does.
func upTo(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprint(i+1))
	}
	return strings.Join(list, ",")
}

// TestC05OneKeyTwoReplicas has two replicas and acknowledgements that take two seconds: the
// events of a key that come meanwhile are not sent by the other replica, nor before.
func TestC05OneKeyTwoReplicas(t *testing.T) {
	t.Parallel()
	kafka, slow := slowKafka(t)
	s := newStage(t, nil, kafka)
	topic := s.makeTopic("events", 1, nil)
	procs := s.replicas(2)
	slow.DelayAcks(2 * time.Second)
	keys := append(s.keysOf(procs[0], 1), s.keysOf(procs[1], 1)...)
	// Five events of each key are on their way when the others come, one by one.
	s.putKeyed(topic, keys[:1], 1, 5)
	s.putKeyed(topic, keys[1:], 1, 5)
	s.arrive(topic, 10, drainLimit)
	for i := 6; i <= 10; i++ {
		s.putKeyed(topic, keys[:1], i, 1)
		s.putKeyed(topic, keys[1:], i, 1)
	}
	s.awaitEmpty()
	records := s.records(topic)
	byID(t, records)
	for _, key := range keys {
		if got := values(records, key); got != upTo(10) {
			t.Errorf("key %s has %s", key, got)
		}
	}
	endInOrder(procs...)
}

// TestC08DeadlockWithTheApplication lets two replicas' deletes and a session of the application
// lock the same rows in opposite order. The deletes are the victims and are tried again.
func TestC08DeadlockWithTheApplication(t *testing.T) {
	t.Parallel()
	db := privatePostgres(t)
	s := newStage(t, db, nil)
	topic := s.makeTopic("", 1, nil)
	procs := s.replicas(2, inJSON)
	keys := append(s.keysOf(procs[0], 1), s.keysOf(procs[1], 1)...)
	app := []*pgx.Conn{s.connect(), s.connect()}
	ids := make([][]int64, len(keys))
	// No delete begins before the application holds the last row of each key.
	release := s.hold()
	for i, key := range keys {
		var rows []row
		for n := range 20 {
			rows = append(rows, row{topic, key, fmt.Sprint(n + 1), nil})
		}
		ids[i] = s.put(rows...)
	}
	s.arrive(topic, 40, drainLimit)
	for i := range keys {
		// The application's own check comes so late that it is never the victim.
		s.execute(app[i], "SET deadlock_timeout = '60s'")
		s.execute(app[i], "BEGIN")
		s.execute(app[i], "SELECT FROM outbox WHERE id = $1 FOR UPDATE", ids[i][19])
	}
	release()
	waiting := func(n int) func() bool {
		return func() bool {
			var got int
			s.value(&got, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event <> 'advisory'`)
			return got >= n
		}
	}
	eventually(t, 20*time.Second, "both deletes wait for the application's rows", waiting(2))
	done := make(chan error, len(app))
	for i := range app {
		go func() {
			_, err := app[i].Exec(t.Context(), "SELECT FROM outbox WHERE id = $1 FOR UPDATE", ids[i][18])
			done <- err
		}()
	}
	for range app {
		if err := <-done; err != nil {
			t.Fatalf("the application was the victim: %v", err)
		}
	}
	eventually(t, 20*time.Second, "the server has counted two deadlocks", func() bool {
		var deadlocks int
		s.value(&deadlocks, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
		return deadlocks >= 2
	})
	if left := s.left(); left < 4 {
		t.Errorf("%d rows are left, and the application holds two of each key", left)
	}
	for i := range app {
		s.execute(app[i], "COMMIT")
	}
	s.awaitEmpty()
	for _, p := range procs {
		if n := p.metrics()["deletes_retried_total"]; n < 1 {
			t.Errorf("%v deletes were tried again at %s, want the one that was a victim", n, p.admin)
		}
		p.quiet()
	}
	endInOrder(procs...)
	records := s.records(topic)
	byID(t, records)
	for _, key := range keys {
		if got := values(records, key); got != upTo(20) {
			t.Errorf("key %s has %s", key, got)
		}
	}
}

// TestC09SerializableByDefault runs two replicas and a restart in a database whose sessions are
// serializable unless they say otherwise. All is as in any other.
func TestC09SerializableByDefault(t *testing.T) {
	w := newWorld(t, nil, nil)
	conn := w.connect()
	var name string
	if err := conn.QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	w.execute(conn, "ALTER DATABASE "+pgx.Identifier{name}.Sanitize()+" SET default_transaction_isolation = 'serializable'")
	procs := w.replicas(2)
	// The writers are the test's own, and their serialization failures are none of its business.
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate, c.Keys, c.Events = 1000, 5000, 6000 })
	w.received(1500)
	procs[0].stop()
	procs[0] = w.start()
	w.awaitBalance(procs...)
	writer.wait()
	noRepeats(t, w.verdict())
	for _, p := range procs {
		if text := p.output(); strings.Contains(text, "40001") || strings.Contains(text, "could not serialize") {
			t.Errorf("serialization failures are in the log:\n%s", text)
		}
	}
	endInOrder(procs...)
}

// TestC96HotKey lets a flood of one key come first, and then a few events of other keys, in the
// same lane and in others.
func TestC96HotKey(t *testing.T) {
	s := newStage(t, nil, nil)
	topic := s.makeTopic("", 1, nil) // one partition, so that offsets tell the order
	const flood, few = 100_000, 10
	const hot = "hot"
	var same, others []string
	rows, err := s.conn.Query(t.Context(), `SELECT key, hashtext(key COLLATE "C") & 255 = hashtext($1::text COLLATE "C") & 255
		FROM (SELECT 'k' || i AS key FROM generate_series(1, 10000) i) keys`, hot)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var key string
		var inLane bool
		if err := rows.Scan(&key, &inLane); err != nil {
			t.Fatal(err)
		}
		switch {
		case inLane && len(same) < few:
			same = append(same, key)
		case !inLane && len(others) < few:
			others = append(others, key)
		}
	}
	if rows.Err() != nil || len(same) != few || len(others) != few {
		t.Fatalf("%d and %d keys, %v", len(same), len(others), rows.Err())
	}
	procs := s.replicas(2)
	s.sql("BEGIN")
	s.sql("INSERT INTO outbox (topic, key, payload) SELECT $1, $2, convert_to(i::text, 'UTF8') FROM generate_series(1, $3::int) i", topic, hot, flood)
	s.sql("INSERT INTO outbox (topic, key, payload) SELECT $1, k, convert_to('1', 'UTF8') FROM unnest($2::text[]) k", topic, append(same, others...))
	s.sql("COMMIT")
	s.arrive(topic, flood+2*few, drainLimit)
	s.awaitEmpty()
	endInOrder(procs...)

	records := s.records(topic)
	byID(t, records)
	at := map[string]int{} // how many of the hot key came before
	hots := 0
	for _, r := range records {
		if string(r.Key) != hot {
			at[string(r.Key)] = hots
			continue
		}
		if hots++; string(r.Value) != fmt.Sprint(hots) {
			t.Fatalf("event %s of the hot key came as number %d", r.Value, hots)
		}
	}
	latest := func(keys []string) (n int) {
		for _, key := range keys {
			n = max(n, at[key])
		}
		return n
	}
	t.Logf("of %d events of the hot key, %d came before the last of the other lanes, %d before the last of its own lane", flood, latest(others), latest(same))
	if n := latest(others); n > flood/2 {
		t.Errorf("other lanes waited for %d events of the hot key", n)
	}
	if n := latest(same); n > flood/2 {
		t.Errorf("other keys of the lane waited for %d events of the hot key", n)
	}
}
