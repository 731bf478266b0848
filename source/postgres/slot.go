package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// slotsSuffix names the table beside the outbox that remembers the durable slots: that one was
// made, and whether what was in the table before it is delivered.
const slotsSuffix = "_slots"

// slotState is a durable slot as the server has it, and as we remember it.
type slotState struct {
	exists    bool
	plugin    string
	database  string
	status    string // wal_status
	reason    string // why it was invalidated, from PostgreSQL 17 on
	failover  bool   // standbys may copy it
	confirmed pglogrepl.LSN

	known   bool // we made it, or one of its name
	scanned bool // what was in the table before it is delivered
}

// lost says that the server has thrown away log that the slot needs.
func (s *slotState) lost() bool { return s.exists && (s.status == "lost" || s.reason != "") }

func readSlot(ctx context.Context, db rower, cfg Config, slot string) (*slotState, error) {
	s := &slotState{}
	var confirmed string
	err := db.QueryRow(ctx, fmt.Sprintf(`
		SELECT s.slot_name IS NOT NULL, coalesce(s.plugin::text, ''), coalesce(s.database::text, ''), coalesce(s.wal_status, ''),
		       coalesce(to_jsonb(s) ->> 'invalidation_reason', ''), coalesce((to_jsonb(s) ->> 'failover')::bool, false),
		       coalesce(s.confirmed_flush_lsn::text, '0/0'),
		       k.slot IS NOT NULL, coalesce(k.scanned, false)
		FROM (SELECT 1) one LEFT JOIN pg_replication_slots s ON s.slot_name = $1 LEFT JOIN %s k ON k.slot = $1`, cfg.table().beside(slotsSuffix).sql()), slot,
	).Scan(&s.exists, &s.plugin, &s.database, &s.status, &s.reason, &s.failover, &confirmed, &s.known, &s.scanned)
	if err != nil {
		return nil, fmt.Errorf("looking at replication slot %s: %w", slot, err)
	}
	if s.confirmed, err = pglogrepl.ParseLSN(confirmed); err != nil {
		return nil, fmt.Errorf("looking at replication slot %s: %w", slot, err)
	}
	return s, nil
}

