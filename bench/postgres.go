package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// table is an outbox in PostgreSQL. The programs under measurement connect as a role of their
// own, which tells their statements from ours.
type table struct {
	options
	init    func(ctx context.Context, url string, settings []string) error
	server  *servers.Postgres
	conn    *pgx.Conn // in database bench
	counted bool      // pg_stat_statements is there
	topic   string
}

const (
	role = "subject"
	// smallTransaction is the number of rows of each of many transactions.
	smallTransaction = 1000
)

func startTable(ctx context.Context, o options, init func(context.Context, string, []string) error) (*table, error) {
	progress("starting PostgreSQL")
	settings := map[string]string{
		"shared_buffers": "1GB",
		// No checkpoint falls into a measurement but the one that each begins with.
		"checkpoint_timeout": "1h", "max_wal_size": "8GB",
		"shared_preload_libraries": "pg_stat_statements",
	}
	server, err := servers.StartPostgres(ctx, servers.PostgresConfig{Settings: settings})
	counted := err == nil
	if err != nil {
		// A server that was fetched as a package comes without the extension.
		delete(settings, "shared_preload_libraries")
		progress("no pg_stat_statements here, so statements are not counted")
		if server, err = servers.StartPostgres(ctx, servers.PostgresConfig{Settings: settings}); err != nil {
			return nil, err
		}
	}
	return &table{options: o, init: init, server: server, counted: counted}, nil
}

func (t *table) name() string { return "PostgreSQL" }

func (t *table) close() error {
	var err error
	if t.conn != nil {
		err = t.conn.Close(context.Background())
	}
	return errors.Join(err, t.server.Close())
}

func (t *table) reset(ctx context.Context, topic string, settings []string) (err error) {
	t.topic = topic
	if t.conn != nil {
		if err := t.conn.Close(ctx); err != nil {
			return fmt.Errorf("closing a session: %w", err)
		}
		t.conn = nil
	}
	server, err := pgx.Connect(ctx, t.server.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer func() { err = errors.Join(err, server.Close(context.WithoutCancel(ctx))) }()
	for _, statement := range []string{
		"DROP DATABASE IF EXISTS " + database + " WITH (FORCE)",
		"DROP ROLE IF EXISTS " + role,
		"CREATE ROLE " + role + " SUPERUSER LOGIN",
		"CREATE DATABASE " + database,
		// Before the load: the pages that deletes touch have been logged in full by then, as
		// those of an outbox whose rows live for milliseconds are.
		"CHECKPOINT",
	} {
		if _, err := server.Exec(ctx, statement); err != nil {
			return fmt.Errorf("executing %q: %w", statement, err)
		}
	}
	if err := t.init(ctx, t.url(), settings); err != nil {
		return err
	}
	if t.conn, err = pgx.Connect(ctx, t.server.URL(database)); err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	if t.counted {
		if _, err := t.conn.Exec(ctx, "CREATE EXTENSION pg_stat_statements"); err != nil {
			return fmt.Errorf("creating an extension: %w", err)
		}
	}
	return nil
}

// url is the database as the measured programs reach it, by their own role.
func (t *table) url() string {
	u, err := url.Parse(t.server.URL(database))
	if err != nil {
		panic(fmt.Sprintf("the URL of our own server does not parse: %v", err))
	}
	u.User = url.User(role)
	return u.String()
}

func (t *table) size() int { return t.events }

func (t *table) preload(ctx context.Context, keys int, many bool) error {
	if err := t.fill(ctx, t.topic, keys, many); err != nil {
		return err
	}
	if _, err := t.conn.Exec(ctx, "VACUUM ANALYZE outbox"); err != nil {
		return fmt.Errorf("preparing the outbox: %w", err)
	}
	return nil
}

// fill is preload for a topic, without what makes later reads fast.
func (t *table) fill(ctx context.Context, topic string, keys int, many bool) error {
	cfg := oracle.PreloadConfig{
		URL: t.server.URL(database), Topic: topic, Events: t.events, Keys: keys, PayloadBytes: t.payload,
	}
	if many {
		cfg.PerTransaction = smallTransaction
	}
	return oracle.Preload(ctx, cfg)
}

func (t *table) writer(watch *oracle.Stopwatch) (writer, error) {
	return oracle.NewWriter(oracle.WriterConfig{
		URL: t.server.URL(database), Topics: []string{t.topic}, Rate: t.rate, PayloadBytes: t.payload, Apart: true, Stopwatch: watch,
	})
}

func (t *table) ledger(ctx context.Context) (oracle.Ledger, error) {
	return oracle.ReadLedger(ctx, t.server.URL(database), oracle.Tables{})
}

func (t *table) empty(ctx context.Context) (bool, error) {
	var left bool
	if err := t.conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox)").Scan(&left); err != nil {
		return false, fmt.Errorf("looking at the outbox: %w", err)
	}
	return !left, nil
}

func (t *table) cpu() (time.Duration, error) { return cpuTime(t.server.PID(), true) }

func (t *table) counters() []string {
	if t.counted {
		return []string{"WAL bytes", "statements"}
	}
	return []string{"WAL bytes"}
}

// count counts the statements of the programs alone. They are complete once a program has ended
// or is idle.
func (t *table) count(ctx context.Context) (func(context.Context) ([]int64, error), error) {
	if t.counted {
		if _, err := t.conn.Exec(ctx, "SELECT pg_stat_statements_reset()"); err != nil {
			return nil, fmt.Errorf("resetting the counters: %w", err)
		}
	}
	before, err := t.written(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) ([]int64, error) {
		wal, err := t.written(ctx)
		if err != nil || !t.counted {
			return []int64{wal - before}, err
		}
		statements, err := t.statements(ctx, "")
		return []int64{wal - before, statements}, err
	}, nil
}

// written is the number of bytes of WAL since the server was made.
func (t *table) written(ctx context.Context) (n int64, err error) {
	if err := t.conn.QueryRow(ctx, "SELECT (pg_current_wal_lsn() - '0/0')::bigint").Scan(&n); err != nil {
		return 0, fmt.Errorf("asking for the WAL position: %w", err)
	}
	return n, nil
}

// statements is how often the programs sent statements that match, since the last reset.
func (t *table) statements(ctx context.Context, pattern string) (n int64, err error) {
	err = t.conn.QueryRow(ctx, "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE userid = $1::regrole AND query ~ $2",
		role, pattern).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting statements: %w", err)
	}
	return n, nil
}
