package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-forwarder/forwarder/source"
)

// table is the outbox as the server describes it.
type table struct {
	name    name
	columns Columns
	types   map[string]columnType // by Columns field
	lanes   int
	marks   bool // the role may mark transactions by a lock, and see the marks
}

type columnType struct {
	oid  uint32 // the base type, for a domain
	name string // as format_type prints it
}

func (t *table) has(field string) bool { return t.types[field].oid != 0 }

// The types that each column may have. Key types go out by their text form.
var columnTypes = map[string][]uint32{
	"id":         {pgtype.Int8OID, pgtype.Int4OID, pgtype.Int2OID},
	"topic":      {pgtype.TextOID, pgtype.VarcharOID, pgtype.BPCharOID, pgtype.NameOID},
	"key":        {pgtype.TextOID, pgtype.VarcharOID, pgtype.BPCharOID, pgtype.UUIDOID, pgtype.Int8OID, pgtype.Int4OID, pgtype.Int2OID, pgtype.NumericOID},
	"payload":    {pgtype.ByteaOID, pgtype.TextOID, pgtype.VarcharOID, pgtype.JSONOID, pgtype.JSONBOID},
	"headers":    {pgtype.JSONBOID, pgtype.JSONOID, pgtype.TextOID, pgtype.VarcharOID},
	"created_at": {pgtype.TimestamptzOID, pgtype.TimestampOID, pgtype.DateOID},
}

var typeWords = map[string]string{
	"id":         "bigint, integer or smallint",
	"topic":      "text, varchar or char",
	"key":        "text, varchar, char, uuid, bigint, integer, smallint or numeric",
	"payload":    "bytea, text, varchar, json or jsonb",
	"headers":    "jsonb, json, text or varchar",
	"created_at": "timestamptz, timestamp or date",
}

// minVersion is the oldest server that is supported: older ones have reached their end of
// life, and search a list of excluded ids one by one.
const minVersion = 150000

// describe looks at the server and the outbox, and returns a source.SetupError with everything that
// keeps it from being forwarded.
func describe(ctx context.Context, conn *pgx.Conn, cfg Config) (*table, error) {
	n := cfg.table()
	t := &table{name: n, columns: cfg.Columns, types: make(map[string]columnType)}
	var problems []string
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }

	var version int
	var standby bool
	var kind, persistence, user string
	var mayEnter, mayRead, mayDelete bool
	err := conn.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_user,
		       coalesce(c.relkind::text, ''), coalesce(c.relpersistence::text, ''), coalesce(has_schema_privilege(n.oid, 'USAGE'), true),
		       coalesce(has_table_privilege(c.oid, 'SELECT'), false), coalesce(has_table_privilege(c.oid, 'DELETE'), false),
		       has_table_privilege('pg_catalog.pg_locks', 'SELECT') AND has_function_privilege('pg_catalog.pg_lock_status()', 'EXECUTE') AND
		       has_function_privilege('pg_catalog.pg_try_advisory_xact_lock_shared(int, int)', 'EXECUTE')
		FROM (SELECT 1) one
		LEFT JOIN pg_namespace n ON n.nspname = $1
		LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = $2`, n.schema, n.table,
	).Scan(&version, &standby, &user, &kind, &persistence, &mayEnter, &mayRead, &mayDelete, &t.marks)
	if err != nil {
		return nil, fmt.Errorf("looking for table %s: %w", n, err)
	}
	if version < minVersion {
		problem("the server is PostgreSQL %d: version %d or newer is needed", version/10000, minVersion/10000)
	}
	if standby {
		problem("the server is a standby, and delivered rows must be deleted: let source.postgres.url name the primary (or add target_session_attrs=read-write to it)")
	}
	if !mayEnter {
		problem("role %s may not use schema %s: GRANT USAGE ON SCHEMA %s TO %s", user, n.schema, pgx.Identifier{n.schema}.Sanitize(), pgx.Identifier{user}.Sanitize())
	}
	switch kind {
	case "r", "p":
		if !mayRead || !mayDelete {
			problem("role %s may not read and delete table %s: GRANT SELECT, DELETE ON %s TO %s", user, n, n.sql(), pgx.Identifier{user}.Sanitize())
		}
		if persistence == "u" {
			cfg.Logger.Warn("the outbox is an unlogged table: a crash of the server empties it, delivered or not", "table", n.String())
		}
		found, err := t.describeColumns(ctx, conn)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	case "":
		problem("there is no table %s: create it with `forwarder init`, or name another one with source.postgres.table", n)
	default:
		problem("%s is not a table: name the outbox table with source.postgres.table", n)
	}
	found, err := t.describeLeases(ctx, conn, user, mayEnter)
	if err != nil {
		return nil, err
	}
	if problems = append(problems, found...); len(problems) > 0 {
		return nil, &source.SetupError{Problems: problems}
	}
	return t, nil
}

// describeLeases looks at the tables beside the outbox, and learns the lane count.
func (t *table) describeLeases(ctx context.Context, conn *pgx.Conn, user string, mayEnter bool) (problems []string, err error) {
	members, shares := t.name.beside(membersSuffix), t.name.beside(lanesSuffix)
	for _, own := range []struct {
		name   name
		rights string
	}{
		{members, "SELECT, INSERT, UPDATE, DELETE"},
		{shares, "SELECT, UPDATE"},
	} {
		var exists, may bool
		err := conn.QueryRow(ctx, `
			SELECT c.oid IS NOT NULL,
			       coalesce((SELECT bool_and(has_table_privilege(c.oid, r)) FROM unnest(string_to_array($3::text, ', ')) r), false)
			FROM (SELECT 1) one
			LEFT JOIN pg_namespace n ON n.nspname = $1
			LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = $2`, own.name.schema, own.name.table, own.rights).Scan(&exists, &may)
		switch {
		case err != nil:
			return nil, fmt.Errorf("looking for table %s: %w", own.name, err)
		case !exists:
			problems = append(problems, fmt.Sprintf("there is no table %s, which replicas share: create it with `forwarder init`", own.name))
		case !may:
			problems = append(problems, fmt.Sprintf("role %s may not use table %s: GRANT %s ON %s TO %s",
				user, own.name, own.rights, own.name.sql(), pgx.Identifier{user}.Sanitize()))
		}
	}
	if len(problems) > 0 || !mayEnter {
		return problems, nil
	}
	var complete bool
	if err := conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'exclusive' AND NOT attisdropped)`,
		members.sql()).Scan(&complete); err != nil {
		return nil, fmt.Errorf("looking at table %s: %w", members, err)
	}
	if !complete {
		problems = append(problems, fmt.Sprintf("table %s was made by an earlier version: ALTER TABLE %s ADD COLUMN exclusive boolean NOT NULL DEFAULT false", members, members.sql()))
	}
	var low, high int
	if err := conn.QueryRow(ctx, fmt.Sprintf(`SELECT count(*), coalesce(min(lane), 0), coalesce(max(lane), 0) FROM %s`, shares.sql())).Scan(&t.lanes, &low, &high); err != nil {
		return nil, fmt.Errorf("counting the lanes: %w", err)
	}
	if low != 0 || high != t.lanes-1 || t.lanes&(t.lanes-1) != 0 || t.lanes > 1<<15 {
		problems = append(problems, fmt.Sprintf("table %s has %d lanes from %d to %d: there must be a power of two of them, from 0 on; without running replicas, empty it and run `forwarder init`",
			shares, t.lanes, low, high))
	}
	return problems, nil
}

