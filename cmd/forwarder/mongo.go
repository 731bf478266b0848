package main

import (
	"context"
	"log/slog"

	"github.com/outbox-forwarder/forwarder/internal/config"
	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/source/mongo"
)

// mongoDatabase is MongoDB.
type mongoDatabase struct {
	cfg    config.Mongo
	memory config.Size // for the events in memory
	log    *slog.Logger
}

func (d mongoDatabase) config() mongo.Config {
	return mongo.Config{
		URL:         d.cfg.URL.Reveal(),
		Database:    d.cfg.Database,
		Collection:  d.cfg.Collection,
		Fields:      mongo.Fields(d.cfg.Fields),
		Canonical:   d.cfg.JSON == config.JSONCanonical,
		Stream:      d.cfg.Mode == config.ModeStream,
		Durable:     d.exclusive(),
		MemoryBytes: int(d.memory),
		Logger:      d.log,
	}
}

func (d mongoDatabase) name() string { return "MongoDB" }

func (d mongoDatabase) open(ctx context.Context) (store, error) {
	switch {
	case d.cfg.Mode == config.ModePoll:
		return opened(mongo.Open(ctx, d.config()))
	case d.exclusive():
		return opened(mongo.OpenDurable(ctx, d.config()))
	default:
		return opened(mongo.OpenStream(ctx, d.config()))
	}
}

func (d mongoDatabase) leases() leases { return mongo.NewLeases(d.config()) }

func (d mongoDatabase) exclusive() bool {
	return d.cfg.Mode == config.ModeStream && d.cfg.Checkpoint == config.CheckpointDurable
}

func (d mongoDatabase) initialize(ctx context.Context) error { return mongo.Init(ctx, d.config()) }

func (d mongoDatabase) statements() ([]string, error) { return mongo.Statements(d.config()) }

func (d mongoDatabase) overview(ctx context.Context) (*source.Overview, error) {
	return mongo.ReadOverview(ctx, d.config())
}
