package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// delivered waits until n events are acknowledged and the outbox is empty, and asserts that
// they were n.
func (st *streaming) delivered(w *world, n int) {
	st.t.Helper()
	eventually(st.t, fmt.Sprintf("%d events are delivered and deleted", n), func() bool { return st.sink.count() >= n && w.rows() == 0 })
	if got := st.sink.count(); got != n {
		st.t.Errorf("%d events were acknowledged, want %d", got, n)
	}
}

// setDatabase sets a setting for new sessions of the test's database.
func (w *world) setDatabase(name, value string) {
	w.t.Helper()
	w.exec(fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET %s = %%L', current_database(), '%s'); END $$", name, value))
}

// TestStreamAnswersFromTheLog: once the log is there, new rows come without the table being read.
func TestStreamAnswersFromTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	w.exec("INSERT INTO outbox (topic, key) SELECT 't', 'k' FROM generate_series(1, 100)")
	st := w.stream()
	st.live()
	st.delivered(w, 100)
	reads := st.Stats().TableReads
	for i := range 50 {
		w.exec("INSERT INTO outbox (topic, key) SELECT 't', 'k' FROM generate_series(1, 100)")
		st.delivered(w, 100*(i+2))
	}
	stats := st.Stats()
	if more := stats.TableReads - reads; more > 3 { // one every 30 s, for what no log tells
		t.Errorf("the table was read %d times while the log told everything", more)
	}
	if !stats.Complete || !stats.Streaming || stats.Begun != 1 || stats.Received == 0 || stats.Heard.IsZero() {
		t.Errorf("stats: %+v", stats)
	}
	for i, ev := range st.sink.events() {
		if ev.ID != int64(i+1) {
			t.Fatalf("event %d is row %d", i+1, ev.ID)
		}
	}
}

// TestC29Truncate, C30 (odd messages), C31 (deletes and updates) and C32 (large values): what is
// no insert brings no event, is told where it must be, and the log goes on.
func TestC29C30C31C32OtherChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "CREATE TYPE mood AS ENUM ('sad', 'glad')", "CREATE DOMAIN note AS text", "CREATE TABLE other (id int PRIMARY KEY)",
		strings.Replace(outbox, "payload bytea", "mood mood DEFAULT 'glad', note note, payload bytea", 1), "ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL",
		"ALTER TABLE outbox REPLICA IDENTITY FULL", "CREATE PUBLICATION outbox_publication FOR TABLE outbox, other")
	st := w.stream()
	st.live()
	w.exec("SELECT pg_logical_emit_message(true, 'x', 'y'), pg_logical_emit_message(false, 'outbox', 'y')")
	w.exec("INSERT INTO other VALUES (1); UPDATE other SET id = 2; DELETE FROM other; TRUNCATE other")
	st.sink.mu.Lock()
	st.sink.keep = func(*source.Event) bool { return true }
	st.sink.mu.Unlock()
	w.exec("INSERT INTO outbox (topic, key, payload) VALUES ('t', 'k', convert_to(repeat('x', 10000), 'UTF8'))")
	eventually(t, "the row is in flight", func() bool { return st.sink.inFlight() == 1 })
	w.exec("UPDATE outbox SET note = 'n'")
	w.exec("SELECT pg_replication_origin_create('origin_' || current_database())")
	w.exec("SELECT pg_replication_origin_session_setup('origin_' || current_database())")
	w.exec("INSERT INTO outbox (topic, key, payload) VALUES ('t', 'k', 'from an origin')")
	w.exec("SELECT pg_replication_origin_session_reset(), pg_replication_origin_drop('origin_' || current_database())")
	w.exec("BEGIN; INSERT INTO outbox (topic, key, payload) VALUES ('t', 'k', convert_to(repeat('y', 10000), 'UTF8')); UPDATE outbox SET note = 'm'; COMMIT")
	st.sink.release()
	st.delivered(w, 3)
	w.exec("TRUNCATE outbox")
	w.exec("INSERT INTO outbox (topic, key, payload) VALUES ('t', 'k', 'last')")
	st.delivered(w, 4)
	acked := st.sink.events()
	for i, want := range []string{strings.Repeat("x", 10000), "from an origin", strings.Repeat("y", 10000), "last"} {
		if string(acked[i].Payload) != want {
			t.Errorf("event %d: payload of %d bytes, want %d", i, len(acked[i].Payload), len(want))
		}
	}
	for _, words := range []string{"the outbox was truncated", "updates or deletes of the outbox"} {
		if n := strings.Count(st.logged.String(), words); n != 1 {
			t.Errorf("%q was logged %d times", words, n)
		}
	}
	if begun := st.Stats().Begun; begun != 1 {
		t.Errorf("the log was begun %d times", begun)
	}
}

