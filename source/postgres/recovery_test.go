package postgres

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/source"
)

// dropSlot drops the durable slot behind the forwarder's back.
func (w *world) dropSlot(slot string) {
	w.t.Helper()
	w.exec("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active", slot)
	eventually(w.t, "the slot is dropped", func() bool {
		_, err := w.conn.Exec(context.Background(), "SELECT pg_drop_replication_slot($1)", slot)
		return err == nil || sqlState(err) == undefinedObject
	})
}

// TestC40SlotGone: a slot that is gone is made anew and the table scanned, and it is told what
// may be lost.
func TestC40SlotGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	sink := &recorder{}
	l := w.durable(sink, nil)
	l.live()
	w.insert(1, 5)
	l.delivered(w, 5)
	l.stop()
	if strings.Contains(l.logged.String(), "WARN") {
		t.Errorf("the first start warned:\n%s", l.logged)
	}
	w.insert(6, 15)
	w.dropSlot(l.slot)
	w.insert(16, 25)
	again := &recorder{}
	l = w.durable(again, nil)
	l.live()
	w.insert(26, 30)
	l.delivered(w, 25)
	wantPayloads(t, again, numbers(6, 30))
	if n := strings.Count(l.logged.String(), "the replication slot is made anew"); n != 1 || !strings.Contains(l.logged.String(), "it is gone") {
		t.Errorf("it was told %d times", n)
	}
	// Also while it runs.
	l.remakeEvery = 0
	w.dropSlot(l.slot)
	w.insert(31, 40)
	l.delivered(w, 35)
	wantPayloads(t, again, numbers(6, 40))
}

// TestC41SlotInvalidated: a slot that the server has invalidated is dropped and made anew, once.
// When that happens again soon, it is said what to raise.
func TestC41SlotInvalidated(t *testing.T) {
	t.Parallel()
	server := ownServer(t, map[string]string{"max_slot_wal_keep_size": "16MB", "max_wal_size": "32MB", "min_wal_size": "32MB"})
	w := worldAt(t, server.URL("postgres"), outbox, "CREATE TABLE other (text text)")
	w.beside(Config{})
	w.publish()
	sink := &recorder{}
	l := w.durable(sink, nil)
	l.live()
	w.insert(1, 5)
	l.delivered(w, 5)
	l.stop()
	w.insert(6, 10)
	invalidate := func() {
		eventually(t, "the slot is lost", func() bool {
			w.exec("INSERT INTO other SELECT repeat(md5(i::text), 30) FROM generate_series(1, 20000) i")
			w.exec("SELECT pg_switch_wal()")
			w.exec("CHECKPOINT")
			return value[string](w, "SELECT coalesce((SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1), '')", l.slot) == "lost"
		})
	}
	invalidate()
	again := &recorder{}
	l = w.durable(again, nil)
	l.live()
	w.insert(11, 15)
	l.delivered(w, 10)
	wantPayloads(t, again, numbers(6, 15))
	if !strings.Contains(l.logged.String(), "the server has invalidated it: ") {
		t.Error("it was not told")
	}
	again.mu.Lock()
	again.keep = func(*source.Event) bool { return true }
	again.mu.Unlock()
	w.insert(16, 20)
	eventually(t, "they are in flight", func() bool { return again.inFlight() == 5 })
	invalidate()
	eventually(t, "it is said what to raise", func() bool { return strings.Contains(strings.Join(l.Unready(), "\n"), "max_slot_wal_keep_size") })
	l.stop()
}

