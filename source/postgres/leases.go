package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// Leases are the members and lanes tables beside the outbox. They have a connection of their
// own, which no other work can keep busy. The calls are serial.
//
// A member is dead when its row is gone, and nothing else makes it so: the row lock decides
// between a renewal and the delete of an overdue row, each by the server's clock at the
// moment it holds the lock.
type Leases struct {
	cfg            Config
	members, lanes string
	conn           *pgx.Conn
	ttl            time.Duration // of the last Join or Round
}

var _ lanes.Leases = (*Leases)(nil)

// NewLeases returns the leases of the outbox. It connects when it is first used.
func NewLeases(cfg Config) *Leases {
	cfg = cfg.withDefaults()
	n := cfg.table()
	return &Leases{cfg: cfg, members: n.beside(membersSuffix).sql(), lanes: n.beside(lanesSuffix).sql()}
}

// The tables beside the outbox are named after it.
const (
	membersSuffix = "_members"
	lanesSuffix   = "_lanes"
)

// Close closes the connection.
func (l *Leases) Close() {
	if l.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.conn.Close(ctx) // nothing is left to be lost
		l.conn = nil
	}
}

// with runs do on the connection, which it replaces after any error: a call whose deadline has
// passed leaves it in an unknown state.
func (l *Leases) with(ctx context.Context, do func(*pgx.Conn) error) error {
	if l.conn == nil {
		conn, err := connect(ctx, l.cfg)
		if err != nil {
			return err
		}
		l.conn = conn
	}
	err := do(l.conn)
	if err != nil {
		l.Close()
	}
	return err
}

// Join implements lanes.Leases.
func (l *Leases) Join(ctx context.Context, me lanes.Member, ttl time.Duration) error {
	l.ttl = ttl
	return l.with(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf(
			`INSERT INTO %s (id, lanes, exclusive, expires_at) VALUES ($1, $2, $3, clock_timestamp() + $4::bigint * interval '1 microsecond')`, l.members),
			me.ID, me.Lanes, me.Exclusive, ttl.Microseconds())
		return err
	})
}

// Round implements lanes.Leases. It is one statement, and one more for each member that looks
// overdue. Looking decides nothing.
func (l *Leases) Round(ctx context.Context, me lanes.Member, ttl time.Duration, report []byte) (table lanes.Table, alive bool, err error) {
	l.ttl = ttl
	err = l.with(ctx, func(conn *pgx.Conn) error {
		var text *string
		if report != nil {
			text = new(string(report))
		}
		var renewed int
		var ids, owners []string
		var retiring, exclusive, overdue []bool
		var started []time.Time
		var numbers, counts []int32
		var epochs []int64
		err := conn.QueryRow(ctx, fmt.Sprintf(`
			WITH renewed AS (
				UPDATE %[1]s SET expires_at = clock_timestamp() + $2::bigint * interval '1 microsecond', retiring = $3, report = coalesce($4::text::jsonb, report)
				WHERE id = $1 RETURNING id)
			SELECT (SELECT count(*) FROM renewed), m.*, s.*
			FROM (SELECT array_agg(id), array_agg(retiring OR id = $1 AND $3), array_agg(exclusive), array_agg(started_at), array_agg(expires_at <= clock_timestamp() AND id <> $1), array_agg(lanes) FROM %[1]s) m,
			     (SELECT array_agg(lane), array_agg(coalesce(owner, '')), array_agg(epoch) FROM %[2]s) s`, l.members, l.lanes),
			me.ID, ttl.Microseconds(), me.Retiring, text,
		).Scan(&renewed, &ids, &retiring, &exclusive, &started, &overdue, &counts, &numbers, &owners, &epochs)
		if err != nil {
			return err
		}
		alive = renewed == 1
		for i, id := range ids {
			if overdue[i] {
				gone, err := l.bury(ctx, conn, id)
				if err != nil {
					return err
				}
				if gone {
					continue
				}
			}
			table.Members = append(table.Members, lanes.Member{
				ID: id, Retiring: retiring[i], Exclusive: exclusive[i], Lanes: int(counts[i]), Started: started[i],
			})
		}
		for i, n := range numbers {
			table.Leases = append(table.Leases, lanes.Lease{Lane: source.Lane(n), Owner: owners[i], Epoch: epochs[i]})
		}
		slices.SortFunc(table.Leases, func(a, b lanes.Lease) int { return int(a.Lane) - int(b.Lane) })
		return nil
	})
	return table, alive, err
}

