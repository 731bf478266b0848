package postgres

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/source"
)

// TestC43RightsAndShape: what the database lacks is told at start, all of it at once and each
// with its fix.
func TestC43RightsAndShape(t *testing.T) {
	t.Parallel()
	t.Run("everything at once", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "CREATE TABLE outbox (id text, topic int, payload xml, created_at text)", "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM public")
		name, login := w.role("")
		problems := w.setupProblems(func(c *Config) { c.URL = login })
		wantProblem(t, problems, "role "+name, "read and delete", `GRANT SELECT, DELETE ON "public"."outbox" TO "`+name+`"`)
		wantProblem(t, problems, `"id"`, "type text", "bigint, integer or smallint")
		wantProblem(t, problems, `"topic"`, "type integer", "text, varchar or char")
		wantProblem(t, problems, `"payload"`, "type xml", "bytea")
		wantProblem(t, problems, `"created_at"`, "type text", "timestamptz")
		wantProblem(t, problems, `no column "key"`, "source.postgres.columns.key")
		wantProblem(t, problems, `no column "headers"`, "source.postgres.columns.headers")
		wantProblem(t, problems, "outbox_members", "GRANT SELECT, INSERT, UPDATE, DELETE")
		wantProblem(t, problems, "outbox_lanes", "GRANT SELECT, UPDATE")
		if len(problems) != 9 {
			t.Errorf("%d problems:\n%s", len(problems), strings.Join(problems, "\n"))
		}
	})
	t.Run("rights", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, outbox)
		name, login := w.role("")
		as := func(c *Config) { c.URL = login }
		w.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_members, outbox_lanes TO " + name)
		for _, missing := range []string{"SELECT", "DELETE"} {
			w.exec("GRANT SELECT, DELETE ON outbox TO " + name)
			w.exec("REVOKE " + missing + " ON outbox FROM " + name)
			problems := w.setupProblems(as)
			wantProblem(t, problems, "may not read and delete")
			if len(problems) != 1 {
				t.Errorf("without %s: %q", missing, problems)
			}
		}
		// The fix in the message is one that works.
		w.exec(grantIn(t, w.setupProblems(as)[0]))
		w.exec("INSERT INTO outbox (topic) VALUES ('t')")
		s := w.open(as)
		got := events(t, s, everything())
		wantIDs(t, "as the role", got, 1)
		if err := s.Delete(t.Context(), ids(got), func(uint64) {}); err != nil || w.rows() != 0 {
			t.Errorf("deleting as the role: %v, %d rows left", err, w.rows())
		}
	})
	t.Run("schema", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "CREATE SCHEMA hidden", strings.Replace(outbox, "outbox", "hidden.outbox", 1))
		cfg := Config{Schema: "hidden"}
		w.beside(cfg)
		name, login := w.role("")
		w.exec("GRANT ALL ON ALL TABLES IN SCHEMA hidden TO " + name)
		as := func(c *Config) { c.URL, c.Schema = login, "hidden" }
		problems := w.setupProblems(as)
		wantProblem(t, problems, "may not use schema hidden", "GRANT USAGE ON SCHEMA")
		if len(problems) != 1 {
			t.Errorf("problems %q", problems)
		}
		w.exec(grantIn(t, problems[0]))
		page(t, w.open(as), everything())
	})
	t.Run("no table", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		wantProblem(t, w.setupProblems(), "no table public.outbox:", "forwarder init", "source.postgres.table")
		w.exec("CREATE VIEW outbox AS SELECT 1 AS id")
		wantProblem(t, w.setupProblems(), "public.outbox is not a table")
	})
	t.Run("no unique id", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, strings.Replace(outbox, "PRIMARY KEY", "", 1))
		for index, good := range map[string]bool{
			"CREATE INDEX x ON outbox (id)":                             false,
			"CREATE UNIQUE INDEX x ON outbox (id, topic)":               false,
			"CREATE UNIQUE INDEX x ON outbox (topic, id)":               false,
			"CREATE UNIQUE INDEX x ON outbox (id) WHERE topic = 't'":    false,
			"CREATE UNIQUE INDEX x ON outbox (abs(id))":                 false,
			"CREATE UNIQUE INDEX x ON outbox (id)":                      true,
			"CREATE UNIQUE INDEX x ON outbox (id DESC) INCLUDE (topic)": true,
			"ALTER TABLE outbox ADD CONSTRAINT x PRIMARY KEY (id)":      true,
		} {
			problems := w.setupProblems()
			wantProblem(t, problems, "no unique index", "ADD PRIMARY KEY")
			if len(problems) != 1 {
				t.Errorf("without an index: %q", problems)
			}
			w.exec(index)
			if good {
				page(t, w.open(), everything())
			} else {
				wantProblem(t, w.setupProblems(), "no unique index")
			}
			w.exec("ALTER TABLE outbox DROP CONSTRAINT IF EXISTS x")
			w.exec("DROP INDEX IF EXISTS x")
		}
	})
	t.Run("lanes", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, outbox)
		for _, spoil := range []string{"DELETE FROM outbox_lanes WHERE lane = 3", "DELETE FROM outbox_lanes", "INSERT INTO outbox_lanes (lane) VALUES (1), (2)"} {
			w.exec(spoil)
			wantProblem(t, w.setupProblems(), "outbox_lanes has", "power of two")
		}
		w.exec("INSERT INTO outbox_lanes (lane) VALUES (0), (3)")
		if n := w.open(func(c *Config) { c.Lanes = 512 }).Lanes(); n != 4 {
			t.Errorf("%d lanes, and the store has 4", n)
		}
	})
}

