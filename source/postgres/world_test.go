package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

func TestMain(m *testing.M) { serverstest.Main(m) }

// patience bounds every wait for something that must happen: long enough for a busy machine,
// since only a failing test waits for all of it.
const patience = 30 * time.Second

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	within(t, patience, what, cond)
}

func within(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-tick.C
	}
}

// world is a test's own database, with a superuser's session to look at it.
type world struct {
	t    testing.TB
	url  string
	conn *pgx.Conn
}

// outbox is the table as Init creates it, without the tables beside it.
const outbox = `CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, key text,
	payload bytea, headers jsonb, created_at timestamptz NOT NULL DEFAULT now())`

// newWorld makes a database with the tables beside the outbox, and runs statements in it.
func newWorld(t testing.TB, statements ...string) *world {
	t.Helper()
	w := worldAt(t, serverstest.Database(t), statements...)
	w.beside(Config{})
	return w
}

// beside makes the tables beside the outbox of a configuration, and neither the outbox nor its
// publication.
func (w *world) beside(cfg Config) {
	w.t.Helper()
	list, err := Statements(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	own := "CREATE TABLE IF NOT EXISTS " + cfg.withDefaults().table().sql() + " ("
	for _, sql := range list {
		if !strings.HasPrefix(sql, own) && sql != publicationSQL(cfg.withDefaults()) {
			w.exec(sql)
		}
	}
}

// publish makes the publication of the outbox.
func (w *world) publish(change ...func(*Config)) {
	w.t.Helper()
	w.exec(publicationSQL(w.config(change...).withDefaults()))
}

func worldAt(t testing.TB, url string, statements ...string) *world {
	t.Helper()
	w := &world{t: t, url: url}
	w.conn = w.session()
	for _, sql := range statements {
		w.exec(sql)
	}
	return w
}

// ownServer starts a server that the test may reconfigure and stop.
func ownServer(t testing.TB, settings map[string]string) *servers.Postgres {
	t.Helper()
	cfg := serverstest.PostgresConfig()
	maps.Copy(cfg.Settings, settings)
	return startServer(t, cfg)
}

// newestServer starts the newest PostgreSQL that is fetched.
func newestServer(t testing.TB) *servers.Postgres {
	t.Helper()
	cfg := serverstest.PostgresConfig()
	cfg.Fetched = true
	return startServer(t, cfg)
}

func startServer(t testing.TB, cfg servers.PostgresConfig) *servers.Postgres {
	t.Helper()
	server, err := servers.StartPostgres(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// session opens a connection that lasts as long as the test.
func (w *world) session() *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func run(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("running %q: %v", sql, err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	run(w.t, w.conn, sql, args...)
}

// value asks the database for one value.
func value[T any](w *world, sql string, args ...any) T {
	w.t.Helper()
	var v T
	if err := w.conn.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("asking %q: %v", sql, err)
	}
	return v
}

// rows counts what is left in the outbox.
func (w *world) rows() int { return value[int](w, "SELECT count(*) FROM outbox") }

// role makes a role that ends with the test and returns its name and the URL that logs in as it.
func (w *world) role(options string) (name, login string) {
	w.t.Helper()
	name = "test_" + strings.ToLower(rand.Text())
	w.exec("CREATE ROLE " + name + " LOGIN " + options)
	w.t.Cleanup(func() { w.exec("DROP OWNED BY " + name); w.exec("DROP ROLE " + name) })
	return name, withUser(w.t, w.url, url.User(name))
}

func withUser(t testing.TB, target string, user *url.Userinfo) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal("the server's address is not a URL")
	}
	u.User = user
	return u.String()
}

// config is the configuration of the test's outbox with changes.
func (w *world) config(change ...func(*Config)) Config {
	cfg := Config{URL: w.url}
	for _, c := range change {
		c(&cfg)
	}
	return cfg
}

// open opens the outbox until the test ends.
func (w *world) open(change ...func(*Config)) *Source {
	w.t.Helper()
	s, err := Open(w.t.Context(), w.config(change...))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

// setupProblems returns the text of the SetupError that Open must end with.
func (w *world) setupProblems(change ...func(*Config)) []string {
	w.t.Helper()
	s, err := Open(w.t.Context(), w.config(change...))
	if err == nil {
		s.Close()
		w.t.Fatal("an outbox that cannot serve was opened")
	}
	var setup *source.SetupError
	if !errors.As(err, &setup) {
		w.t.Fatalf("not a SetupError: %v", err)
	}
	return setup.Problems
}

// everything is the read that asks for the whole table in one page.
func everything() *source.Read {
	return &source.Read{Floor: lanes.Start, Limit: 1 << 20, Bytes: 1 << 30}
}

func page(t testing.TB, s *Source, read *source.Read) *source.Page {
	t.Helper()
	p, err := s.Read(t.Context(), read)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func events(t testing.TB, s *Source, read *source.Read) []*source.Event {
	t.Helper()
	return page(t, s, read).Events
}

func ids(events []*source.Event) []int64 {
	list := make([]int64, len(events))
	for i, ev := range events {
		list[i] = ev.ID
	}
	return list
}

func wantIDs(t testing.TB, what string, got []*source.Event, want ...int64) {
	t.Helper()
	if !slices.Equal(ids(got), want) {
		t.Errorf("%s: rows %v, want %v", what, ids(got), want)
	}
}

// wantProblem asserts that exactly one of the problems holds all the words.
func wantProblem(t testing.TB, problems []string, words ...string) {
	t.Helper()
	found := 0
	for _, p := range problems {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(p, word) }) {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d problems with %q in:\n%s", found, words, strings.Join(problems, "\n"))
	}
}
