package main

import (
	"context"
	"log/slog"

	"github.com/outbox-forwarder/forwarder/internal/config"
	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/source/postgres"
)

// postgresDatabase is PostgreSQL.
type postgresDatabase struct {
	cfg    config.Postgres
	memory config.Size // for the events in memory
	log    *slog.Logger
}

func (d postgresDatabase) config() postgres.Config {
	return postgres.Config{
		URL:            d.cfg.URL.Reveal(),
		Schema:         d.cfg.Table.Schema,
		Table:          d.cfg.Table.Name,
		Columns:        postgres.Columns(d.cfg.Columns),
		Stream:         d.cfg.Mode == config.ModeStream,
		Publication:    d.cfg.Publication,
		ReplicationURL: d.cfg.ReplicationURL.Reveal(),
		Slot:           d.cfg.SlotName,
		SlotFailover:   d.cfg.SlotFailover,
		SlotBudget:     int64(d.cfg.SlotBudget),
		DropOverBudget: d.cfg.SlotOverBudget == config.OverBudgetDrop,
		MemoryBytes:    int(d.memory),
		Logger:         d.log,
	}
}

func (d postgresDatabase) name() string { return "PostgreSQL" }

func (d postgresDatabase) open(ctx context.Context) (store, error) {
	switch {
	case d.cfg.Mode == config.ModePoll:
		return opened(postgres.Open(ctx, d.config()))
	case d.exclusive():
		return opened(postgres.OpenDurable(ctx, d.config()))
	default:
		return opened(postgres.OpenStream(ctx, d.config()))
	}
}

// opened keeps a nil pointer from becoming a store that is not nil.
func opened[S store](s S, err error) (store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (d postgresDatabase) leases() leases { return postgres.NewLeases(d.config()) }

func (d postgresDatabase) exclusive() bool {
	return d.cfg.Mode == config.ModeStream && d.cfg.Slot == config.SlotDurable
}

func (d postgresDatabase) initialize(ctx context.Context) error {
	return postgres.Init(ctx, d.config())
}

func (d postgresDatabase) statements() ([]string, error) { return postgres.Statements(d.config()) }

func (d postgresDatabase) overview(ctx context.Context) (*source.Overview, error) {
	return postgres.ReadOverview(ctx, d.config())
}
