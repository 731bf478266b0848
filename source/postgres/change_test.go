package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-forwarder/forwarder/source"
)

// payloadTypes are the types a payload may have, with how the text {"n": 1} becomes one.
var payloadTypes = []struct{ name, from string }{
	{"bytea", "convert_to(%s, 'UTF8')"}, {"text", "%s"}, {"varchar(100)", "%s"}, {"json", "(%s)::json"}, {"jsonb", "(%s)::jsonb"},
}

// TestC12TableChangesWhileRunning: migrations under a running forwarder lose nothing, double
// nothing and change no byte.
func TestC12TableChangesWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	sink := &recorder{}
	f := forward(t, w.open(), sink)
	n := 0
	from := payloadTypes[0].from
	put := func() {
		const rows = 20
		text := `'{"n": ' || i || '}'`
		w.exec("INSERT INTO outbox (topic, key, payload) SELECT 't', 'k' || i % 5, " + fmt.Sprintf(from, text) +
			fmt.Sprintf(" FROM generate_series(%d, %d) i", n, n+rows-1))
		n += rows
	}
	put()
	f.acked(n)
	for i := range 3 {
		w.exec(fmt.Sprintf("ALTER TABLE outbox ADD COLUMN trace%d text", i))
		put()
		w.exec("ALTER TABLE outbox ALTER key TYPE varchar(" + fmt.Sprint(50+i) + ")")
		put()
		f.acked(n)
	}
	for round := range 2 {
		for _, typ := range payloadTypes {
			put() // read before the change, after it, or part and part
			text := map[bool]string{true: "convert_from(payload, 'UTF8')", false: "payload::text"}[from == payloadTypes[0].from]
			w.exec("ALTER TABLE outbox ALTER payload TYPE " + typ.name + " USING " + fmt.Sprintf(typ.from, text))
			from = typ.from
			put()
			if round == 1 {
				w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, applicationName)
			}
			f.acked(n)
			put()
			f.acked(n)
		}
	}
	w.exec("ALTER TABLE outbox DROP COLUMN trace1, ALTER id TYPE int")
	put()
	f.acked(n)
	f.drained(w)
	f.stop()
	got := sink.events()
	if len(got) != n {
		t.Fatalf("%d events acknowledged for %d rows", len(got), n)
	}
	seen := make(map[string]bool)
	for _, ev := range got {
		seen[string(ev.Payload)] = true
	}
	for i := range n {
		if text := fmt.Sprintf(`{"n": %d}`, i); !seen[text] {
			t.Errorf("%s did not come, or not as these bytes", text)
		}
	}
}

// TestC12EveryPayloadTypeToEveryOther: the session that reads after the change has prepared its
// statement before it, or has to prepare it now.
func TestC12EveryPayloadTypeToEveryOther(t *testing.T) {
	t.Parallel()
	for _, fresh := range []bool{false, true} {
		t.Run(fmt.Sprintf("fresh session=%v", fresh), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox)
			s := w.open()
			w.exec(`INSERT INTO outbox (topic, payload) VALUES ('t', '{"n": 1}')`)
			check := func(what string) {
				t.Helper()
				got := events(t, s, everything())
				if len(got) != 1 || string(got[0].Payload) != `{"n": 1}` {
					t.Fatalf("%s: payload %q", what, got[0].Payload)
				}
			}
			text := "convert_from(payload, 'UTF8')"
			for _, a := range payloadTypes {
				for _, b := range payloadTypes {
					for _, typ := range []struct{ name, from string }{a, b} {
						w.exec("ALTER TABLE outbox ALTER payload TYPE " + typ.name + " USING " + fmt.Sprintf(typ.from, text))
						if text = "payload::text"; typ.name == "bytea" {
							text = "convert_from(payload, 'UTF8')"
						}
						if fresh {
							s.pool.Reset()
						}
						check("to " + typ.name)
					}
				}
			}
		})
	}
}