// grantIn returns the statement that a problem offers as its fix.
func grantIn(t *testing.T, problem string) string {
	t.Helper()
	_, fix, ok := strings.Cut(problem, ": GRANT ")
	if !ok {
		t.Fatalf("no GRANT in %q", problem)
	}
	return "GRANT " + fix
}

// TestC42Standby: a standby cannot lose its rows, and says so in the forwarder's words. When it
// is promoted, it serves.
func TestC42Standby(t *testing.T) {
	t.Parallel()
	server := ownServer(t, nil)
	w := worldAt(t, server.URL("postgres"), outbox, "INSERT INTO outbox (topic) VALUES ('t')")
	w.beside(Config{})
	s := w.open()
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	signal := filepath.Join(filepath.Dir(server.LogPath()), "data", "standby.signal")
	if err := os.WriteFile(signal, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, w.setupProblems(), "the server is a standby", "primary")
	// A primary that became a standby: reading works, deleting is tried again.
	eventually(t, "reads go on", func() bool { _, err := s.Read(t.Context(), everything()); return err == nil })
	err := s.Delete(t.Context(), []int64{1}, func(uint64) {})
	var setup *source.SetupError
	if err == nil || errors.As(err, &setup) || sqlState(err) != "25006" {
		t.Errorf("deleting on a standby: %v", err)
	}
	w.conn = w.session()
	w.exec("SELECT pg_promote()")
	if err := s.Delete(t.Context(), []int64{1}, func(uint64) {}); err != nil {
		t.Errorf("deleting after the promotion: %v", err)
	}
	if p := page(t, w.open(), everything()); len(p.Events) != 0 {
		t.Errorf("%d rows after the delete", len(p.Events))
	}
}

// TestLoginProblems: a login that cannot work is a SetupError, a server that is away is not,
// and no error shows the password.
func TestLoginProblems(t *testing.T) {
	t.Parallel()
	server := ownServer(t, nil)
	hba := filepath.Join(filepath.Dir(server.LogPath()), "data", "pg_hba.conf")
	rules := "host all postgres all trust\nhost all relay all scram-sha-256\nhost all md all md5\nhost all barred all reject\n"
	if err := os.WriteFile(hba, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	w := worldAt(t, server.URL("postgres"), outbox, "SELECT pg_reload_conf()",
		"CREATE ROLE relay LOGIN PASSWORD 'right' CONNECTION LIMIT 5", "CREATE ROLE barred LOGIN", "CREATE ROLE guest LOGIN", "CREATE ROLE locked NOLOGIN")
	w.beside(Config{})
	w.exec("GRANT ALL ON ALL TABLES IN SCHEMA public TO relay")
	const secret = "t0p-s3cret/#?%"
	at := func(user, password, database string) string {
		u, err := url.Parse(server.URL(database))
		if err != nil {
			t.Fatal("the server's address is not a URL")
		}
		u.User = url.UserPassword(user, password)
		return u.String()
	}
	eventually(t, "the new rules are in force", func() bool {
		s, err := Open(t.Context(), w.config(func(c *Config) { c.URL = at("relay", "wrong", "postgres") }))
		if err == nil {
			s.Close()
		}
		return err != nil
	})
	for _, c := range []struct {
		name, url string
		words     []string
	}{
		{"wrong password", at("relay", secret, "postgres"), []string{"28P01", "refuses the login", "password"}},
		{"unknown role", at("md", secret, "postgres"), []string{"28P01", "refuses the login", "user"}},
		{"barred", at("barred", secret, "postgres"), []string{"28000", "refuses the login"}},
		{"no rule for it", at("guest", secret, "postgres"), []string{"28000", "refuses the login"}},
		{"unknown database", at("postgres", secret, "nowhere"), []string{"3D000", `"nowhere"`, "database name"}},
	} {
		for call, do := range calls {
			t.Run(c.name+"/"+call, func(t *testing.T) {
				err := do(t, w.config(func(cfg *Config) { cfg.URL = c.url }))
				var setup *source.SetupError
				if !errors.As(err, &setup) {
					t.Fatalf("not a SetupError: %v", err)
				}
				wantProblem(t, setup.Problems, c.words...)
				wantNoSecret(t, err, secret)
			})
		}
	}
	page(t, w.open(func(c *Config) { c.URL = at("relay", "right", "postgres") }), everything())

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	listener.Close()
	w.exec("ALTER ROLE relay CONNECTION LIMIT 0")
	for name, target := range map[string]string{
		"refused connection": fmt.Sprintf("postgres://relay:%s@%s/postgres", url.QueryEscape(secret), closed),
		"no slot is free":    at("relay", "right", "postgres"),
	} {
		for call, do := range calls {
			t.Run(name+"/"+call, func(t *testing.T) {
				err := do(t, w.config(func(cfg *Config) { cfg.URL = target }))
				var setup *source.SetupError
				if err == nil || errors.As(err, &setup) {
					t.Fatalf("not an error to be tried again: %v", err)
				}
				wantNoSecret(t, err, secret)
				wantNoSecret(t, err, "right")
			})
		}
	}
}

// calls are the ways into the package that connect.
var calls = map[string]func(*testing.T, Config) error{
	"open": func(t *testing.T, cfg Config) error {
		s, err := Open(t.Context(), cfg)
		if err == nil {
			s.Close()
		}
		return err
	},
	"init": func(t *testing.T, cfg Config) error { return Init(t.Context(), cfg) },
}

func wantNoSecret(t *testing.T, err error, secret string) {
	t.Helper()
	for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), url.UserPassword("u", secret).String()[2:]} {
		if strings.Contains(err.Error(), form) {
			t.Errorf("the error shows the password: %v", err)
			return
		}
	}
}

