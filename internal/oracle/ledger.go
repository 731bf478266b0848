package oracle

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Stream names an ordered sequence of events.
type Stream struct{ Topic, Key string }

// Ledger says how many events of each stream were committed: exactly those numbered 1 to the
// value.
type Ledger map[Stream]int64

// Events is the number of events in the ledger.
func (l Ledger) Events() int64 {
	var sum int64
	for _, n := range l {
		sum += n
	}
	return sum
}

// Tables names the two tables of a workload, each as `table` or `schema.table`.
type Tables struct {
	Outbox string // default public.outbox
	Ledger string // default public.oracle_ledger
}

func (t Tables) withDefaults() Tables {
	if t.Outbox == "" {
		t.Outbox = "public.outbox"
	}
	if t.Ledger == "" {
		t.Ledger = "public.oracle_ledger"
	}
	return t
}

// quoted is a table name as SQL text.
func quoted(table string) string { return identifier(table).Sanitize() }

func identifier(table string) pgx.Identifier { return strings.Split(table, ".") }

// CreateLedger creates the ledger table where there is none. The row of a stream is also the
// lock by which its writers take turns.
func CreateLedger(ctx context.Context, url string, tables Tables) error {
	return withConn(ctx, url, func(conn *pgx.Conn) error {
		// Room in the page keeps the updates of a row beside it, without index work.
		_, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+quoted(tables.withDefaults().Ledger)+
			" (topic text NOT NULL, key text NOT NULL, seq bigint NOT NULL, PRIMARY KEY (topic, key)) WITH (fillfactor = 50)")
		if err != nil {
			return fmt.Errorf("creating the ledger: %w", err)
		}
		return nil
	})
}

// ReadLedger reads what has been committed.
func ReadLedger(ctx context.Context, url string, tables Tables) (Ledger, error) {
	ledger := Ledger{}
	err := withConn(ctx, url, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT topic, key, seq FROM "+quoted(tables.withDefaults().Ledger)+" WHERE seq > 0")
		if err != nil {
			return err
		}
		var s Stream
		var seq int64
		_, err = pgx.ForEachRow(rows, []any{&s.Topic, &s.Key, &seq}, func() error {
			ledger[s] = seq
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	return ledger, nil
}

// Left counts the rows in the outbox.
func Left(ctx context.Context, url string, tables Tables) (int64, error) {
	var n int64
	err := withConn(ctx, url, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT count(*) FROM "+quoted(tables.withDefaults().Outbox)).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("counting the outbox: %w", err)
	}
	return n, nil
}

func withConn(ctx context.Context, url string, f func(*pgx.Conn) error) (err error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return f(conn)
}

// ApplicationName is what the oracle's sessions are called in pg_stat_activity, which tells
// them from the forwarder's.
const ApplicationName = "oracle"

func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["application_name"] = ApplicationName
	return pgx.ConnectConfig(ctx, cfg)
}
