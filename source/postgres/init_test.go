package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/source"
)

// emptyWorld is a database with nothing in it.
func emptyWorld(t testing.TB, statements ...string) *world {
	t.Helper()
	return worldAt(t, serverstest.Database(t), statements...)
}

// schema describes everything in the database that is not the server's own: tables with
// columns, defaults, constraints, indexes and settings, sequences, and the lanes.
func (w *world) schema() string {
	w.t.Helper()
	return value[string](w, `
		SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
			SELECT format('%s.%s %s %s %s', n.nspname, c.relname, c.relkind, c.relpersistence, c.reloptions) AS line
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
			UNION ALL
			SELECT format('%s.%s %s %s null=%s identity=%s default=%s', n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
			              NOT a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid))
			FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
			WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' AND a.attnum > 0 AND NOT a.attisdropped
			UNION ALL
			SELECT format('%s %s', conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE connamespace::regnamespace::text !~ '^(pg_|information)'
			UNION ALL
			SELECT indexdef FROM pg_indexes WHERE schemaname !~ '^(pg_|information)'
			UNION ALL
			SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
		) lines`)
}

func mustInit(t testing.TB, cfg Config) {
	t.Helper()
	if err := Init(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

// oddNames is a table whose every name needs its quotes.
var oddNames = Config{
	Schema: `my "Schema".x`, Table: `Out; Box '1'`,
	Columns: Columns{ID: `I"D`, Topic: "to pic", Key: "KEY", Payload: "select", Headers: "he.aders", CreatedAt: "$1%s\\é"},
}

// initConfigs are outboxes that Init can make.
func initConfigs() map[string]Config {
	few := Config{Table: "events", Lanes: 8}
	bare := Config{Table: "bare", Columns: Columns{ID: "id", Topic: "topic", Payload: "payload"}}
	return map[string]Config{"defaults": {}, "few lanes": few, "odd names": oddNames, "own schema": {Schema: "app"}, "fewest columns": bare}
}

// TestInit makes an outbox that works, twice.
func TestInit(t *testing.T) {
	t.Parallel()
	for name, cfg := range initConfigs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := emptyWorld(t)
			cfg.URL = w.url
			mustInit(t, cfg)
			made := w.schema()
			c := cfg.withDefaults()
			columns := c.Columns
			quote := func(name string) string { return pgx.Identifier{name}.Sanitize() }
			sql := fmt.Sprintf("INSERT INTO %s (%s, %s", c.table().sql(), quote(columns.Topic), quote(columns.Payload))
			values := "'t', 'p'"
			if columns.Key != "" {
				sql, values = sql+", "+quote(columns.Key), values+", 'k'"
			}
			if columns.Headers != "" {
				sql, values = sql+", "+quote(columns.Headers), values+`, '{"a": "b"}'`
			}
			w.exec(sql + ") VALUES (" + values + ")")
			mustInit(t, cfg)
			if again := w.schema(); again != made {
				t.Errorf("the second Init changed the schema from:\n%s\nto:\n%s", made, again)
			}

			s, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if want := c.Lanes; s.Lanes() != want {
				t.Errorf("%d lanes, want %d", s.Lanes(), want)
			}
			read := everything()
			read.Topics, read.Keys = []string{"x"}, []source.TopicKey{{Topic: "t", Key: "x"}}
			got := events(t, s, read)
			if len(got) != 1 || got[0].Topic != "t" || string(got[0].Payload) != "p" || (string(got[0].Key) == "k") != (columns.Key != "") ||
				sameHeaders(got[0].Headers, []source.Header{header("a", "b")}) != (columns.Headers != "") || got[0].Created.IsZero() != (columns.CreatedAt == "") {
				t.Fatalf("the row comes as %+v", got)
			}
			read.Lanes = []source.Lane{got[0].Lane}
			wantIDs(t, "in its lane", events(t, s, read), got[0].ID)
			if _, ok, err := s.Oldest(t.Context()); err != nil || ok != (columns.CreatedAt != "") {
				t.Errorf("oldest: %v, %v", ok, err)
			}
			if err := s.Delete(t.Context(), ids(got), func(uint64) {}); err != nil {
				t.Error(err)
			}
			wantIDs(t, "after the delete", events(t, s, everything()))
		})
	}
}