// TestC26C27LargeTransactions: one large transaction among small ones, spilled by the server and
// received in pieces: everything comes once, in order, in bounded memory.
func TestC26C27LargeTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, counters)
	w.setDatabase("logical_decoding_work_mem", "64kB")
	w.publish()
	st := w.stream()
	st.live()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.write(3, 60)
	}()
	conn := w.session()
	run(t, conn, "INSERT INTO outbox (topic, key, payload) SELECT 'large', 'l' || i % 7, convert_to(i || repeat('x', 600), 'UTF8') FROM generate_series(1, 50000) i")
	<-done
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	var small []*source.Event
	last := make(map[string]int64)
	large := 0
	for _, ev := range st.sink.events() {
		if ev.Topic != "large" {
			small = append(small, ev)
			continue
		}
		large++
		if ev.ID <= last[string(ev.Key)] {
			t.Fatalf("key %s: row %d after %d", ev.Key, ev.ID, last[string(ev.Key)])
		}
		last[string(ev.Key)] = ev.ID
	}
	if large != 50000 {
		t.Errorf("%d events of 50000", large)
	}
	w.judge(small)
}

// TestC46SlotWaits: while a slot waits for a long transaction the table is polled, it is said
// what is waited for, and a stop leaves nothing behind.
func TestC46SlotWaits(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string][]string{
		"open":     {"BEGIN", "SELECT pg_current_xact_id()"},
		"prepared": {"BEGIN", "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'held'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := ownServer(t, nil)
			w := worldAt(t, server.URL("postgres"), outbox)
			w.beside(Config{})
			w.publish()
			holder := w.session()
			for _, sql := range hold {
				run(t, holder, sql)
			}
			st := w.stream()
			w.exec("INSERT INTO outbox (topic) VALUES ('t')")
			st.delivered(w, 1)
			eventually(t, "it is said what is waited for", func() bool { return strings.Contains(st.logged.String(), "waits for a transaction to end") })
			words := []string{fmt.Sprint("pid=", holder.PgConn().PID()), "state=\"idle in transaction\""}
			if name == "prepared" {
				words = []string{"pid=0", "prepared as held"}
			}
			for _, word := range words {
				if !strings.Contains(st.logged.String(), word) {
					t.Errorf("the log does not tell %s", word)
				}
			}
			if waits := st.Stats().Waits; !strings.Contains(waits, "the replication slot waits for transaction") {
				t.Errorf("it waits for: %s", waits)
			}
			if unready := st.Unready(); len(unready) > 0 {
				t.Errorf("not ready: %q", unready)
			}
			began := time.Now()
			st.stop()
			if took := time.Since(began); took > patience/2 {
				t.Errorf("the stop took %v", took)
			}
			eventually(t, "no slot and no walsender is left", func() bool {
				return value[int](w, "SELECT count(*) FROM pg_replication_slots")+value[int](w, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'") == 0
			})
			second := w.stream()
			if name == "prepared" {
				run(t, holder, "COMMIT PREPARED 'held'")
			} else {
				run(t, holder, "COMMIT")
			}
			second.live()
		})
	}
}

// TestC48ColumnsChange while they are streamed: what is not ours has no effect, and a column
// that is missing is named and waited for, without a row being lost.
func TestC48ColumnsChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, counters)
	w.publish()
	st := w.stream()
	st.live()
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		w.write(3, 60)
	}()
	ddl := w.session()
	for i := range 10 {
		run(t, ddl, fmt.Sprintf("ALTER TABLE outbox ADD COLUMN more%d int DEFAULT 7", i))
		if i%2 == 0 {
			run(t, ddl, fmt.Sprintf("ALTER TABLE outbox DROP COLUMN more%d", i))
		}
	}
	<-changed
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	w.judge(st.sink.events())
	if begun := st.Stats().Begun; begun != 1 {
		t.Errorf("the log was begun %d times", begun)
	}

	n := st.sink.count()
	run(t, ddl, "ALTER TABLE outbox ALTER COLUMN key TYPE uuid USING NULL")
	w.exec("INSERT INTO outbox (topic, key) VALUES ('t', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11')")
	st.delivered(w, n+1)
	if key := string(st.sink.events()[n].Key); key != "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11" {
		t.Errorf("key %s", key)
	}
	run(t, ddl, "ALTER TABLE outbox RENAME COLUMN payload TO body")
	w.exec("INSERT INTO outbox (topic, body) VALUES ('t', 'x')")
	eventually(t, "the missing column is named", func() bool {
		return strings.Contains(strings.Join(st.Unready(), "\n"), `no column "payload"`)
	})
	run(t, ddl, "ALTER TABLE outbox RENAME COLUMN body TO payload")
	w.exec("INSERT INTO outbox (topic, payload) VALUES ('t', 'y')")
	st.delivered(w, n+3)
	st.live()
	if unready := st.Unready(); len(unready) > 0 {
		t.Errorf("not ready: %q", unready)
	}
	w.exec("INSERT INTO outbox (topic, payload) VALUES ('t', 'z')")
	st.delivered(w, n+4)
}

