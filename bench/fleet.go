package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// fleetSize is the number of replicas of the idle measurement.
const fleetSize = 4

// startFleet starts n forwarders on the table and returns when they share the lanes.
func (s *stage) startFleet(ctx context.Context, t *table, n int, settings ...string) (*replicas, error) {
	r, err := s.start(t, modes[t.name()][0], n, settings...)
	if err != nil {
		return nil, err
	}
	if err := t.balanced(ctx, r); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

// balanced returns when the replicas, and nobody else, share all lanes fairly.
func (t *table) balanced(ctx context.Context, r *replicas) error {
	return await(ctx, r, func(ctx context.Context) (bool, error) {
		var members, unowned, least, most int
		err := t.conn.QueryRow(ctx, `
			WITH shares AS (SELECT count(l.lane) AS n FROM outbox_members m LEFT JOIN outbox_lanes l ON l.owner = m.id GROUP BY m.id)
			SELECT count(*), (SELECT count(*) FROM outbox_lanes) - coalesce(sum(n), 0), coalesce(min(n), 0), coalesce(max(n), 0) FROM shares`,
		).Scan(&members, &unowned, &least, &most)
		if err != nil {
			return false, fmt.Errorf("looking at the lanes: %w", err)
		}
		return members == len(r.procs) && unowned == 0 && most-least <= 1, nil
	})
}

// changes counts the row versions that were written to the lease tables.
type changes struct {
	heartbeats, lanes int64 // rows written to each of the two tables
	hot               int64 // updates of both that touched no index
}

func (t *table) changes(ctx context.Context) (c changes, err error) {
	rows, err := t.conn.Query(ctx, `SELECT relname = 'outbox_members', n_tup_ins + n_tup_upd + n_tup_del, n_tup_hot_upd
		FROM pg_stat_user_tables WHERE relname IN ('outbox_members', 'outbox_lanes')`)
	if err != nil {
		return c, fmt.Errorf("counting writes: %w", err)
	}
	var members bool
	var written, hot int64
	_, err = pgx.ForEachRow(rows, []any{&members, &written, &hot}, func() error {
		if members {
			c.heartbeats = written
		} else {
			c.lanes = written
		}
		c.hot += hot
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("counting writes: %w", err)
	}
	return c, nil
}

// idleFleet measures what four replicas ask of the database while there is nothing to do.
func (s *stage) idleFleet(ctx context.Context, t *table) (err error) {
	if _, err := s.set(ctx, t, modes[t.name()][0]); err != nil {
		return err
	}
	r, err := s.startFleet(ctx, t, fleetSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	// The server counts a write a second after it at the latest; those of the moves are not meant.
	if err := pause(ctx, s.warmUp); err != nil {
		return err
	}
	before, err := t.changes(ctx)
	if err != nil {
		return err
	}
	progress("fleet: %d idle replicas for %s", fleetSize, s.idleFor)
	_, used, err := s.measure(ctx, t, r, nil, s.idleFor)
	if err != nil {
		return err
	}
	after, err := t.changes(ctx)
	if err != nil {
		return err
	}
	perReplica := func(n int64) float64 { return float64(n) / used.took.Seconds() / fleetSize }
	fmt.Printf("\nfleet: %d replicas with an empty outbox for %s, default settings; for each replica and second:\n", fleetSize, s.idleFor)
	wal := used.counts[0]
	if t.counted {
		leasing, err := t.statements(ctx, "outbox_(members|lanes)")
		if err != nil {
			return err
		}
		fmt.Printf("statements: %.2f for leases, %.1f in all\n", perReplica(leasing), perReplica(used.counts[1]))
	}
	written := after.heartbeats - before.heartbeats + after.lanes - before.lanes
	fmt.Printf("rows written: %.2f heartbeats, %.2f lanes; %.0f %% of them without touching an index (HOT)\n",
		perReplica(after.heartbeats-before.heartbeats), perReplica(after.lanes-before.lanes), 100*float64(after.hot-before.hot)/float64(max(written, 1)))
	fmt.Printf("CPU of one core: a replica %.2f %%, PostgreSQL for all %.2f %%; WAL %.0f bytes/s for all\n",
		share(used.subject, used.took)/fleetSize, share(used.database, used.took), float64(wal)/used.took.Seconds())
	return nil
}