// TestUnreadableURLShowsNoSecret: connection strings with every slip that people make in them.
func TestUnreadableURLShowsNoSecret(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"postgres://relay:s3/cretword@127.0.0.1/db",
		"postgres://relay:s3%cretword@127.0.0.1/db",
		"postgres://relay:s3 cretword@127.0.0.1/db",
		"postgres://relay:x@127.0.0.1:cretword/db",
		"postgres://relay@127.0.0.1/db?sslmode=cretword",
		"postgres://relay@127.0.0.1/db?connect_timeout=cretword",
		"postgres://relay@127.0.0.1/db?sslrootcert=/nonexistent&password=cretword",
		"host=127.0.0.1 password=s3 cretword user=relay",
		"host=127.0.0.1 user=relay password='s3 cretword",
		"host=127.0.0.1 port=cretword user=relay",
		"relay:cretword@127.0.0.1/db",
		"mysql://relay:cretword@127.0.0.1/db",
		"service=cretword",
	} {
		for call, do := range calls {
			err := do(t, Config{URL: text})
			var setup *source.SetupError
			if !errors.As(err, &setup) {
				t.Errorf("%s %q: not a SetupError: %v", call, text, err)
				continue
			}
			if strings.Contains(err.Error(), "cretword") || strings.Contains(err.Error(), "s3") {
				t.Errorf("%s: the error shows the password: %v", call, err)
			}
			if !strings.Contains(err.Error(), "source.postgres.url") {
				t.Errorf("%s: the error does not name the setting: %v", call, err)
			}
		}
	}
}

// TestValidate joins all problems.
func TestValidate(t *testing.T) {
	t.Parallel()
	cfg := Config{Columns: Columns{ID: "id", Topic: "id", Key: "k", Headers: "k"}, Timeout: 1}
	_, err := Open(t.Context(), cfg)
	if err == nil {
		t.Fatal("a wrong configuration was taken")
	}
	for _, part := range []string{`columns.topic: "id" is columns.id already`, `columns.headers: "k" is columns.key already`, "columns.payload: an outbox cannot do without", "timeout: 1ns"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in:\n%v", part, err)
		}
	}
	if _, err := Statements(cfg); err == nil {
		t.Error("Statements took a wrong configuration")
	}
	if err := Init(t.Context(), cfg); err == nil {
		t.Error("Init took a wrong configuration")
	}
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the defaults are wrong: %v", err)
	}
}

// TestUnloggedTableIsTold: a table that a crash empties is the user's choice, and a warning.
func TestUnloggedTableIsTold(t *testing.T) {
	t.Parallel()
	w := worldAt(t, serverstest.Database(t), strings.Replace(outbox, "CREATE TABLE", "CREATE UNLOGGED TABLE", 1))
	w.beside(Config{})
	logged := &logText{}
	w.open(func(c *Config) { c.Logger = logged.logger() })
	if text := logged.String(); !strings.Contains(text, "unlogged") || !strings.Contains(text, "level=WARN") {
		t.Errorf("log: %q", text)
	}
}
