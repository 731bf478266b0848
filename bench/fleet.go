package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// fleetSize is the number of replicas of the idle measurement.
const fleetSize = 4

// replicas are several forwarders on one outbox.
type replicas struct {
	*stage
	settings []string
	procs    []*subject
}

// startReplicas starts n forwarders and returns when they share the lanes.
func (s *stage) startReplicas(ctx context.Context, n int, settings ...string) (_ *replicas, err error) {
	r := &replicas{stage: s, settings: settings}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stopAll())
		}
	}()
	for range n {
		if err := r.add(); err != nil {
			return nil, err
		}
	}
	return r, r.balanced(ctx)
}

func (r *replicas) add() error {
	p, err := r.start("forwarder", r.settings...)
	if err == nil {
		r.procs = append(r.procs, p)
	}
	return err
}

func (r *replicas) stopAll() error {
	var errs []error
	for _, p := range r.procs {
		errs = append(errs, p.stop())
	}
	r.procs = nil
	return errors.Join(errs...)
}

// balanced returns when the replicas, and nobody else, share all lanes fairly.
func (r *replicas) balanced(ctx context.Context) error {
	for {
		for _, p := range r.procs {
			if err := p.alive(); err != nil {
				return err
			}
		}
		var members, unowned, least, most int
		err := r.conn.QueryRow(ctx, `
			WITH shares AS (SELECT count(l.lane) AS n FROM outbox_members m LEFT JOIN outbox_lanes l ON l.owner = m.id GROUP BY m.id)
			SELECT count(*), (SELECT count(*) FROM outbox_lanes) - coalesce(sum(n), 0), coalesce(min(n), 0), coalesce(max(n), 0) FROM shares`,
		).Scan(&members, &unowned, &least, &most)
		if err != nil {
			return fmt.Errorf("looking at the lanes: %w", err)
		}
		if members == len(r.procs) && unowned == 0 && most-least <= 1 {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// cpu is the processor time of all replicas so far.
func (r *replicas) cpu() (sum time.Duration, err error) {
	for _, p := range r.procs {
		used, err := cpuTime(p.cmd.Process.Pid, false)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// changes counts the row versions that were written to the lease tables.
type changes struct {
	heartbeats, lanes int64 // rows written to each of the two tables
	hot               int64 // updates of both that touched no index
}

func (s *stage) changes(ctx context.Context) (c changes, err error) {
	rows, err := s.conn.Query(ctx, `SELECT relname = 'outbox_members', n_tup_ins + n_tup_upd + n_tup_del, n_tup_hot_upd
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

// leasing is the number of statements about the lease tables since the last reset.
func (s *stage) leasing(ctx context.Context) (n int64, err error) {
	err = s.conn.QueryRow(ctx, `SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
		WHERE userid = $1::regrole AND query ~ 'outbox_(members|lanes)'`, role).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting statements: %w", err)
	}
	return n, nil
}

// idleFleet measures what four replicas ask of the database while there is nothing to do.
func (s *stage) idleFleet(ctx context.Context) (err error) {
	if _, err := s.set(ctx); err != nil {
		return err
	}
	r, err := s.startReplicas(ctx, fleetSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stopAll()) }()
	if err := pause(ctx, s.warmUp); err != nil {
		return err
	}
	since, err := s.meter(ctx, nil)
	if err != nil {
		return err
	}
	before, err := s.changes(ctx)
	if err != nil {
		return err
	}
	cpu, err := r.cpu()
	if err != nil {
		return err
	}
	progress("fleet: %d idle replicas for %s", fleetSize, s.idleFor)
	begun := time.Now()
	if err := pause(ctx, s.idleFor); err != nil {
		return err
	}
	took := time.Since(begun)
	used, err := since()
	if err != nil {
		return err
	}
	after, err := s.changes(ctx)
	if err != nil {
		return err
	}
	cpuAfter, err := r.cpu()
	if err != nil {
		return err
	}
	perReplica := func(n int64) float64 { return float64(n) / took.Seconds() / fleetSize }
	fmt.Printf("\nfleet: %d replicas with an empty outbox for %s, default settings; for each replica and second:\n", fleetSize, s.idleFor)
	if s.counted {
		leasing, err := s.leasing(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("statements: %.2f for leases, %.1f in all\n", perReplica(leasing), perReplica(used.statements))
	}
	written := after.heartbeats - before.heartbeats + after.lanes - before.lanes
	fmt.Printf("rows written: %.2f heartbeats, %.2f lanes; %.0f %% of them without touching an index (HOT)\n",
		perReplica(after.heartbeats-before.heartbeats), perReplica(after.lanes-before.lanes), 100*float64(after.hot-before.hot)/float64(max(written, 1)))
	fmt.Printf("CPU of one core: a replica %.2f %%, PostgreSQL for all %.2f %%; WAL %.0f bytes/s for all\n",
		share(cpuAfter-cpu, took)/fleetSize, share(used.postgres, took), float64(used.wal)/took.Seconds())
	return nil
}
