package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/source"
)

// Statements returns what Init runs: it creates the outbox and the tables that the replicas
// share, and the publication for the mode stream, where they do not exist, and never drops or
// alters anything.
func Statements(cfg Config) ([]string, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := cfg.table()
	col := func(name, definition string) string {
		if name == "" {
			return ""
		}
		return fmt.Sprintf("    %s %s,\n", pgx.Identifier{name}.Sanitize(), definition)
	}
	c := cfg.Columns
	columns := col(c.ID, "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY") +
		col(c.Topic, "text NOT NULL") +
		col(c.Key, "text") +
		col(c.Payload, "bytea") +
		col(c.Headers, "jsonb") +
		col(c.CreatedAt, "timestamptz NOT NULL DEFAULT now()")
	members, shares := n.beside(membersSuffix).sql(), n.beside(lanesSuffix).sql()
	var list []string
	if n.schema != "public" {
		list = append(list, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{n.schema}.Sanitize())
	}
	return append(list,
		// Rows come and go: vacuum by a fixed number of dead rows, however large the table is.
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n%s\n) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)",
			n.sql(), strings.TrimSuffix(columns, ",\n")),
		// One row for each replica, rewritten by its heartbeat: room on the page keeps that cheap.
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n    id text PRIMARY KEY,\n    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),\n    expires_at timestamptz NOT NULL,\n    lanes integer NOT NULL,\n    retiring boolean NOT NULL DEFAULT false,\n    exclusive boolean NOT NULL DEFAULT false,\n    report jsonb\n) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)", members),
		// Who owns which lane. The number of rows is the lane count of this outbox.
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n    lane integer PRIMARY KEY,\n    owner text,\n    epoch bigint NOT NULL DEFAULT 0,\n    since timestamptz NOT NULL DEFAULT clock_timestamp()\n) WITH (fillfactor = 50)", shares),
		fmt.Sprintf("INSERT INTO %[1]s (lane) SELECT generate_series(0, %[2]d) WHERE NOT EXISTS (SELECT FROM %[1]s) ON CONFLICT DO NOTHING", shares, cfg.Lanes-1),
		// The durable replication slots, where there are any.
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n    slot text PRIMARY KEY,\n    scanned boolean NOT NULL DEFAULT false,\n    since timestamptz NOT NULL DEFAULT clock_timestamp()\n)", n.beside(slotsSuffix).sql()),
		publicationSQL(cfg),
	), nil
}

// initLock keeps two Inits of one database apart: CREATE ... IF NOT EXISTS is not safe
// against itself.
const initLock = 0x6f7574626f78 // "outbox"

// Init creates what is missing, in one transaction, and checks the result. It is idempotent.
func Init(ctx context.Context, cfg Config) error {
	list, err := Statements(cfg)
	if err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, 2*cfg.Timeout)
	defer cancel()
	conn, err := connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is left to be lost
	n := cfg.table()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(initLock)); err != nil {
			return fmt.Errorf("waiting for another init: %w", err)
		}
		var exists bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", n.schema).Scan(&exists); err != nil {
			return fmt.Errorf("looking for schema %s: %w", n.schema, err)
		}
		for _, sql := range list {
			if exists && strings.HasPrefix(sql, "CREATE SCHEMA") {
				continue // it would ask for a right that nothing else needs
			}
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, sql)
				return err
			})
			if err != nil && sql == publicationSQL(cfg) && !cfg.Stream && sqlState(err) != "" {
				cfg.Logger.Info("the publication was not created, which only the mode stream needs", "publication", cfg.Publication, "err", plain(err))
				continue
			}
			if err != nil {
				return fmt.Errorf("running %.60q: %w", sql, err)
			}
		}
		return nil
	})
	switch {
	case sqlState(err) == insufficientRight:
		return &source.SetupError{Problems: []string{fmt.Sprintf("the tables cannot be created: %s: let a role that owns schema %s run the statements of `forwarder init --print`", plain(err), n.schema)}}
	case err != nil:
		return fmt.Errorf("creating the tables: %w", err)
	}
	if cfg.Stream {
		var level string
		if err := conn.QueryRow(ctx, "SELECT current_setting('wal_level')").Scan(&level); err != nil {
			return fmt.Errorf("looking at wal_level: %w", err)
		}
		if level != "logical" {
			cfg.Logger.Warn("the server's wal_level is not logical yet: set wal_level = logical in postgresql.conf and restart it before streaming", "wal_level", level)
		}
	}
	_, err = describe(ctx, conn, cfg)
	return err
}
