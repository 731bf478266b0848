package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// publicationSQL creates the publication of the outbox where it does not exist: inserts only,
// and those of a partition under the table's own name.
func publicationSQL(cfg Config) string {
	body := fmt.Sprintf(`BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_publication WHERE pubname = %s) THEN
        CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true);
    END IF;
END`, literal(cfg.Publication), pgx.Identifier{cfg.Publication}.Sanitize(), cfg.table().sql())
	tag := "$init$"
	for strings.Contains(body, tag) {
		tag = "$x" + tag[1:]
	}
	return "DO " + tag + " " + body + " " + tag
}

// literal quotes a text for SQL.
func literal(text string) string {
	quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if strings.Contains(text, `\`) {
		quoted = "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// rower is a session or a pool.
type rower interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// publicationProblems says what keeps the publication from telling of every new row.
func publicationProblems(ctx context.Context, db rower, cfg Config) ([]string, error) {
	n, publication := cfg.table(), pgx.Identifier{cfg.Publication}.Sanitize()
	var database string
	var exists, inserts, viaRoot bool
	err := db.QueryRow(ctx, `
		SELECT current_database(), p.oid IS NOT NULL, coalesce(p.pubinsert, false), coalesce(p.pubviaroot, false)
		FROM (SELECT 1) one LEFT JOIN pg_publication p ON p.pubname = $1`, cfg.Publication).Scan(&database, &exists, &inserts, &viaRoot)
	if err != nil {
		return nil, fmt.Errorf("looking for publication %s: %w", cfg.Publication, err)
	}
	if !exists {
		return []string{fmt.Sprintf("there is no publication %s in database %s: create it with `forwarder init`, or name another one with source.postgres.publication",
			publication, database)}, nil
	}
	var problems []string
	if !inserts {
		problems = append(problems, fmt.Sprintf("publication %s does not publish inserts: ALTER PUBLICATION %[1]s SET (publish = 'insert')", publication))
	}
	tables, err := published(ctx, db, cfg, viaRoot)
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		switch {
		case !t.listed && t.name == n:
			problems = append(problems, fmt.Sprintf("%s is not in publication %s: ALTER PUBLICATION %[2]s ADD TABLE %s", n, publication, n.sql()))
		case !t.listed:
			problems = append(problems, fmt.Sprintf("partition %s is not in publication %s: ALTER PUBLICATION %[2]s SET (publish_via_partition_root = true), with %s in it", t.name, publication, n))
		case t.filtered:
			problems = append(problems, fmt.Sprintf("publication %s leaves out rows of %s by a filter: ALTER PUBLICATION %[1]s DROP TABLE %[3]s; ALTER PUBLICATION %[1]s ADD TABLE %[3]s",
				publication, t.name, t.name.sql()))
		}
		for _, col := range cfg.Columns.list() {
			if t.listed && col.name != "" && slices.Contains(t.lacks, col.name) {
				problems = append(problems, fmt.Sprintf("publication %s leaves out column %q of %s: ALTER PUBLICATION %[1]s DROP TABLE %[4]s; ALTER PUBLICATION %[1]s ADD TABLE %[4]s (a generated column cannot be streamed)",
					publication, col.name, t.name, t.name.sql()))
			}
		}
	}
	return problems, nil
}

// publishedTable is the outbox or a partition of it as a publication has it.
type publishedTable struct {
	name     name
	listed   bool
	filtered bool
	lacks    []string // columns that do not come
}

// published looks at the tables whose rows are the outbox's: itself, or without the root's
// name for all, its partitions.
func published(ctx context.Context, db rower, cfg Config, viaRoot bool) ([]publishedTable, error) {
	rows, err := db.Query(ctx, `
		WITH outbox AS (
			SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2),
		expected AS (
			SELECT oid FROM outbox WHERE relkind = 'r' OR $4
			UNION SELECT leaf.relid FROM outbox, pg_partition_tree(outbox.oid) leaf WHERE leaf.isleaf AND relkind = 'p' AND NOT $4)
		SELECT n.nspname, c.relname, p.tablename IS NOT NULL, p.rowfilter IS NOT NULL,
		       coalesce(ARRAY(SELECT a.attname::text FROM pg_attribute a
		                      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND p.tablename IS NOT NULL
		                        AND (a.attname <> ALL (p.attnames) OR a.attgenerated <> '' AND current_setting('server_version_num')::int < 180000)), '{}')
		FROM expected JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN pg_publication_tables p ON p.pubname = $3 AND p.schemaname = n.nspname AND p.tablename = c.relname
		ORDER BY 1, 2`, cfg.Schema, cfg.Table, cfg.Publication, viaRoot)
	if err != nil {
		return nil, fmt.Errorf("looking at publication %s: %w", cfg.Publication, err)
	}
	tables, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t publishedTable, err error) {
		return t, row.Scan(&t.name.schema, &t.name.table, &t.listed, &t.filtered, &t.lacks)
	})
	if err != nil {
		return nil, fmt.Errorf("looking at publication %s: %w", cfg.Publication, err)
	}
	return tables, nil
}