// TestC12KeyTypeChanges: the lane follows the key's text.
func TestC12KeyTypeChanges(t *testing.T) {
	t.Parallel()
	for _, fresh := range []bool{false, true} {
		t.Run(fmt.Sprintf("fresh session=%v", fresh), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox, "INSERT INTO outbox (topic, key) SELECT 't', i FROM generate_series(1, 50) i")
			w.exec("DELETE FROM outbox_lanes WHERE lane >= 16")
			s := w.open()
			for _, typ := range []string{"char(6)", "int", "numeric(8,2)", "char(9)", "text", "char(9)", "varchar(20)"} {
				page(t, s, &source.Read{Floor: 49, Lanes: []source.Lane{1, 2}, Limit: 1, Bytes: 1 << 20})
				w.exec("ALTER TABLE outbox ALTER key TYPE " + typ + " USING key::" + typ)
				if fresh {
					s.pool.Reset()
				}
				// First by lane: what the statement says must have changed too.
				found := 0
				for lane := range source.Lane(16) {
					for _, ev := range events(t, s, &source.Read{Floor: 0, Lanes: []source.Lane{lane}, Limit: 100, Bytes: 1 << 20}) {
						if ev.Lane != lane {
							t.Errorf("%s: key %q of lane %d was found in lane %d", typ, ev.Key, ev.Lane, lane)
						}
						found++
					}
				}
				if found != 50 {
					t.Errorf("%s: %d of 50 rows were found", typ, found)
				}
			}
		})
	}
}

// TestC12ColumnGoneAndBack: a table that cannot be read is an error that passes.
func TestC12ColumnGoneAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, `INSERT INTO outbox (topic, headers) VALUES ('t', '{"a": "b"}')`)
	s := w.open()
	page(t, s, everything())
	w.exec("ALTER TABLE outbox RENAME headers TO elsewhere")
	for range 3 {
		_, err := s.Read(t.Context(), everything())
		if err == nil || !strings.Contains(err.Error(), `no column "headers"`) {
			t.Fatalf("without the column: %v", err)
		}
	}
	w.exec("ALTER TABLE outbox RENAME elsewhere TO headers")
	if got := events(t, s, everything()); !sameHeaders(got[0].Headers, []source.Header{header("a", "b")}) {
		t.Errorf("headers %q", got[0].Headers)
	}
	w.exec("ALTER TABLE outbox RENAME TO away")
	if _, err := s.Read(t.Context(), everything()); sqlState(err) != undefinedTable {
		t.Errorf("without the table: %v", err)
	}
	w.exec(strings.Replace(withPayload("text"), "key text", "key int", 1))
	w.exec("INSERT INTO outbox (topic, key, payload) VALUES ('new', 5, 'x')")
	got := events(t, s, everything())
	if len(got) != 1 || got[0].Topic != "new" || string(got[0].Key) != "5" || string(got[0].Payload) != "x" {
		t.Errorf("from the new table: %+v", got)
	}
}

// TestErrorsAreKnownByTheirCode: a server that speaks another language is understood.
func TestErrorsAreKnownByTheirCode(t *testing.T) {
	t.Parallel()
	german := func(code string) error {
		return fmt.Errorf("x: %w", &pgconn.PgError{Code: code, Message: "gecachter Plan darf den Ergebnistyp nicht ändern"})
	}
	if !stale(german(featureNotSupported)) || stale(german(deadlockDetected)) || stale(errors.New("cached plan must not change result type")) {
		t.Error("a changed table is not told by the code alone")
	}
	for _, code := range []string{deadlockDetected, serializationFailure} {
		if !retriable(german(code)) {
			t.Errorf("%s is not retriable", code)
		}
	}
	if retriable(german(featureNotSupported)) || retriable(errors.New("deadlock detected")) {
		t.Error("what is retriable is not told by the code alone")
	}
}
