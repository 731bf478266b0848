package oracle

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// PreloadConfig says what to put into an outbox before a measurement.
type PreloadConfig struct {
	URL    string
	Tables Tables
	Topic  string
	// Events are spread over Keys in turn, so that neighbours differ in their key.
	Events, Keys int
	// PayloadBytes is the approximate size of a payload.
	PayloadBytes int
	// PerTransaction is the number of events in a transaction; 0 is all of them.
	PerTransaction int
}

// Preload fills the outbox and then the ledger, by one connection. The topic must be new to the
// ledger.
func Preload(ctx context.Context, cfg PreloadConfig) error {
	if !plainName(cfg.Topic) || cfg.Events < 1 || cfg.Keys < 1 {
		return fmt.Errorf("preloading: topic %q, %d events, %d keys", cfg.Topic, cfg.Events, cfg.Keys)
	}
	tables := cfg.Tables.withDefaults()
	if err := CreateLedger(ctx, cfg.URL, tables); err != nil {
		return err
	}
	return withConn(ctx, cfg.URL, func(conn *pgx.Conn) error {
		if cfg.PerTransaction < 1 {
			cfg.PerTransaction = cfg.Events
		}
		for next := 0; next < cfg.Events; {
			end := min(next+cfg.PerTransaction, cfg.Events)
			_, err := conn.CopyFrom(ctx, identifier(tables.Outbox), []string{"topic", "key", "payload"}, pgx.CopyFromFunc(func() ([]any, error) {
				if next == end {
					return nil, nil
				}
				e := event{Topic: cfg.Topic, Key: KeyName(next % cfg.Keys), Seq: int64(next/cfg.Keys + 1), N: int64(next + 1)}
				next++
				return []any{e.Topic, e.Key, e.appendPayload(nil, cfg.PayloadBytes)}, nil
			}))
			if err != nil {
				return fmt.Errorf("filling the outbox: %w", err)
			}
		}
		key := 0
		_, err := conn.CopyFrom(ctx, identifier(tables.Ledger), []string{"topic", "key", "seq"}, pgx.CopyFromFunc(func() ([]any, error) {
			if key == min(cfg.Keys, cfg.Events) {
				return nil, nil
			}
			seq := int64((cfg.Events - key + cfg.Keys - 1) / cfg.Keys)
			key++
			return []any{cfg.Topic, KeyName(key - 1), seq}, nil
		}))
		if err != nil {
			return fmt.Errorf("filling the ledger: %w", err)
		}
		return nil
	})
}
