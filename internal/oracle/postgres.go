package oracle

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// postgresDatabase is PostgreSQL. Each use has a connection of its own.
type postgresDatabase struct {
	url    string
	tables Tables
}

func (postgresDatabase) close(context.Context) {}

// quoted is a table name as SQL text.
func quoted(table string) string { return identifier(table).Sanitize() }

func identifier(table string) pgx.Identifier { return strings.Split(table, ".") }

func (d postgresDatabase) createLedger(ctx context.Context) error {
	return withConn(ctx, d.url, func(conn *pgx.Conn) error {
		// Room in the page keeps the updates of a row beside it, without index work.
		_, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+quoted(d.tables.Ledger)+
			" (topic text NOT NULL, key text NOT NULL, seq bigint NOT NULL, PRIMARY KEY (topic, key)) WITH (fillfactor = 50)")
		return err
	})
}

func (d postgresDatabase) readLedger(ctx context.Context) (Ledger, error) {
	ledger := Ledger{}
	return ledger, withConn(ctx, d.url, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT topic, key, seq FROM "+quoted(d.tables.Ledger)+" WHERE seq > 0")
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
}

func (d postgresDatabase) left(ctx context.Context) (n int64, err error) {
	return n, withConn(ctx, d.url, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT count(*) FROM "+quoted(d.tables.Outbox)).Scan(&n)
	})
}

func (d postgresDatabase) preload(ctx context.Context, ledger Ledger, rows iter.Seq[row], perTransaction int) error {
	next, stop := iter.Pull(rows)
	defer stop()
	return withConn(ctx, d.url, func(conn *pgx.Conn) error {
		for more := true; more; {
			n := 0
			_, err := conn.CopyFrom(ctx, identifier(d.tables.Outbox), []string{"topic", "key", "payload"}, pgx.CopyFromFunc(func() ([]any, error) {
				if n == perTransaction {
					return nil, nil
				}
				var r row
				if r, more = next(); !more {
					return nil, nil
				}
				n++
				return []any{r.topic, r.key, r.payload}, nil
			}))
			if err != nil {
				return fmt.Errorf("filling the outbox: %w", err)
			}
		}
		var streams [][]any
		for s, seq := range ledger {
			streams = append(streams, []any{s.Topic, s.Key, seq})
		}
		if _, err := conn.CopyFrom(ctx, identifier(d.tables.Ledger), []string{"topic", "key", "seq"}, pgx.CopyFromRows(streams)); err != nil {
			return fmt.Errorf("filling the ledger: %w", err)
		}
		return nil
	})
}

func withConn(ctx context.Context, url string, f func(*pgx.Conn) error) (err error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return f(conn)
}

// ApplicationName is what the oracle's sessions are called in pg_stat_activity, and its client
// in MongoDB's $currentOp, which tells them from the forwarder's.
const ApplicationName = "oracle"

func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["application_name"] = ApplicationName
	return pgx.ConnectConfig(ctx, cfg)
}

func (postgresDatabase) transient(err error) bool {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return true // the network, or a time-out
	}
	switch refused.Code[:2] {
	case "08", "40", "53", "57", "58": // connection, rollback, resources, operator, system
		return true
	}
	return false
}

func (d postgresDatabase) session(ctx context.Context) (session, error) {
	conn, err := connect(ctx, d.url)
	if err != nil {
		return nil, err
	}
	return &postgresSession{conn: conn, tables: d.tables}, nil
}

type postgresSession struct {
	conn   *pgx.Conn
	tables Tables
}

func (s *postgresSession) turn(ctx context.Context, streams []Stream, count map[Stream]int64) (map[Stream]int64, error) {
	upsert := "INSERT INTO " + quoted(s.tables.Ledger) + " AS l (topic, key, seq) VALUES ($1, $2, $3)" +
		" ON CONFLICT (topic, key) DO UPDATE SET seq = l.seq + excluded.seq RETURNING seq"
	batch := &pgx.Batch{}
	batch.Queue("BEGIN")
	for _, stream := range streams {
		batch.Queue(upsert, stream.Topic, stream.Key, count[stream])
	}
	results := s.conn.SendBatch(ctx, batch)
	_, err := results.Exec()
	sums := map[Stream]int64{}
	for _, stream := range streams {
		if err != nil {
			break
		}
		var seq int64
		err = results.QueryRow().Scan(&seq)
		sums[stream] = seq
	}
	return sums, errors.Join(err, results.Close())
}

func (s *postgresSession) inserts(rows []row) *pgx.Batch {
	insert := "INSERT INTO " + quoted(s.tables.Outbox) + " (topic, key, payload) VALUES ($1, $2, $3)"
	batch := &pgx.Batch{}
	for _, r := range rows {
		batch.Queue(insert, r.topic, r.key, r.payload)
	}
	return batch
}

func (s *postgresSession) insert(ctx context.Context, rows []row) error {
	return s.conn.SendBatch(ctx, s.inserts(rows)).Close()
}

func (s *postgresSession) end(ctx context.Context, rows []row, commit bool) error {
	ending := "ROLLBACK"
	if commit {
		ending = "COMMIT"
	}
	batch := s.inserts(rows)
	batch.Queue(ending)
	results := s.conn.SendBatch(ctx, batch)
	var tag pgconn.CommandTag
	var err error
	for range batch.Len() {
		if tag, err = results.Exec(); err != nil {
			break
		}
	}
	if err := errors.Join(err, results.Close()); err != nil {
		return err
	}
	if tag.String() != ending {
		return fmt.Errorf("the %s was answered with %s", ending, tag)
	}
	return nil
}

func (s *postgresSession) close(ctx context.Context) {
	// An error here says no more than that the connection is gone, which is what is wanted.
	_ = s.conn.Close(ctx)
}
