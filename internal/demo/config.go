package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// Target is what a forwarder is to work on.
type Target struct {
	SourceURL string
	// Table is the outbox, as schema.table or database.collection.
	Table   string
	Brokers []string
	// AdminListen is where the admin server is to listen, with port 0 for a free one.
	AdminListen string
	// Listening is to be called with the admin server's real address as soon as it listens.
	Listening func(addr string)
	// Logger writes to the demo's screen. It shows what is worth an operator's attention.
	Logger *slog.Logger
}

// Config says how a demo runs. Init, Run and Out are required.
type Config struct {
	// SourceURL is a PostgreSQL or a MongoDB to use instead of an embedded PostgreSQL. The demo
	// works there in a schema or a database of its own, which it removes.
	SourceURL string
	// Brokers is a Kafka cluster to use instead of an embedded broker. The demo works there
	// with a topic of its own, which it removes.
	Brokers []string
	// Rate is the number of events written per second; 0 is as fast as the writer can.
	Rate float64
	// Duration ends the writing; 0 writes until the context ends.
	Duration time.Duration

	// Init creates what the forwarder needs in the database, the outbox first of all.
	Init func(context.Context, Target) error
	// Run runs the forwarder until the context ends, and then lets it stop in order.
	Run func(context.Context, Target) error

	// Out is the screen. On a terminal one line is refreshed.
	Out io.Writer
	// Getenv reads the environment (TERM and the locale); os.Getenv where nil.
	Getenv func(string) string
}

// DefaultRate is a rate that two busy cores sustain with everything in one place.
const DefaultRate = 1000

func (c Config) withDefaults() Config {
	if c.Getenv == nil {
		c.Getenv = os.Getenv
	}
	return c
}

// Validate lists everything that is wrong with the configuration.
func (c Config) Validate() error {
	var problems []error
	if c.Init == nil || c.Run == nil || c.Out == nil {
		problems = append(problems, errors.New("a demo needs Init, Run and Out"))
	}
	if c.Rate < 0 {
		problems = append(problems, fmt.Errorf("rate %v must not be negative: 0 is full speed", c.Rate))
	}
	if c.Duration < 0 {
		problems = append(problems, fmt.Errorf("duration %s must not be negative: 0 is until Ctrl-C", c.Duration))
	}
	return errors.Join(problems...)
}
