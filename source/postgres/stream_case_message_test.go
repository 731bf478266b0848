package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// everyOperation publishes the outbox as somebody would who does not leave it to Init.
const everyOperation = "CREATE PUBLICATION outbox_publication FOR TABLE outbox, other"

const other = "CREATE TABLE other (id bigint PRIMARY KEY, a text)"

// TestC30MessagesInTheLog: the messages of pg_logical_emit_message pass by, in a transaction and
// outside, where they are asked for.
func TestC30MessagesInTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	tp := w.tap()
	w.exec("SELECT pg_logical_emit_message(false, 'x', 'outside')")
	w.exec("WITH one AS (SELECT pg_logical_emit_message(true, 'x', 'inside')) INSERT INTO outbox (topic, key) SELECT 't', 'k' FROM one")
	w.exec("SELECT pg_logical_emit_message(true, 'x', 'alone')")
	w.exec("INSERT INTO outbox (topic, key) VALUES ('t', 'l')")
	tp.same()
}

// TestC30UnknownMessage: what may mean anything is an error that shows the code, never skipped.
func TestC30UnknownMessage(t *testing.T) {
	t.Parallel()
	known := "BCRIUDTMYO"
	for code := range rune(256) {
		var p parser
		_, err := p.parse([]byte{byte(code)})
		unknown := err != nil && strings.Contains(err.Error(), "unknown message")
		switch {
		case strings.ContainsRune(known, code) && unknown:
			t.Errorf("message %q: %v", code, err)
		case strings.ContainsRune(known, code):
		case !unknown || !strings.Contains(err.Error(), fmt.Sprintf("%q", byte(code))):
			t.Errorf("message %q: %v", code, err)
		}
	}
}

// TestC31OnlyInserts: neither our own deletes nor the application's deletes and updates are
// events. A row that the application deletes or changes before it was delivered is delivered
// as it was inserted.
func TestC31OnlyInserts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "ALTER TABLE outbox REPLICA IDENTITY FULL", other, everyOperation)
	st := w.streamTo(&recorder{keep: func(*source.Event) bool { return true }}, lanes.Config{})
	st.live()
	w.exec("INSERT INTO outbox (topic, key, payload) VALUES ('t', 'a', '1'), ('t', 'b', '2'), ('t', 'c', '3')")
	eventually(t, "the rows are in flight", func() bool { return st.sink.inFlight() == 3 })
	w.exec("UPDATE outbox SET payload = 'changed' WHERE payload = '2'")
	w.exec("DELETE FROM outbox WHERE payload = '3'")
	st.says("level=WARN", "publication sends updates or deletes", "publish only inserts")
	st.sink.release()
	w.insert(4, 4)
	eventually(t, "the outbox is empty", func() bool { return st.sink.count() >= 4 && w.rows() == 0 })
	acked := st.sink.payloads()
	slices.Sort(acked)
	wantNumbers(t, "acknowledged", acked, 1, 4)
	if n := st.lines("publish only inserts"); n != 1 {
		t.Errorf("%d lines about updates and deletes", n)
	}
}

// TestC33SameBytesInEveryMode: rows that differ in nothing become events that differ in nothing
// but their id, whether the table is read, the log is streamed, or one takes over from the
// other.
func TestC33SameBytesInEveryMode(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct{ name, key, payload, keys, payloads string }{
		{"bytea", "uuid", "bytea", `'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', NULL`, `'\x00ff0a0d22', '', NULL`},
		{"jsonb", "numeric", "jsonb", `1.0, 1.00, 'NaN', -12345678901234567890.5`, `'{"a":12345678901234567890,"b":1.10,"c":1e400}', 'null', '"<&>"', NULL`},
		{"json", "char(8)", "json", `'ab', ''`, `'{"b":1,  "a":2,"a":3}', 'null'`},
		{"text", "bigint", "text", `-9223372036854775808, 0`, `'', 'x', NULL`},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, strings.NewReplacer("key text", "key "+kind.key, "payload bytea", "payload "+kind.payload).Replace(outbox))
			w.publish()
			rows := func() int {
				w.exec(`INSERT INTO outbox (topic, key, payload, headers, created_at)
					SELECT 't', k, p, h, c FROM unnest(ARRAY[` + kind.keys + `]::` + kind.key + `[]) k, unnest(ARRAY[` + kind.payloads + `]::` + kind.payload + `[]) p,
					unnest('{"{\"a\": \"x\", \"b\": null}","{}",NULL}'::jsonb[]) h, unnest('{infinity,-infinity,2026-01-02 03:04:05.678901+00}'::timestamptz[]) c`)
				return w.rows()
			}
			n := rows()
			st := w.stream()
			st.live()
			wait := func(total int) {
				t.Helper()
				eventually(t, fmt.Sprintf("%d events", total), func() bool { return st.sink.count() >= total && w.rows() == 0 })
			}
			wait(n)
			rows()
			wait(2 * n)
			w.cut()
			rows()
			wait(3 * n)
			acked := st.sink.events()
			if len(acked) != 3*n {
				t.Fatalf("%d events of %d rows", len(acked), 3*n)
			}
			byRow := make(map[int64]*source.Event)
			for _, ev := range acked {
				byRow[ev.ID] = ev
			}
			for id := int64(1); id <= int64(n); id++ {
				for _, twin := range []int64{id + int64(n), id + 2*int64(n)} {
					if a, b := inWords(byRow[id]), inWords(byRow[twin]); a != b {
						t.Errorf("row %d: %s\nrow %d: %s", id, a, twin, b)
					}
				}
			}
		})
	}
}

// inWords shows everything of an event that its row says, telling nil from empty. A row
// without a key has a lane of its own.
func inWords(ev *source.Event) string {
	if ev == nil {
		return "none"
	}
	return fmt.Sprintf("%s %#v %#v %#v %v %v %v", ev.Topic, ev.Key, ev.Payload, ev.Headers, ev.Defect, ev.Created.UTC(), ev.Key == nil || ev.Lane == lanes.LaneOf(ev.Key, lanes.DefaultLanes))
}