// TestC49TableMadeAgain: when the outbox is dropped and made again, it is not in the publication.
// That is told with what mends it, its rows are delivered nevertheless, and it is streamed once
// it is mended.
func TestC49TableMadeAgain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"dropped": "DROP TABLE outbox; " + outbox,
		"renamed": "ALTER TABLE outbox RENAME TO outbox_old; ALTER SEQUENCE outbox_id_seq RENAME TO old_seq; " + outbox,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox)
			w.publish()
			st := w.stream()
			st.live()
			w.exec("INSERT INTO outbox (topic, payload) VALUES ('t', 'old')")
			st.delivered(w, 1)
			w.exec(change)
			w.exec("INSERT INTO outbox (topic, payload) VALUES ('t', 'new')")
			if name == "renamed" {
				w.exec("INSERT INTO outbox_old (topic, payload) VALUES ('t', 'no outbox any more')")
			}
			eventually(t, "it is told", func() bool { return len(st.Unready()) == 1 })
			unready := st.Unready()[0]
			const fix = `ALTER PUBLICATION "outbox_publication" ADD TABLE "public"."outbox"`
			if !strings.Contains(unready, "public.outbox is not in publication") || !strings.Contains(unready, fix) {
				t.Errorf("not ready: %s", unready)
			}
			w.exec("INSERT INTO outbox (topic, payload) VALUES ('t', 'newer')")
			st.delivered(w, 3)
			w.exec(fix)
			st.live()
			w.exec("INSERT INTO outbox (topic, payload) VALUES ('t', 'newest')")
			st.delivered(w, 4)
			if unready := st.Unready(); len(unready) > 0 {
				t.Errorf("not ready: %q", unready)
			}
		})
	}
}

// TestC51HalfOpen: a connection on which nothing comes any more is noticed and made anew, and
// nothing is lost meanwhile.
func TestC51HalfOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.setDatabase("wal_sender_timeout", "9s") // the server itself notices later than we do
	w.publish()
	p := newProxy(t, w.url)
	st := w.stream(func(c *Config) { c.ReplicationURL = p.url })
	st.live()
	p.silence(true)
	w.exec("INSERT INTO outbox (topic) VALUES ('t')")
	eventually(t, "the silence is noticed", func() bool { return strings.Contains(st.logged.String(), "the server has said nothing for") })
	st.delivered(w, 1)
	p.silence(false)
	st.live()
	w.exec("INSERT INTO outbox (topic) VALUES ('t')")
	st.delivered(w, 2)
	if begun := st.Stats().Begun; begun != 2 {
		t.Errorf("the log was begun %d times", begun)
	}
}

// TestC52SlowSink: while the broker takes nothing and memory is full, the session lives on.
func TestC52SlowSink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.setDatabase("wal_sender_timeout", "1s")
	w.publish()
	sink := &recorder{keep: func(*source.Event) bool { return true }}
	st := w.streamTo(sink, lanes.Config{MaxEvents: 500})
	st.live()
	w.exec("INSERT INTO outbox (topic, key, payload) SELECT 't', 'k' || i, convert_to(repeat('x', 1000), 'UTF8') FROM generate_series(1, 100000) i")
	eventually(t, "memory is full", func() bool {
		return sink.inFlight() > 0 && (st.Stats().Evictions > 0 || !st.Stats().Complete || st.Stats().Waiting > 10000)
	})
	ended := time.Now().Add(3 * time.Second) // three times what the server leaves
	eventually(t, "the server's time is over", func() bool { return time.Now().After(ended) })
	if begun := st.Stats().Begun; begun != 1 {
		t.Errorf("the log was begun %d times", begun)
	}
	sink.release()
	st.delivered(w, 100000)
	if begun := st.Stats().Begun; begun != 1 {
		t.Errorf("the log was begun %d times", begun)
	}
}

// TestC22QuietOutbox: while the outbox is quiet and others write, the slot keeps no log.
func TestC22QuietOutbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "CREATE TABLE other (text text)")
	w.setDatabase("wal_sender_timeout", "3s")
	w.publish()
	elsewhere := emptyWorld(t, "CREATE TABLE other (text text)")
	st := w.stream()
	st.live()
	confirmed := func() pglogrepl.LSN {
		lsn, err := pglogrepl.ParseLSN(value[string](w, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"))
		if err != nil {
			t.Fatal(err)
		}
		return lsn
	}
	for _, writer := range []*world{w, elsewhere} {
		writer.exec("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
		end, err := pglogrepl.ParseLSN(value[string](w, "SELECT pg_current_wal_lsn()::text"))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the slot is past what others wrote", func() bool { return confirmed() >= end })
	}
	if stats := st.Stats(); stats.Begun != 1 {
		t.Errorf("the log was begun %d times", stats.Begun)
	}
}