// TestInitPrintsWhatItRuns: the printed statements, run as one script, have Init's effect.
func TestInitPrintsWhatItRuns(t *testing.T) {
	t.Parallel()
	for name, cfg := range initConfigs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := emptyWorld(t)
			list, err := Statements(cfg)
			if err != nil {
				t.Fatal(err)
			}
			script := strings.Join(list, ";\n") + ";\n"
			for range 2 {
				// The simple protocol takes the whole text, as psql sends it.
				if _, err := w.conn.PgConn().Exec(t.Context(), script).ReadAll(); err != nil {
					t.Fatalf("running\n%s\n%v", script, err)
				}
			}
			printed := w.schema()
			other := emptyWorld(t)
			cfg.URL = other.url
			mustInit(t, cfg)
			if ran := other.schema(); ran != printed {
				t.Errorf("Init makes:\n%s\nthe statements make:\n%s", ran, printed)
			}
			lanes := "SELECT string_agg(lane::text, ',' ORDER BY lane) FROM " + cfg.withDefaults().table().beside(lanesSuffix).sql()
			if a, b := value[string](w, lanes), value[string](other, lanes); a != b {
				t.Errorf("lanes %s and %s", a, b)
			}
			if upper := strings.ToUpper(script); strings.Contains(upper, "DROP") || strings.Contains(upper, "ALTER TABLE") {
				t.Errorf("the statements drop or alter something:\n%s", script)
			}
		})
	}
}

// TestInitConcurrently: many at once, whatever isolation the database prefers.
func TestInitConcurrently(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			w := emptyWorld(t)
			w.exec("ALTER DATABASE " + value[string](w, "SELECT current_database()") + " SET default_transaction_isolation = '" + level + "'")
			done := make(chan error)
			const many = 8
			for range many {
				go func() { done <- Init(t.Context(), Config{URL: w.url, Schema: "app", Lanes: 64}) }()
			}
			for range many {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			if n := value[int](w, "SELECT count(*) FROM app.outbox_lanes"); n != 64 {
				t.Errorf("%d lanes, want 64", n)
			}
		})
	}
}

// TestInitLeavesWhatIsThere: neither a table that the user made nor a lane count is changed.
func TestInitLeavesWhatIsThere(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t, strings.Replace(withPayload("text"), "created_at", "extra int, created_at", 1),
		"INSERT INTO outbox (topic, payload) VALUES ('t', 'p')", "CREATE INDEX ON outbox (topic)")
	before := w.schema()
	cfg := Config{URL: w.url, Lanes: 8}
	mustInit(t, cfg)
	for line := range strings.Lines(before) {
		if !strings.Contains(w.schema(), strings.TrimSpace(line)) {
			t.Errorf("gone or changed: %s", line)
		}
	}
	if n := w.rows(); n != 1 {
		t.Errorf("%d rows", n)
	}
	w.exec("UPDATE outbox_lanes SET owner = 'me', epoch = 7 WHERE lane = 3")
	cfg.Lanes = 32
	mustInit(t, cfg)
	if n := value[int](w, "SELECT count(*) FROM outbox_lanes"); n != 8 {
		t.Errorf("%d lanes after an Init with another count", n)
	}
	if n := value[int](w, "SELECT count(*) FROM outbox_lanes WHERE owner = 'me' AND epoch = 7"); n != 1 {
		t.Error("a lease was changed")
	}

	// A table that cannot serve is told, and left alone.
	w.exec("ALTER TABLE outbox DROP COLUMN topic")
	err := Init(t.Context(), cfg)
	var setup *source.SetupError
	if !errors.As(err, &setup) {
		t.Fatalf("not a SetupError: %v", err)
	}
	wantProblem(t, setup.Problems, `no column "topic"`)
}

// TestInitWithoutRights names the way out, and leaves nothing half made.
func TestInitWithoutRights(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t, "CREATE SCHEMA app", "REVOKE CREATE ON SCHEMA public FROM public")
	name, login := w.role("")
	for schema, grant := range map[string]string{
		"public": "GRANT CREATE ON SCHEMA public TO " + name,
		"app":    "GRANT CREATE, USAGE ON SCHEMA app TO " + name,
		"fresh":  "GRANT CREATE ON DATABASE " + value[string](w, "SELECT current_database()") + " TO " + name,
	} {
		cfg := Config{URL: login, Schema: schema}
		before := w.schema()
		err := Init(t.Context(), cfg)
		var setup *source.SetupError
		if !errors.As(err, &setup) {
			t.Errorf("%s: not a SetupError: %v", schema, err)
			continue
		}
		wantProblem(t, setup.Problems, "cannot be created", "42501", "schema "+schema, "forwarder init --print")
		if after := w.schema(); after != before {
			t.Errorf("%s: something was made:\n%s", schema, after)
		}
		w.exec(grant)
		mustInit(t, cfg)
	}
}

// TestStoreOfAnEarlierVersion: a store that lacks what came later says how it is mended.
func TestStoreOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.exec("ALTER TABLE outbox_members DROP COLUMN exclusive")
	_, err := Open(t.Context(), Config{URL: w.url})
	var setup *source.SetupError
	if !errors.As(err, &setup) || len(setup.Problems) != 1 {
		t.Fatalf("opening: %v", err)
	}
	_, remedy, _ := strings.Cut(setup.Problems[0], "earlier version: ")
	w.exec(remedy)
	s, err := Open(t.Context(), Config{URL: w.url})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
