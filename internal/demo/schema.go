package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	schemaName = "forwarder_demo"
	// schemaMark is the schema's comment, by which a demo knows what a demo made.
	schemaMark = "made by forwarder demo, and removed by it"
)

// schema is the demo's own place in a database of the user's. The connection holds a lock for
// as long as the demo lives, which tells a schema in use from one that a killed demo left.
type schema struct {
	url  string
	lock *pgx.Conn
	// replaced says that a killed demo's schema was removed first.
	replaced bool
}

// Errors of claimSchema.
var (
	errDemoRunning = errors.New("another demo is running in this database: wait for its end, or use another database")
	errForeign     = errors.New("the database has a schema " + schemaName + " that no demo made: the demo will not touch it; rename it, or use another database")
)

// claimSchema makes the schema. It fails where another demo runs or where the name is taken.
func claimSchema(ctx context.Context, url string) (_ *schema, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
		}
	}()
	var ours bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", schemaName).Scan(&ours); err != nil {
		return nil, fmt.Errorf("locking schema %s: %w", schemaName, err)
	}
	if !ours {
		return nil, errDemoRunning
	}
	s := &schema{url: url, lock: conn}
	var mark string
	err = conn.QueryRow(ctx, "SELECT coalesce(obj_description(oid, 'pg_namespace'), '') FROM pg_namespace WHERE nspname = $1", schemaName).Scan(&mark)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
	case err != nil:
		return nil, fmt.Errorf("looking for schema %s: %w", schemaName, err)
	case mark != schemaMark:
		return nil, errForeign
	default:
		if err := dropSchema(ctx, conn); err != nil {
			return nil, err
		}
		s.replaced = true
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "CREATE SCHEMA "+schemaName+"; COMMENT ON SCHEMA "+schemaName+" IS '"+schemaMark+"'")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("creating schema %s: %w", schemaName, err)
	}
	return s, nil
}

// remove drops the schema and releases the lock. It connects anew: the database may have been
// restarted during the demo.
func (s *schema) remove(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.lock.Close(ctx)) }()
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("removing schema %s: %w", schemaName, err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	return dropSchema(ctx, conn)
}

// dropSchema drops the tables in the schema and the schema, without CASCADE: where something
// of the user's has come to depend on them, it stays and the error names it.
func dropSchema(ctx context.Context, conn *pgx.Conn) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT tablename FROM pg_tables WHERE schemaname = $1", schemaName)
		if err != nil {
			return err
		}
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, table := range tables {
			if _, err := tx.Exec(ctx, "DROP TABLE "+pgx.Identifier{schemaName, table}.Sanitize()); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, "DROP SCHEMA "+schemaName)
		return err
	})
	if err != nil {
		return fmt.Errorf("removing schema %s: %w", schemaName, err)
	}
	return nil
}
