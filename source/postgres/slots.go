package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Slot is a replication slot of a forwarder.
type Slot struct {
	Name     string `json:"name"`
	Database string `json:"database"`
	Table    string `json:"table"` // empty for one of another configuration
	// Temporary says that it ends with its connection.
	Temporary bool `json:"temporary"`
	// Active is the process that streams from it, 0 for none.
	Active int `json:"active_pid"`
	// Retained is how much log the server keeps for it, in bytes.
	Retained int64 `json:"retained_bytes"`
	// Status is the server's wal_status: reserved, extended, unreserved or lost.
	Status string `json:"wal_status"`
}

// ListSlots returns the slots of forwarders on the server, whatever outbox they are for, ordered
// by name.
func ListSlots(ctx context.Context, cfg Config) ([]Slot, error) {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is left to be lost
	return listSlots(ctx, conn, cfg)
}

func listSlots(ctx context.Context, conn *pgx.Conn, cfg Config) ([]Slot, error) {
	var database string
	if err := conn.QueryRow(ctx, "SELECT current_database()").Scan(&database); err != nil {
		return nil, fmt.Errorf("listing replication slots: %w", err)
	}
	rows, err := conn.Query(ctx, `
		SELECT slot_name, coalesce(database, ''), temporary, coalesce(active_pid, 0),
		       coalesce(CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() - restart_lsn END, 0)::bigint, coalesce(wal_status, '')
		FROM pg_replication_slots WHERE starts_with(slot_name, $1) OR slot_name = $2 ORDER BY slot_name`, slotPrefix, cfg.durableSlot(database))
	if err != nil {
		return nil, fmt.Errorf("listing replication slots: %w", err)
	}
	slots, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Slot, err error) {
		err = row.Scan(&s.Name, &s.Database, &s.Temporary, &s.Active, &s.Retained, &s.Status)
		if s.Name == cfg.durableSlot(database) || strings.HasPrefix(s.Name, slotPrefix+cfg.table().mark(database)) {
			s.Table = cfg.table().String()
		}
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing replication slots: %w", err)
	}
	return slots, nil
}

var (
	// ErrNoSlot says that there is no slot of that name that a forwarder made.
	ErrNoSlot = errors.New("there is no such slot of a forwarder")
	// ErrSlotActive says that somebody streams from a slot.
	ErrSlotActive = errors.New("the slot is in use")
)

// DropSlot drops a slot of a forwarder that nobody streams from. ErrNoSlot and ErrSlotActive say
// why it did not.
func DropSlot(ctx context.Context, cfg Config, slot string) error {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is left to be lost
	slots, err := listSlots(ctx, conn, cfg)
	if err != nil {
		return err
	}
	for _, s := range slots {
		if s.Name != slot {
			continue
		}
		if s.Active != 0 {
			return fmt.Errorf("%w: process %d streams from %s: stop the forwarder first", ErrSlotActive, s.Active, slot)
		}
		_, err := conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", slot)
		if sqlState(err) == objectInUse {
			return fmt.Errorf("%w: %s", ErrSlotActive, plain(err))
		}
		if err != nil {
			return fmt.Errorf("dropping replication slot %s: %w", slot, err)
		}
		return forgetSlot(ctx, conn, cfg, slot)
	}
	return fmt.Errorf("%w: %q", ErrNoSlot, slot)
}

// forgetSlot lets the next start make a slot as if there had been none.
func forgetSlot(ctx context.Context, conn *pgx.Conn, cfg Config, slot string) error {
	table := cfg.table().beside(slotsSuffix)
	_, err := conn.Exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE slot = $1", table.sql()), slot)
	if err != nil && sqlState(err) != undefinedTable {
		return fmt.Errorf("forgetting replication slot %s: %w", slot, err)
	}
	return nil
}

// warnLeftover tells of a durable slot that was made for this outbox and that nobody uses: the
// server keeps log for it.
func (s *Source) warnLeftover(ctx context.Context) {
	var database string
	var retained int64
	err := s.pool.QueryRow(ctx, "SELECT current_database()").Scan(&database)
	slot := s.cfg.durableSlot(database)
	if err == nil {
		err = s.pool.QueryRow(ctx, `
			SELECT coalesce(pg_current_wal_lsn() - restart_lsn, 0)::bigint FROM pg_replication_slots
			WHERE slot_name = $1 AND NOT temporary AND NOT active`, slot).Scan(&retained)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
	case err != nil:
		s.log.Debug("looking for a slot that is left over failed", "err", err)
	default:
		s.log.Warn("there is a durable replication slot for this outbox that nobody uses, and the server keeps its log for it: drop it with `forwarder slots drop`",
			"slot", slot, "retained_bytes", retained)
	}
}
