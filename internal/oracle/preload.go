package oracle

import (
	"context"
	"fmt"
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
	// PerTransaction is the number of events in a transaction; 0 is all of them. In
	// MongoDB it is the number in an insert, 1000 at most.
	PerTransaction int
}

// Preload fills the outbox and then the ledger, by one connection. The topic must be new to the
// ledger.
func Preload(ctx context.Context, cfg PreloadConfig) error {
	if !plainName(cfg.Topic) || cfg.Events < 1 || cfg.Keys < 1 {
		return fmt.Errorf("preloading: topic %q, %d events, %d keys", cfg.Topic, cfg.Events, cfg.Keys)
	}
	if cfg.PerTransaction < 1 {
		cfg.PerTransaction = cfg.Events
	}
	ledger := Ledger{}
	for key := range min(cfg.Keys, cfg.Events) {
		ledger[Stream{cfg.Topic, KeyName(key)}] = int64((cfg.Events - key + cfg.Keys - 1) / cfg.Keys)
	}
	rows := func(yield func(row) bool) {
		for i := range cfg.Events {
			e := event{Topic: cfg.Topic, Key: KeyName(i % cfg.Keys), Seq: int64(i/cfg.Keys + 1), N: int64(i + 1)}
			if !yield(e.row(cfg.PayloadBytes)) {
				return
			}
		}
	}
	return withDatabase(ctx, cfg.URL, cfg.Tables, func(db database) error {
		if err := db.createLedger(ctx); err != nil {
			return fmt.Errorf("creating the ledger: %w", err)
		}
		return db.preload(ctx, ledger, rows, cfg.PerTransaction)
	})
}
