package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/source"
)

// ReadOverview looks at the tables, from anywhere.
func ReadOverview(ctx context.Context, cfg Config) (*source.Overview, error) {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is left to be lost
	if err := settleQueue(ctx, conn); err != nil {
		return nil, err
	}
	t, err := describe(ctx, conn, cfg)
	if err != nil {
		return nil, err
	}
	leases, err := readLeases(ctx, conn, t)
	if err != nil {
		return nil, fmt.Errorf("reading the lanes: %w", err)
	}
	members, retiring, err := readMembers(ctx, conn, t)
	if err != nil {
		return nil, fmt.Errorf("reading the members: %w", err)
	}
	o := source.NewOverview(t.name.String(), leases, members, retiring)
	if err := countBacklog(ctx, conn, t, o); err != nil {
		return nil, fmt.Errorf("counting the backlog: %w", err)
	}
	return o, nil
}

func readLeases(ctx context.Context, conn *pgx.Conn, t *table) (leases []source.LeaseView, err error) {
	rows, err := conn.Query(ctx, fmt.Sprintf(`SELECT lane, coalesce(owner, ''), epoch, since FROM %s`, t.name.beside(lanesSuffix).sql()))
	if err != nil {
		return nil, err
	}
	var lane int32
	var l source.LeaseView
	_, err = pgx.ForEachRow(rows, []any{&lane, &l.Owner, &l.Epoch, &l.Since}, func() error {
		l.Lane = source.Lane(lane)
		leases = append(leases, l)
		return nil
	})
	return leases, err
}

func readMembers(ctx context.Context, conn *pgx.Conn, t *table) (members []source.MemberView, retiring map[string]bool, err error) {
	rows, err := conn.Query(ctx, fmt.Sprintf(
		`SELECT id, started_at, extract(epoch FROM expires_at - clock_timestamp())::float8, retiring, report FROM %s`,
		t.name.beside(membersSuffix).sql()))
	if err != nil {
		return nil, nil, err
	}
	retiring = make(map[string]bool)
	var m source.MemberView
	var gives bool
	_, err = pgx.ForEachRow(rows, []any{&m.ID, &m.Started, &m.Expires, &gives, &m.Report}, func() error {
		retiring[m.ID] = gives
		members = append(members, m)
		m.Report = nil
		return nil
	})
	return members, retiring, err
}

// countBacklog counts the first rows by lane, and so by owner.
func countBacklog(ctx context.Context, conn *pgx.Conn, t *table, o *source.Overview) error {
	created := "NULL::timestamptz"
	if t.has("created_at") {
		col := pgx.Identifier{t.columns.CreatedAt}.Sanitize()
		created = fmt.Sprintf("CASE WHEN isfinite(%[1]s) THEN %[1]s::timestamptz END", col)
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(
		`SELECT lane, count(*), min(created) FROM (SELECT %s AS lane, %s AS created FROM %s ORDER BY %s LIMIT %d) first GROUP BY lane`,
		newStatements(t).lane(), created, t.name.sql(), pgx.Identifier{t.columns.ID}.Sanitize(), source.BacklogBound+1))
	if err != nil {
		return err
	}
	var lane int32
	var n int
	var oldest *time.Time
	_, err = pgx.ForEachRow(rows, []any{&lane, &n, &oldest}, func() error {
		o.Count(source.Lane(lane), n, oldest)
		return nil
	})
	o.Bound()
	return err
}
