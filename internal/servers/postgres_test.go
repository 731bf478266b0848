package servers

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func startPostgres(t *testing.T, ctx context.Context, cfg PostgresConfig) *Postgres {
	t.Helper()
	p, err := StartPostgres(ctx, cfg)
	check(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(p.folder.path); !os.IsNotExist(err) {
			t.Errorf("the server's folder is still there after Close: %v", err)
		}
	})
	return p
}

func connect(t *testing.T, ctx context.Context, p *Postgres) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	check(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func one[T any](t *testing.T, ctx context.Context, conn *pgx.Conn, query string) T {
	t.Helper()
	var v T
	check(t, conn.QueryRow(ctx, query).Scan(&v))
	return v
}

func TestPostgresStopsAndStartsOnTheSamePortAndData(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	p := startPostgres(t, ctx, PostgresConfig{})
	url := p.URL("postgres")
	conn := connect(t, ctx, p)
	_, err := conn.Exec(ctx, "CREATE TABLE kept AS SELECT 42 AS answer")
	check(t, err)

	check(t, p.Stop())
	check(t, p.Stop()) // a second time does nothing
	if p.PID() != 0 {
		t.Errorf("a stopped server has process id %d", p.PID())
	}
	if err := conn.Ping(ctx); err == nil {
		t.Error("a session outlived the server")
	}

	check(t, p.Start(ctx))
	pid := p.PID()
	check(t, p.Start(ctx)) // a second time does nothing
	if p.PID() != pid || pid == 0 {
		t.Errorf("process id %d became %d by a second Start", pid, p.PID())
	}
	if p.URL("postgres") != url {
		t.Errorf("%s became %s", url, p.URL("postgres"))
	}
	if got := one[int](t, ctx, connect(t, ctx, p), "SELECT answer FROM kept"); got != 42 {
		t.Errorf("read %d after the restart, want 42", got)
	}
}

func TestPostgresKillTakesABusyBackendAlongAndKeepsWhatWasCommitted(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	p := startPostgres(t, ctx, PostgresConfig{})
	conn := connect(t, ctx, p)
	_, err := conn.Exec(ctx, "CREATE TABLE kept (answer int)")
	check(t, err)
	_, err = conn.Exec(ctx, "INSERT INTO kept VALUES (42)")
	check(t, err)
	backend := one[int](t, ctx, conn, "SELECT pg_backend_pid()")

	// A backend that computes does not look whether its postmaster is still there.
	watcher := connect(t, ctx, p)
	busy := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "INSERT INTO kept SELECT sum(n)::int % 2 FROM generate_series(1, 1000000000) n")
		busy <- err
	}()
	eventually(t, 10*time.Second, "the backend computes", func() bool {
		return one[int](t, ctx, watcher, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'INSERT INTO kept SELECT%'") == 1
	})

	check(t, p.Kill())
	if !ended(backend) {
		t.Errorf("backend %d outlived Kill", backend)
	}
	if err := <-busy; err == nil {
		t.Error("the statement under way at Kill ended well")
	}

	check(t, p.Start(ctx))
	rows := one[int](t, ctx, connect(t, ctx, p), "SELECT count(*) FROM kept")
	if rows != 1 {
		t.Errorf("%d rows after the crash, want the one that was committed", rows)
	}
}

func TestPostgresSettings(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	p := startPostgres(t, ctx, PostgresConfig{Settings: map[string]string{
		"fsync":            "off",
		"application_name": "it's",
	}})
	conn := connect(t, ctx, p)
	for setting, want := range map[string]string{
		"fsync":            "off",       // asked for
		"wal_level":        "logical",   // default of ours
		"listen_addresses": "127.0.0.1", // default of ours
	} {
		if got := one[string](t, ctx, conn, "SHOW "+setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	if got := one[string](t, ctx, conn, "SELECT reset_val FROM pg_settings WHERE name = 'application_name'"); got != "it's" {
		t.Errorf("a value with a quote came out as %q", got)
	}
}

func TestPostgresThatCannotStartSaysWhy(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	p, err := StartPostgres(ctx, PostgresConfig{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil {
		_ = p.Close()
		t.Fatal("a server started with a setting that does not exist")
	}
	if !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("the error does not show the server's own words: %v", err)
	}
}

func TestPostgresStartsFromThePackageThatIsFetched(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	p := startPostgres(t, ctx, PostgresConfig{Fetched: true})
	version := one[string](t, ctx, connect(t, ctx, p), "SHOW server_version")
	if !strings.HasPrefix(version, fetchedMajor+".") {
		t.Errorf("the fetched server says version %s, want %s", version, fetchedMajor)
	}
}

func TestStandbyReceivesTheLogAndIsPromoted(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	p := startPostgres(t, ctx, PostgresConfig{})
	_, err := connect(t, ctx, p).Exec(ctx, "CREATE TABLE numbers AS SELECT 1 AS n; SELECT pg_create_physical_replication_slot('slot')")
	check(t, err)
	standby, err := p.StartStandby(ctx, map[string]string{"work_mem": "5MB"})
	check(t, err)
	t.Cleanup(func() { check(t, standby.Close()) })
	_, err = connect(t, ctx, p).Exec(ctx, "INSERT INTO numbers VALUES (2)")
	check(t, err)
	conn := connect(t, ctx, standby)
	eventually(t, time.Minute, "the standby has both rows", func() bool {
		return one[int](t, ctx, conn, "SELECT count(*) FROM numbers") == 2
	})
	if got := one[string](t, ctx, conn, "SHOW work_mem"); got != "5MB" {
		t.Errorf("its own setting is %s", got)
	}
	if n := one[int](t, ctx, conn, "SELECT count(*) FROM pg_replication_slots"); n != 0 {
		t.Errorf("it has %d slots of the primary", n)
	}
	if _, err := conn.Exec(ctx, "INSERT INTO numbers VALUES (3)"); err == nil {
		t.Error("a standby took a row")
	}
	check(t, p.Kill())
	if !one[bool](t, ctx, conn, "SELECT pg_promote()") {
		t.Error("the standby was not promoted")
	}
	_, err = conn.Exec(ctx, "INSERT INTO numbers VALUES (3)")
	check(t, err)
}