// describeColumns fills in the column types and returns what is wrong with the columns.
func (t *table) describeColumns(ctx context.Context, conn *pgx.Conn) (problems []string, err error) {
	rows, err := conn.Query(ctx, `
		SELECT a.attname, (
		           WITH RECURSIVE base AS (
		               SELECT oid, typbasetype FROM pg_type WHERE oid = a.atttypid
		               UNION ALL SELECT y.oid, y.typbasetype FROM base b JOIN pg_type y ON y.oid = b.typbasetype)
		           SELECT oid FROM base WHERE typbasetype = 0), format_type(a.atttypid, a.atttypmod),
		       EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisvalid AND i.indkey[0] = a.attnum
		               AND i.indpred IS NULL AND (i.indisunique AND i.indnkeyatts = 1 OR c.relkind = 'p'))
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped`,
		t.name.schema, t.name.table)
	if err != nil {
		return nil, fmt.Errorf("describing table %s: %w", t.name, err)
	}
	type found struct {
		columnType
		indexed bool // by a unique index of its own; a partitioned table can only have it first in an index
	}
	columns := make(map[string]found)
	for rows.Next() {
		var col string
		var f found
		if err := rows.Scan(&col, &f.oid, &f.name, &f.indexed); err != nil {
			return nil, fmt.Errorf("describing table %s: %w", t.name, err)
		}
		columns[col] = f
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("describing table %s: %w", t.name, err)
	}
	for _, col := range t.columns.list() {
		if col.name == "" {
			continue
		}
		f, ok := columns[col.name]
		if !ok {
			hint := fmt.Sprintf("add it, or name another one with source.postgres.columns.%s", col.field)
			if col.optional {
				hint += " (none where there is no such column)"
			}
			problems = append(problems, fmt.Sprintf("table %s has no column %q: %s", t.name, col.name, hint))
			continue
		}
		if !slices.Contains(columnTypes[col.field], f.oid) {
			problems = append(problems, fmt.Sprintf("column %q of table %s has type %s: as %s it must be %s", col.name, t.name, f.name, col.field, typeWords[col.field]))
			continue
		}
		if col.field == "id" && !f.indexed {
			problems = append(problems, fmt.Sprintf("column %q of table %s has no unique index of its own: ALTER TABLE %s ADD PRIMARY KEY (%s)",
				col.name, t.name, t.name.sql(), pgx.Identifier{col.name}.Sanitize()))
		}
		t.types[col.field] = f.columnType
	}
	return problems, nil
}
