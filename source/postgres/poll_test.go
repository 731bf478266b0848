package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// TestC01LateCommit: an id that commits after a higher one is delivered, also when the
// forwarder was started again in between, and an id that is never used is not waited for.
func TestC01LateCommit(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox)
			late, other := w.session(), w.session()
			s, sink := w.open(), &recorder{}
			f := forward(t, s, sink, quick)

			run(t, late, "BEGIN")
			run(t, late, "INSERT INTO outbox (topic, key) VALUES ('t', 'k')")
			run(t, other, "BEGIN")
			run(t, other, "INSERT INTO outbox (topic, key) VALUES ('t', 'k')")
			run(t, other, "ROLLBACK")
			run(t, other, "INSERT INTO outbox (topic, key) VALUES ('t', 'k')")
			f.acked(1)
			f.drained(w)
			if restart {
				f.stop()
				f = forward(t, s, sink, quick)
			}
			// The late transaction is set aside by now or not: both must do.
			from := f.source.reads()
			eventually(t, "a few polls", func() bool { return f.source.reads() > from+3 })
			run(t, late, "COMMIT")
			f.acked(2)
			f.drained(w)
			f.stop()
			wantIDs(t, "order of commits", sink.events(), 3, 1)
		})
	}
}

// TestC02LongTransaction: a transaction that stays open delays nobody but itself, wherever on
// the server it is. What it leaves in the outbox in the end is delivered.
func TestC02LongTransaction(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		t.Run(fmt.Sprintf("other database=%v", elsewhere), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox, "CREATE TABLE unrelated (n int)")
			long := w.session()
			if elsewhere {
				long = worldAt(t, serverstest.Database(t), "CREATE TABLE unrelated (n int)", outbox).conn
			}
			run(t, long, "BEGIN")
			run(t, long, "INSERT INTO unrelated VALUES (1)")
			sink := &recorder{}
			f := forward(t, w.open(), sink, quick)
			const batches, size = 20, 5
			for batch := range batches {
				w.exec("INSERT INTO outbox (topic, key) SELECT 't', 'k' || i % 3 FROM generate_series(1, $1::int) i", size)
				// A read that begins from now on sees the rows.
				next := f.source.reads() + 1
				f.acked((batch + 1) * size)
				f.source.mu.Lock()
				for id := batch*size + 1; id <= (batch+1)*size; id++ {
					if at := f.source.seen[int64(id)][0]; at > next {
						t.Errorf("row %d came with read %d, and was there for read %d", id, at, next)
					}
				}
				f.source.mu.Unlock()
			}
			f.drained(w)
			run(t, long, "INSERT INTO outbox (topic, key) VALUES ('t', 'late')")
			run(t, long, "COMMIT")
			total := batches * size
			if !elsewhere {
				total++
				f.acked(total)
				f.drained(w)
			}
			f.stop()
			if n := sink.count(); n != total {
				t.Errorf("%d events acknowledged for %d rows", n, total)
			}
		})
	}
}

// TestC07NoTransactionWhileInFlight: while acknowledgements are late, no session of the
// forwarder is inside a transaction, other keys go on, and the table can be altered.
func TestC07NoTransactionWhileInFlight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	sink := &recorder{keep: func(ev *source.Event) bool { return string(ev.Key) == "slow" }}
	f := forward(t, w.open(), sink)
	w.exec("INSERT INTO outbox (topic, key) SELECT 't', 'slow' FROM generate_series(1, 10)")
	eventually(t, "the slow rows are in flight", func() bool { return sink.inFlight() == 10 })

	idleInTransaction := func() int {
		return value[int](w, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = $1 AND state LIKE 'idle in transaction%'`, applicationName)
	}
	w.exec("SET lock_timeout = '5s'")
	for round := range 10 {
		w.exec("INSERT INTO outbox (topic, key) SELECT 't', 'k' || i FROM generate_series(1, 10) i")
		w.exec(fmt.Sprintf("ALTER TABLE outbox ADD COLUMN trace%d text", round))
		for sink.count() < 10*(round+1) {
			if n := idleInTransaction(); n != 0 {
				t.Fatalf("%d sessions idle in transaction", n)
			}
			eventually(t, "other keys go on", func() bool { return sink.count() >= 10*round+1 })
		}
	}
	if n := value[int](w, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1", applicationName); n == 0 {
		t.Error("no session of the forwarder was there to be looked at")
	}
	eventually(t, "only the slow rows are left", func() bool { return w.rows() == 10 })
	sink.release()
	f.drained(w)
	f.stop()
	if n := sink.count(); n != 110 {
		t.Errorf("%d events acknowledged for 110 rows", n)
	}
	if errs := f.source.failures(); len(errs) > 0 {
		t.Errorf("reads failed: %v", errs)
	}
}

// TestC09SerializableByDefault: the database's default isolation level is not the
// forwarder's, and the output is what it is at read committed.
func TestC09SerializableByDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.exec("ALTER DATABASE " + pgx.Identifier{value[string](w, "SELECT current_database()")}.Sanitize() +
		" SET default_transaction_isolation = 'serializable'")
	s, sink := w.open(), &recorder{}
	var level string
	if err := s.pool.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&level); err != nil || level != "read committed" {
		t.Errorf("the sessions work at %q: %v", level, err)
	}
	f := forward(t, s, sink)
	const writers, each = 4, 100
	done := make(chan error, writers)
	for n := range writers {
		conn := w.session()
		go func() {
			for i := range each {
				for {
					_, err := conn.Exec(t.Context(), "INSERT INTO outbox (topic, key, payload) VALUES ('t', $1, $2)",
						fmt.Sprint(n), fmt.Appendf(nil, "%d", i))
					if err == nil {
						break
					}
					if !retriable(err) {
						done <- err
						return
					}
				}
			}
			done <- nil
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	f.acked(writers * each)
	f.drained(w)
	f.stop()
	next := make(map[string]int)
	for _, ev := range sink.events() {
		if got, want := string(ev.Payload), fmt.Sprint(next[string(ev.Key)]); got != want {
			t.Fatalf("key %s: event %s where %s comes next", ev.Key, got, want)
		}
		next[string(ev.Key)]++
	}
	if sink.count() != writers*each {
		t.Errorf("%d events acknowledged for %d rows", sink.count(), writers*each)
	}
	if strings.Contains(f.logged.String(), "failed") {
		t.Errorf("trouble in the log:\n%s", f.logged)
	}
}

// TestUnusedIDsAreNotWaitedFor: rows of one transaction are in one page however many ids
// around them were rolled back.
func TestUnusedIDsAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	s := w.open()
	for range 5 {
		w.exec("BEGIN")
		w.exec("INSERT INTO outbox (topic) VALUES ('gone'), ('gone')")
		w.exec("ROLLBACK")
		w.exec("INSERT INTO outbox (topic) VALUES ('t')")
	}
	read := everything()
	wantIDs(t, "all", events(t, s, read), 3, 6, 9, 12, 15)
	read.Floor = 8
	wantIDs(t, "above a floor in a gap", events(t, s, read), 9, 12, 15)
	read.Floor = lanes.Start
	read.Known = []int64{15, 3, 4, 5}
	wantIDs(t, "with known ids", events(t, s, read), 6, 9, 12)
}
