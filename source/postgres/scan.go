package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// leftBehind are the rows that were in the table at a position of the log. When the log has passed
// it, it must have brought all of them.
type leftBehind struct {
	ids  []int64 // ascending
	came []bool  // by ids
	end  pglogrepl.LSN
}

// reached reports whether the log is past the rows.
func (l *leftBehind) reached(position pglogrepl.LSN) bool {
	return l != nil && l.end != 0 && position >= l.end
}

// seen notes a row that the log brought.
func (l *leftBehind) seen(id int64) {
	if l == nil || l.end == 0 {
		return
	}
	if i, ok := slices.BinarySearch(l.ids, id); ok {
		l.came[i] = true
	}
}

// missing returns the rows that the log has not brought.
func (l *leftBehind) missing() (ids []int64) {
	for i, id := range l.ids {
		if !l.came[i] {
			ids = append(ids, id)
		}
	}
	return ids
}

// listRows returns the ids that are in the table, in one statement, and a position of the log
// behind all of their transactions.
func (d *Durable) listRows(ctx context.Context) (*leftBehind, error) {
	t := d.stmts.Load()
	id := t.col(t.table.columns.ID)
	rows, err := d.pool.Query(ctx, fmt.Sprintf(`SELECT %s::bigint FROM %s ORDER BY %[1]s`, id, t.table.name.sql()))
	if err != nil {
		return nil, fmt.Errorf("listing the rows of %s: %w", d.Table(), err)
	}
	l := &leftBehind{}
	if l.ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return nil, fmt.Errorf("listing the rows of %s: %w", d.Table(), err)
	}
	l.came = make([]bool, len(l.ids))
	var end string
	if err := d.pool.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&end); err != nil {
		return nil, fmt.Errorf("asking for the end of the log: %w", err)
	}
	if l.end, err = pglogrepl.ParseLSN(end); err != nil {
		return nil, fmt.Errorf("asking for the end of the log: %w", err)
	}
	return l, nil
}

// scanPage bounds a page of a scan.
const scanPage = 2048

// scan delivers what is in the table and does not come through the slot. It returns a position up to
// which the log may bring rows that were in the table then.
//
// What the log does bring is left to it: some of that may be delivered and deleted already, by a process
// that died before the end of its scan, or deleted by its writer. The log brings it in any case, and
// must not bring it behind what is younger.
func (d *Durable) scan(ctx context.Context, repl *replication) (pglogrepl.LSN, error) {
	if err := d.settled(ctx, repl); err != nil {
		return 0, err
	}
	list, err := d.listRows(ctx)
	if err != nil {
		return 0, err
	}
	d.check = &leftBehind{} // a scan leaves nothing behind
	if len(list.ids) > 0 {
		if err := d.lookAhead(ctx, list); err != nil {
			return 0, err
		}
		list.ids = list.missing()
	}
	d.link.wait(fmt.Sprintf("%d rows that are in the table are delivered first", len(list.ids)))
	if len(list.ids) > 0 {
		d.Source.log.Info("the table is scanned for what the replication slot does not bring", "table", d.Table(), "slot", d.slot, "count", len(list.ids))
	}
	floor, rest := int64(lanes.Start), list.ids
	for more := true; more; {
		page, err := d.Source.Read(ctx, &source.Read{Floor: floor, Limit: scanPage, Bytes: 4 << 20})
		if err != nil {
			return 0, err
		}
		var kept []*source.Event
		for _, ev := range page.Events {
			floor = ev.ID
			at, ok := slices.BinarySearch(rest, ev.ID)
			if ok { // a row that is younger than the list comes through the log
				kept = append(kept, ev)
				at++
			}
			rest = rest[at:]
		}
		more = page.Full && len(rest) > 0
		if err := d.log.Scan(ctx, kept, !more); err != nil {
			return 0, err
		}
	}
	return list.end, nil
}

// errAhead ends a look ahead.
var errAhead = errors.New("the log was read up to the list")

// lookAhead reads the log up to the end of the list, and notes what it brings of it. Nothing is confirmed
// by that: the log is read once more from where it began.
func (d *Durable) lookAhead(ctx context.Context, list *leftBehind) error {
	d.link.wait("the log is read up to now, to tell what the table alone has")
	repl, err := d.link.dial(ctx)
	if err != nil {
		return err
	}
	defer repl.close()
	near, err := repl.xid(ctx)
	if err != nil {
		return err
	}
	if err := repl.start(ctx, d.slot, d.cfg.Publication, d.start, false); err != nil {
		return err
	}
	reader := d.link.newReader(repl, d.start, near, func(_ context.Context, c chunk) error {
		for _, ev := range c.events {
			list.seen(ev.ID)
		}
		if c.end && list.reached(c.position) {
			return errAhead
		}
		return nil
	})
	reader.confirmed, reader.positions = func() pglogrepl.LSN { return d.start }, true
	if err := reader.run(ctx); !errors.Is(err, errAhead) {
		return d.explain(ctx, err)
	}
	repl.close()
	return d.free(ctx)
}

// free waits until the server has noticed that nobody reads from the slot any more.
func (d *Durable) free(ctx context.Context) error {
	for {
		var active bool
		if err := d.pool.QueryRow(ctx, "SELECT active FROM pg_replication_slots WHERE slot_name = $1", d.slot).Scan(&active); err != nil {
			return fmt.Errorf("looking at replication slot %s: %w", d.slot, err)
		}
		if !active {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// settled waits until every transaction has ended that may have committed before the slot's
// first position: one that is not visible yet would come through neither the log nor the scan.
func (d *Durable) settled(ctx context.Context, repl *replication) error {
	fence, err := repl.xid(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	for {
		var ended bool
		err := d.pool.QueryRow(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::numeric >= $1::text::numeric`, fmt.Sprint(fence)).Scan(&ended)
		if err != nil {
			return fmt.Errorf("looking at running transactions: %w", err)
		}
		if ended {
			return nil
		}
		if time.Since(began) > slotPatience {
			d.link.wait("the scan of the table waits for transactions that began before it")
			d.link.warn(ctx, causeSlot, "the scan of the table waits for transactions that began before it", "xid", fence)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// judge looks for rows that were in the table when the log began and that it did not bring: a standby
// was promoted that lacks their deletes, or the slot was moved, or made anew by somebody else. They
// are delivered by a scan.
func (d *Durable) judge(ctx context.Context) error {
	left := d.check.missing()
	d.check = &leftBehind{}
	if len(left) == 0 {
		return nil
	}
	t := d.stmts.Load()
	var n int
	err := d.pool.QueryRow(ctx, fmt.Sprintf(`SELECT count(*) FROM %s WHERE %s = ANY($1::bigint[])`, t.table.name.sql(), t.col(t.table.columns.ID)), left).Scan(&n)
	if err != nil {
		return fmt.Errorf("looking for rows that the log did not bring: %w", err)
	}
	if n == 0 {
		return nil
	}
	d.Source.log.Warn("the replication slot does not bring rows that are in the table, which is scanned: either a standby was promoted without their deletes, and they are delivered again; or the slot was moved, or made anew by somebody else, and what is lost are rows that their writers have deleted meanwhile, and messages without a row",
		"table", d.Table(), "slot", d.slot, "count", n)
	if err := d.remember(ctx); err != nil {
		return err
	}
	return errLeftBehind
}
