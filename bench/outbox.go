package main

import (
	"context"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// outbox is what is filled and drained, in either database, with the sessions that watch it.
type outbox interface {
	// name is the database's.
	name() string
	// reset makes a new and empty outbox, by forwarder init with a program's settings. It is for
	// one topic, until the next reset.
	reset(ctx context.Context, topic string, settings []string) error
	// url is where the measured programs find it.
	url() string
	// size is the number of events that preload fills it with.
	size() int
	// preload fills it with events of some keys in turn: in many transactions, or in as few as
	// may be.
	preload(ctx context.Context, keys int, many bool) error
	// writer is who writes at an even rate. What it wrote is in the ledger.
	writer(watch *oracle.Stopwatch) (writer, error)
	ledger(ctx context.Context) (oracle.Ledger, error)
	empty(ctx context.Context) (bool, error)
	// cpu is the processor time of the server so far.
	cpu() (time.Duration, error)
	// counters names what the server counts; count starts to count, and the function that it
	// returns gives the counts since then.
	counters() []string
	count(ctx context.Context) (func(context.Context) ([]int64, error), error)
	close() error
}

// writer writes until its context ends.
type writer interface {
	Run(ctx context.Context) error
}