// checkSlot returns the durable slot's name, and what keeps it from being used that no retry
// mends.
func checkSlot(ctx context.Context, cfg Config) (slot string, problems []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := connect(ctx, cfg)
	if err != nil {
		return "", nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is left to be lost
	table := cfg.table().beside(slotsSuffix)
	const rights = "SELECT, INSERT, UPDATE, DELETE"
	var version int
	var database, user string
	var exists, may bool
	err = conn.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int, current_database(), current_user, c.oid IS NOT NULL,
		       coalesce((SELECT bool_and(has_table_privilege(c.oid, r)) FROM unnest(string_to_array($3::text, ', ')) r), false)
		FROM (SELECT 1) one LEFT JOIN pg_namespace n ON n.nspname = $1 LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = $2`,
		table.schema, table.table, rights).Scan(&version, &database, &user, &exists, &may)
	if err != nil {
		return "", nil, fmt.Errorf("looking for table %s: %w", table, err)
	}
	slot = cfg.durableSlot(database)
	if cfg.SlotFailover && version < 170000 {
		problems = append(problems, fmt.Sprintf("source.postgres.slot_failover needs PostgreSQL 17, and the server is PostgreSQL %d: leave it out, or use slot: temporary, which loses nothing in a failover", version/10000))
	}
	switch {
	case !exists:
		return slot, append(problems, fmt.Sprintf("there is no table %s, which remembers the durable slot: create it with `forwarder init`", table)), nil
	case !may:
		return slot, append(problems, fmt.Sprintf("role %s may not use table %s: GRANT %s ON %s TO %s", user, table, rights, table.sql(), pgx.Identifier{user}.Sanitize())), nil
	}
	s, err := readSlot(ctx, conn, cfg, slot)
	if err != nil {
		return "", nil, err
	}
	if s.exists && (s.database != database || s.plugin != outputPlugin) {
		problems = append(problems, fmt.Sprintf("replication slot %s belongs to somebody else (database %q, plugin %q): name another one with source.postgres.slot_name", slot, s.database, s.plugin))
	}
	return slot, problems, nil
}

// prepare makes the durable slot where there is none, and reports whether the table must be
// scanned for what the slot does not bring.
func (d *Durable) prepare(ctx context.Context, repl *replication) (needScan bool, err error) {
	server, err := pglogrepl.IdentifySystem(ctx, repl.conn)
	if err != nil {
		return false, fmt.Errorf("identifying the server: %w", err)
	}
	s, err := readSlot(ctx, d.pool, d.cfg, d.slot)
	if err != nil {
		return false, err
	}
	drop := s.lost()
	if d.overspent {
		drop = s.exists
	}
	if s.exists && !drop {
		if d.cfg.SlotFailover && !s.failover {
			if err := repl.letFailOver(ctx, d.slot); err != nil {
				return false, err
			}
		}
		d.begin(origin{server.SystemID, server.Timeline, d.ours.made}, s.confirmed)
		if !s.known {
			err = d.remember(ctx)
		}
		return !s.scanned, err
	}
	if s.known {
		if err := d.mayRemake(s); err != nil {
			return false, err
		}
		reason := "it is gone"
		switch {
		case d.overspent:
			reason = "it kept more log than its budget and is dropped"
		case drop:
			reason = "the server has invalidated it: " + orText(s.reason, s.status)
		}
		d.Source.log.Warn("the replication slot is made anew and what is in the table is delivered; what is lost: rows that their writers have deleted since the slot's last position, and messages without a row",
			"table", d.Table(), "slot", d.slot, "reason", reason, "confirmed_lsn", max(s.confirmed, d.confirmed()).String())
		d.remade = time.Now()
	}
	// From now on the table has to be scanned, whatever becomes of this process.
	if err := d.remember(ctx); err != nil {
		return false, err
	}
	if drop {
		if _, err := d.pool.Exec(ctx, "SELECT pg_drop_replication_slot($1)", d.slot); err != nil {
			return false, fmt.Errorf("dropping replication slot %s: %w", d.slot, err)
		}
	}
	d.overspent = false
	point, err := d.link.createSlot(ctx, repl, d.slot, slotKind{failover: d.cfg.SlotFailover})
	if err != nil {
		return false, err
	}
	d.begin(origin{server.SystemID, server.Timeline, d.ours.made + 1}, point)
	return true, nil
}

func orText(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// mayRemake keeps a slot that is lost again and again from being made again and again.
func (d *Durable) mayRemake(s *slotState) error {
	if d.remade.IsZero() || time.Since(d.remade) >= d.remakeEvery {
		return nil
	}
	return &brokenError{fmt.Sprintf("replication slot %s was lost for the second time within %v (%s): raise the server's max_slot_wal_keep_size (or source.postgres.slot_budget), or see why events are not delivered; it is made anew at %s",
		d.slot, d.remakeEvery, orText(orText(s.reason, s.status), "it is gone"), d.remade.Add(d.remakeEvery).Format(time.RFC3339))}
}

// remember notes that there is a slot of ours, and that what was in the table before it is not
// delivered.
func (d *Durable) remember(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, fmt.Sprintf(`
		INSERT INTO %s AS k (slot) VALUES ($1) ON CONFLICT (slot) DO UPDATE SET scanned = false, since = clock_timestamp()`,
		d.cfg.table().beside(slotsSuffix).sql()), d.slot)
	if err != nil {
		return fmt.Errorf("remembering replication slot %s: %w", d.slot, err)
	}
	return nil
}

// begin says from where the log comes next.
func (d *Durable) begin(from origin, confirmed pglogrepl.LSN) {
	if from != d.ours {
		d.log.Reset(true)
		d.check = nil // a standby that was promoted may lack deletes of rows that its slot is past
	} else {
		d.log.Reset(false)
	}
	d.ours, d.start = from, confirmed
	d.scanEnd = 0
}

// leave tells the server the last position, if the connection was lost before it could be told:
// whoever streams next need not repeat what is delivered. A standby that was promoted meanwhile is
// told nothing: other transactions may have that position in its history.
func (d *Durable) leave() {
	position, ok := d.log.Confirmed()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	const behind = `FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn < $2::text::pg_lsn
		AND starts_with(pg_walfile_name(pg_current_wal_lsn()), $3)`
	args := []any{d.slot, position.String(), fmt.Sprintf("%08X", d.ours.timeline)}
	for {
		var active bool
		err := d.pool.QueryRow(ctx, "SELECT active "+behind, args...).Scan(&active)
		if err == nil && !active {
			_, err = d.pool.Exec(ctx, "SELECT pg_replication_slot_advance($1, least($2::text::pg_lsn, pg_current_wal_lsn())) "+behind, args...)
			active = err != nil
		}
		if errors.Is(err, pgx.ErrNoRows) || err == nil && !active {
			return
		}
		select { // the server has not noticed yet that we are gone, or is away
		case <-ctx.Done():
			d.Source.log.Debug("the last position could not be confirmed", "slot", d.slot, "err", err)
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// leaveLimit bounds it: the server reads its log up to there.
const leaveLimit = 3 * time.Second

// scanPause is how long a scan's rows may not become fewer before the log is begun in spite of
// them: a row that cannot be delivered holds nobody else up.
const scanPause = 2 * time.Second

// awaitScan waits until what was scanned is delivered and deleted, and remembers it: up to then a
// stop would let the next replica repeat what came through the log meanwhile. It reports
// whether something is left.
func (d *Durable) awaitScan(ctx context.Context) (left bool, err error) {
	last, since := -1, time.Now()
	for d.log.Scanning() {
		stats := d.log.Stats()
		if n := stats.Waiting + stats.Out; n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) >= scanPause {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return false, d.setScanned(ctx)
}

func (d *Durable) setScanned(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, fmt.Sprintf(`UPDATE %s SET scanned = true WHERE slot = $1`, d.cfg.table().beside(slotsSuffix).sql()), d.slot)
	if err != nil {
		return fmt.Errorf("remembering that the table was scanned: %w", err)
	}
	return nil
}

// markEvery is how often it is looked whether all that was scanned is delivered.
const markEvery = 500 * time.Millisecond

// markScanned waits until what was scanned is delivered and deleted, and remembers it.
func (d *Durable) markScanned(ctx context.Context) error {
	ticker := time.NewTicker(markEvery)
	defer ticker.Stop()
	for {
		if !d.log.Scanning() {
			err := d.setScanned(ctx)
			switch {
			case err == nil:
				return nil
			case ctx.Err() != nil:
				return ctx.Err()
			}
			d.link.warn(ctx, "scanned", "remembering that the table was scanned failed, it is tried again", "err", plain(err))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