// TestC44PublicationMadeAfterTheSlot: it is said so, with what mends it, and nothing is dropped.
func TestC44PublicationMadeAfterTheSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	sink := &recorder{}
	l := w.durable(sink, nil)
	l.live()
	eventually(t, "the scan is remembered", func() bool { return value[bool](w, "SELECT scanned FROM outbox_slots") })
	l.stop()
	w.exec("DROP PUBLICATION outbox_publication")
	w.insert(1, 5)
	w.publish()
	l = w.durable(sink, nil)
	if value[int](w, "SELECT current_setting('server_version_num')::int") >= 180000 {
		// The server passes over a publication that is not there, and the rows are found missing.
		l.delivered(w, 5)
		return
	}
	eventually(t, "it is told", func() bool {
		unready := strings.Join(l.Unready(), "\n")
		return strings.Contains(unready, "was made after the position of slot "+l.slot) && strings.Contains(unready, "forwarder slots drop")
	})
	if sink.count() != 0 {
		t.Error("something was delivered")
	}
	l.stop()
	if err := DropSlot(t.Context(), w.config(), l.slot); err != nil {
		t.Fatal(err)
	}
	l = w.durable(sink, nil)
	l.delivered(w, 5)
	if strings.Contains(l.logged.String(), "made anew") {
		t.Error("it warned of what was done on purpose")
	}
}

// TestC48DurableColumnMissing: rows that were written without a column that is needed hold the
// slot before them. It is said how to go on, and what is in the table is delivered then.
func TestC48DurableColumnMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	sink := &recorder{}
	l := w.durable(sink, nil)
	l.live()
	w.insert(1, 5)
	l.delivered(w, 5)
	w.exec("ALTER TABLE outbox RENAME COLUMN payload TO body")
	w.exec("INSERT INTO outbox (topic, key, body) VALUES ('t', 'k', '6')")
	w.exec("ALTER TABLE outbox RENAME COLUMN body TO payload")
	w.insert(7, 10)
	eventually(t, "it is told", func() bool {
		unready := strings.Join(l.Unready(), "\n")
		return strings.Contains(unready, `no column "payload"`) && strings.Contains(unready, "forwarder slots drop "+l.slot)
	})
	wantPayloads(t, sink, numbers(1, 5))
	l.stop()
	if err := DropSlot(t.Context(), w.config(), l.slot); err != nil {
		t.Fatal(err)
	}
	l = w.durable(sink, nil)
	l.delivered(w, 10)
	wantPayloads(t, sink, numbers(1, 10))
}

// TestC54SlotMoved: when somebody has moved the slot on, or made it anew, its rows are found
// nevertheless.
func TestC54SlotMoved(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]string{
		"moved":      "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())",
		"made again": "SELECT pg_drop_replication_slot($1); SELECT pg_create_logical_replication_slot($1, 'pgoutput')",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox)
			w.publish()
			sink := &recorder{}
			l := w.durable(sink, nil)
			l.live()
			w.insert(1, 5)
			l.delivered(w, 5)
			eventually(t, "the scan is remembered", func() bool { return value[bool](w, "SELECT scanned FROM outbox_slots") })
			l.stop()
			w.insert(6, 10)
			for _, sql := range strings.Split(move, "; ") {
				w.exec(sql, l.slot)
			}
			w.insert(11, 15)
			again := &recorder{}
			l = w.durable(again, nil)
			eventually(t, "all are delivered", func() bool { return w.rows() == 0 })
			got := again.payloads()
			slices.Sort(got)
			want := numbers(6, 15)
			slices.Sort(want)
			if !slices.Equal(slices.Compact(got), want) {
				t.Errorf("delivered %q", again.payloads())
			}
			if !strings.Contains(l.logged.String(), "does not bring rows that are in the table") {
				t.Error("it was not told")
			}
		})
	}
}

