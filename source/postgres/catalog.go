package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// resolve returns the layout of a table of the log, nil for one that is neither the outbox nor
// a partition of it.
func (s *Source) resolve(ctx context.Context, rel relationMessage) (*layout, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if rel.name != s.cfg.table() {
		var part bool
		err := s.pool.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, pg_partition_tree(c.oid) part
			               WHERE n.nspname = $1 AND c.relname = $2 AND part.relid = $3)`, s.cfg.Schema, s.cfg.Table, rel.id).Scan(&part)
		if err != nil {
			return nil, fmt.Errorf("looking whether %s is a partition: %w", rel.name, err)
		}
		if !part {
			return nil, nil
		}
	}
	base := func(oid uint32) (uint32, error) {
		err := s.pool.QueryRow(ctx, `
			WITH RECURSIVE base AS (
				SELECT oid, typbasetype FROM pg_type WHERE oid = $1
				UNION ALL SELECT y.oid, y.typbasetype FROM base b JOIN pg_type y ON y.oid = b.typbasetype)
			SELECT oid FROM base WHERE typbasetype = 0`, oid).Scan(&oid)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return 0, fmt.Errorf("looking at the types of %s: %w", rel.name, err)
		}
		return oid, nil
	}
	l, err := newLayout(s.cfg.Columns, rel, base)
	if err != nil {
		return nil, err
	}
	if l.at[colCreated] >= 0 && l.types[colCreated] != pgtype.TimestamptzOID {
		if l.zone, err = s.zone(ctx); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// zone is where times without a zone are understood to be: the sessions' own.
func (s *Source) zone(ctx context.Context) (*time.Location, error) {
	var name string
	var offset int
	err := s.pool.QueryRow(ctx, `SELECT current_setting('TimeZone'), extract(timezone FROM clock_timestamp())::int`).Scan(&name, &offset)
	if err != nil {
		return nil, fmt.Errorf("asking for the time zone: %w", err)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return time.FixedZone(name, offset), nil // a zone by its offset
	}
	return zone, nil
}

// blocker is a transaction whose end a session waits for.
type blocker struct {
	pid                int // 0 for a prepared transaction
	xid                string
	age                time.Duration
	application, state string
}

func (b *blocker) String() string {
	return fmt.Sprintf("transaction %s of process %d (%s, %s), open for %v", b.xid, b.pid, b.application, b.state, b.age.Round(time.Second))
}

// blocker returns what a session waits for, nil where it waits for no transaction.
func (s *Source) blocker(ctx context.Context, pid uint32) (*blocker, error) {
	b := &blocker{}
	var seconds float64
	err := s.pool.QueryRow(ctx, `
		SELECT coalesce(a.pid, 0), w.transactionid::text, coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)), 0)::float8,
		       coalesce(a.application_name, ''), coalesce(a.state, 'prepared as ' || p.gid, '')
		FROM pg_locks w
		LEFT JOIN pg_locks h ON h.locktype = 'transactionid' AND h.transactionid = w.transactionid AND h.granted
		LEFT JOIN pg_stat_activity a ON a.pid = h.pid
		LEFT JOIN pg_prepared_xacts p ON p.transaction = w.transactionid
		WHERE w.pid = $1 AND w.locktype = 'transactionid' AND NOT w.granted LIMIT 1`, int(pid),
	).Scan(&b.pid, &b.xid, &seconds, &b.application, &b.state)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b.age = time.Duration(seconds * float64(time.Second))
	return b, nil
}

// SlotLag is how far a slot is behind.
type SlotLag struct {
	// Retained is how much log the server keeps for the slot, in bytes, and Unconfirmed how much
	// of that is not confirmed.
	Retained, Unconfirmed int64
}

// slotLag asks the server for the lag of a slot.
func (s *Source) slotLag(ctx context.Context, slot string) (lag SlotLag, err error) {
	err = s.pool.QueryRow(ctx, `
		SELECT coalesce(pg_current_wal_lsn() - restart_lsn, 0)::bigint, coalesce(pg_current_wal_lsn() - confirmed_flush_lsn, 0)::bigint
		FROM pg_replication_slots WHERE slot_name = $1`, slot).Scan(&lag.Retained, &lag.Unconfirmed)
	return lag, err
}
