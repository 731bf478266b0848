package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-forwarder/forwarder/internal/config"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// store is an open outbox, in either database and in any mode.
type store interface {
	lanes.Source
	// Lanes is the lane count that the outbox was made with.
	Lanes() int
	// Table is the outbox's name for people.
	Table() string
	// Oldest returns when the oldest undelivered row was created; ok is false where none tells.
	Oldest(ctx context.Context) (created time.Time, ok bool, err error)
	DeletesRetried() uint64
	Close()
}

// follower is a store that follows the database's log while Run runs. Run returns nil when its
// context ends. Until then the store may be read all the same.
type follower interface {
	prometheus.Collector
	Run(ctx context.Context) error
	// Unready lists in words what keeps the log from being followed and must be mended.
	Unready() []string
}

// custodian is a follower whose log is read by the replica that has the lanes.
type custodian interface {
	// Owner returns the owner that the forwarder must be run with.
	Owner(next lanes.Owner) lanes.Owner
	// Finish goes before the forwarder is stopped or gives up its lanes in order: until it
	// returns, what was read of the log is delivered, and nothing more is read.
	Finish(ctx context.Context)
}

// leases is where replicas agree who owns which lane.
type leases interface {
	lanes.Leases
	Close()
}

// database is what the commands ask of the server that holds the outbox. Nothing is connected
// before a method is called. A *source.SetupError says what must be changed there.
type database interface {
	// name is the product's.
	name() string
	open(ctx context.Context) (store, error)
	leases() leases
	// exclusive says that one replica has all lanes, and the others stand by.
	exclusive() bool
	initialize(ctx context.Context) error
	// statements is what initialize would do, in the language of the database's shell.
	statements() ([]string, error)
	overview(ctx context.Context) (*source.Overview, error)
}

// databaseOf returns the database that the configuration names.
func databaseOf(cfg config.Config, logger *slog.Logger) database {
	if cfg.Source.IsMongo() {
		return mongoDatabase{cfg.Source.Mongo, cfg.Memory.Events, logger}
	}
	return postgresDatabase{cfg.Source.Postgres, cfg.Memory.Events, logger}
}

// setupError is problems that were found by looking at the database.
type setupError struct{ config.Problems }

// Unwrap lets errors.As find the problems.
func (e *setupError) Unwrap() error { return e.Problems }

// setupProblems turns what the database lacks into problems of the configuration.
func setupProblems(cfg config.Config, err error) error {
	var setup *source.SetupError
	if !errors.As(err, &setup) {
		return err
	}
	var problems config.Problems
	for _, p := range setup.Problems {
		problems = append(problems, &config.FieldError{Field: cfg.Source.Section(), Problem: p})
	}
	return &setupError{problems}
}