// bury removes a member whose lease has ended, and reports whether it did. It does not wait for
// whoever has locked the row, which may be a renewal: our own lease would suffer for it.
func (l *Leases) bury(ctx context.Context, conn *pgx.Conn, id string) (gone bool, err error) {
	tag, err := conn.Exec(ctx, fmt.Sprintf(`
		DELETE FROM %[1]s WHERE id = (SELECT id FROM %[1]s WHERE id = $1 AND expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED)`, l.members), id)
	if err != nil {
		return false, fmt.Errorf("removing the overdue member %s: %w", id, err)
	}
	if tag.RowsAffected() == 1 {
		l.cfg.Logger.Warn("a member has not renewed its lease and is removed: its lanes are free", "member", id)
	}
	return tag.RowsAffected() == 1, nil
}

// Take implements lanes.Leases. The rows are locked in one order for all replicas, and in a step of
// its own: as a plain sub-select it is run once for each lane where the statistics are from a time
// when no lane had an owner.
func (l *Leases) Take(ctx context.Context, me string, want []lanes.Lease) (got []lanes.Lease, err error) {
	numbers, epochs := columnsOf(want)
	err = l.with(ctx, func(conn *pgx.Conn) error {
		got = nil
		rows, err := conn.Query(ctx, fmt.Sprintf(`
			WITH w AS MATERIALIZED (
				SELECT x.lane, w.epoch FROM unnest($2::int[], $3::bigint[]) w(lane, epoch) JOIN %[1]s x USING (lane)
				ORDER BY x.lane FOR UPDATE OF x)
			UPDATE %[1]s l SET owner = $1, epoch = l.epoch + 1, since = clock_timestamp() FROM w
			WHERE l.lane = w.lane AND l.epoch = w.epoch
			  AND (l.owner IS NULL OR NOT EXISTS (SELECT FROM %[2]s m WHERE m.id = l.owner))
			  AND EXISTS (SELECT FROM %[2]s m WHERE m.id = $1)
			  AND (l.epoch > 0 OR l.since <= clock_timestamp() - $4::bigint * interval '1 microsecond'
			       OR NOT EXISTS (SELECT FROM %[2]s m WHERE m.id <> $1 AND m.started_at <= l.since))
			RETURNING l.lane, l.epoch`, l.lanes, l.members), me, numbers, epochs, l.ttl.Microseconds())
		if err != nil {
			return err
		}
		var n int32
		var epoch int64
		_, err = pgx.ForEachRow(rows, []any{&n, &epoch}, func() error {
			got = append(got, lanes.Lease{Lane: source.Lane(n), Owner: me, Epoch: epoch})
			return nil
		})
		return err
	})
	return got, err
}

// Release implements lanes.Leases.
func (l *Leases) Release(ctx context.Context, me string, done []lanes.Lease) error {
	if len(done) == 0 {
		return nil
	}
	numbers, epochs := columnsOf(done)
	return l.with(ctx, func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, fmt.Sprintf(`
			WITH w AS MATERIALIZED (
				SELECT x.lane, w.epoch FROM unnest($2::int[], $3::bigint[]) w(lane, epoch) JOIN %[1]s x USING (lane)
				ORDER BY x.lane FOR UPDATE OF x)
			UPDATE %[1]s l SET owner = NULL, epoch = l.epoch + 1, since = clock_timestamp() FROM w
			WHERE l.lane = w.lane AND l.epoch = w.epoch AND l.owner = $1`, l.lanes), me, numbers, epochs)
		if err != nil {
			return err
		}
		if n := int(tag.RowsAffected()); n != len(done) {
			l.cfg.Logger.Warn("lanes that were to be given up did not belong to this replica any more", "member", me, "count", len(done)-n)
		}
		return nil
	})
}

// Leave implements lanes.Leases.
func (l *Leases) Leave(ctx context.Context, me string) error {
	return l.with(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf(`DELETE FROM %s WHERE id = $1`, l.members), me)
		return err
	})
}

func columnsOf(list []lanes.Lease) (numbers []int32, epochs []int64) {
	for _, lease := range list {
		numbers = append(numbers, int32(lease.Lane))
		epochs = append(epochs, lease.Epoch)
	}
	return numbers, epochs
}