// TestFailoverWithoutTheLastDeletes: a standby that is promoted may lack the deletes of rows that
// its slot is past. They are delivered again, and not left in the table.
func TestFailoverWithoutTheLastDeletes(t *testing.T) {
	t.Parallel()
	server := ownServer(t, nil)
	w := worldAt(t, server.URL("postgres"), outbox)
	w.beside(Config{})
	w.publish()
	w.exec("CREATE ROLE forwarder SUPERUSER LOGIN")
	login := withUser(t, w.url, url.User("forwarder"))
	sink := &recorder{}
	l := w.durable(sink, nil, func(c *Config) { c.URL = login })
	l.live()
	w.insert(1, 5)
	l.delivered(w, 5)
	eventually(t, "the scan is remembered", func() bool { return value[bool](w, "SELECT scanned FROM outbox_slots") })
	w.exec("ALTER ROLE forwarder NOLOGIN") // until all is prepared
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	// The same server as a standby of nobody: promoted, it has another history.
	signal := filepath.Join(filepath.Dir(server.LogPath()), "data", "standby.signal")
	if err := os.WriteFile(signal, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.conn = w.session()
	w.exec("SELECT pg_promote()")
	w.insert(6, 10)
	w.exec("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", l.slot)
	w.exec("ALTER ROLE forwarder LOGIN")
	w.insert(11, 15)
	l.delivered(w, 15)
}

// TestHeldSlotIsTold: what can never be delivered and holds the slot is named with its position, by
// which it can be given up, and nothing else with it.
func TestHeldSlotIsTold(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]string{
		"message": "SELECT pg_logical_emit_message(true, 'outbox', 'no json')",
		"row":     "INSERT INTO outbox (topic, key, payload) VALUES ('t', 'bad', 'bad')",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox)
			w.publish()
			refuse := func(ev *source.Event) bool { return ev.Defect != nil || string(ev.Key) == "bad" }
			l := w.durable(&recorder{refuse: refuse}, nil)
			l.live()
			w.exec(bad)
			w.say(1, 5)
			var told []string
			eventually(t, "it is told", func() bool {
				told = regexp.MustCompile(`level=WARN .*holds the replication slot.* id=(\S+) topic=\S+ retained_bytes=\d+ lsn=(\S+)`).FindStringSubmatch(l.logged.String())
				return told != nil
			})
			if parked := l.forwarder.Parked(); len(parked) != 1 || parked[0].Name != told[1] {
				t.Errorf("told of %s, and what waits is %+v", told[1], parked)
			}
			l.stop()
			w.exec("DELETE FROM outbox")
			w.exec("SELECT pg_replication_slot_advance($1, $2::text::pg_lsn)", l.slot, told[2])
			again := &recorder{refuse: refuse}
			l = w.durable(again, nil)
			w.say(6, 6)
			end := w.lsn()
			eventually(t, "everything is confirmed", func() bool { return l.confirmedAt(w) >= end })
			wantPayloads(t, again, numbers(1, 6))
			if strings.Contains(l.logged.String(), "WARN") {
				t.Errorf("it warned:\n%s", l.logged)
			}
		})
	}
}

// TestScanIsRepeatedAfterACrash: what was in the table before the slot is delivered, also when
// the process dies while that is under way.
func TestScanIsRepeatedAfterACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	w.insert(1, 5000)
	sink := &recorder{keep: func(ev *source.Event) bool { return len(ev.Payload) == 4 }} // from 1000 on
	l := w.durable(sink, nil)
	eventually(t, "some are delivered", func() bool { return sink.count() == 999 && w.rows() == 4001 })
	w.insert(5001, 5010)
	l.live()
	l.crash()
	if value[bool](w, "SELECT scanned FROM outbox_slots") {
		t.Error("the scan is remembered as finished")
	}
	again := &recorder{}
	l = w.durable(again, nil)
	l.delivered(w, 4011)
	wantPayloads(t, again, numbers(1000, 5010))
	eventually(t, "the scan is remembered", func() bool { return value[bool](w, "SELECT scanned FROM outbox_slots") })
}

// TestScanAfterACrashKeepsTheOrder: while the scan of a new slot is not over, what came through the log
// is delivered and deleted; a crash then. The log brings it again, and must not bring it behind what was
// written later and is in the table.
func TestScanAfterACrashKeepsTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	insert := func(key, payload string) {
		w.exec("INSERT INTO outbox (topic, key, payload) VALUES ('t', $1, convert_to($2::text, 'UTF8'))", key, payload)
	}
	insert("b", "1")
	sink := &recorder{keep: func(ev *source.Event) bool { return string(ev.Payload) != "2" }}
	l := w.durable(sink, nil)
	l.live()
	insert("a", "2")
	eventually(t, "what came through the log is delivered", func() bool { return sink.count() == 1 && w.rows() == 1 })
	insert("a", "3")
	l.crash()
	again := &recorder{}
	l = w.durable(again, nil)
	l.delivered(w, 3)
	wantPayloads(t, again, []string{"1", "2", "3"})
}
