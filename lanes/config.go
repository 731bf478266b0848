package lanes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Config tunes an Engine. The zero value of each field takes its default.
type Config struct {
	// Lanes is the store's lane count, a power of two. Default DefaultLanes.
	Lanes int

	// MaxEvents bounds the events known to this process: queued, in flight, and acknowledged
	// but not yet deleted. Default 32,768.
	MaxEvents int
	// MaxBytes bounds the bytes (source.Event.Size) queued and in flight; one page may pass
	// it. Default 32 MiB.
	MaxBytes int

	// RunEvents and RunBytes bound a lane's batch in flight. Defaults 500 and 1 MiB.
	RunEvents, RunBytes int
	// PageEvents and PageBytes bound a page. Defaults 8,192 and 4 MiB.
	PageEvents, PageBytes int
	// DeleteEvents bounds one delete statement, Deleters how many run at once, and DeleteWait
	// how long acknowledged events wait for company. Defaults 4,096, 2 and 20 ms.
	DeleteEvents, Deleters int
	DeleteWait             time.Duration

	// MaxParts bounds the keys and rows that wait on their own; past it their whole lane
	// waits. Default 1,000.
	MaxParts int

	// MinPoll and MaxPoll bound the pause between reads that did not fill a page. Defaults
	// 2 ms and 50 ms.
	MinPoll, MaxPoll time.Duration
	// Rescan is how often the floor is pulled back to the start of the table; it is stretched
	// so that these scans, of all replicas together, take at most a twentieth of the time.
	// Default 1 s.
	Rescan time.Duration
	// TransactionAge is how long a running transaction may hold the floor. Default 1 s.
	TransactionAge time.Duration

	// StallAfter is how long a run may wait for some of its events while the broker acknowledges
	// what was sent later; then the keys of those events wait alone. Default 1 s.
	StallAfter time.Duration

	// Backoffs after a failure, doubled from Min to Max with jitter. Broker: 100 ms to 5 s;
	// Topic: 500 ms to 10 s; Record: 5 s to 1 min; Store (reads and deletes): 100 ms to 5 s.
	Broker, Topic, Record, Store Backoff

	// Rand gives the jitter. Default: seeded at random.
	Rand *rand.Rand
}

// Backoff is a pause that doubles from Min to Max, each with a jitter of a fifth.
type Backoff struct{ Min, Max time.Duration }

// after returns the pause after the nth failure in a row, n at least 1.
func (b Backoff) after(n int, r *rand.Rand) time.Duration {
	d := b.Max
	if n < 32 && b.Min<<(n-1) < b.Max {
		d = b.Min << (n - 1)
	}
	return d - time.Duration(r.Int64N(int64(d)/5+1))
}

func orInt(v *int, d int) {
	if *v == 0 {
		*v = d
	}
}

func orDuration(v *time.Duration, d time.Duration) {
	if *v == 0 {
		*v = d
	}
}

func orBackoff(b *Backoff, from, to time.Duration) {
	orDuration(&b.Min, from)
	orDuration(&b.Max, to)
}

func (c Config) withDefaults() Config {
	orInt(&c.Lanes, DefaultLanes)
	orInt(&c.MaxEvents, 32768)
	orInt(&c.MaxBytes, 32<<20)
	orInt(&c.RunEvents, 500)
	orInt(&c.RunBytes, 1<<20)
	orInt(&c.PageEvents, 8192)
	orInt(&c.PageBytes, 4<<20)
	orInt(&c.DeleteEvents, 4096)
	orInt(&c.Deleters, 2)
	orDuration(&c.DeleteWait, 20*time.Millisecond)
	orInt(&c.MaxParts, 1000)
	orDuration(&c.MinPoll, 2*time.Millisecond)
	orDuration(&c.MaxPoll, 50*time.Millisecond)
	orDuration(&c.Rescan, time.Second)
	orDuration(&c.TransactionAge, time.Second)
	orDuration(&c.StallAfter, time.Second)
	orBackoff(&c.Broker, 100*time.Millisecond, 5*time.Second)
	orBackoff(&c.Topic, 500*time.Millisecond, 10*time.Second)
	orBackoff(&c.Record, 5*time.Second, time.Minute)
	orBackoff(&c.Store, 100*time.Millisecond, 5*time.Second)
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return c
}

// Validate joins everything that is wrong with the configuration.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Lanes < 1 || c.Lanes > 1<<15 || c.Lanes&(c.Lanes-1) != 0 {
		errs = append(errs, fmt.Errorf("lanes: %d is not a power of two from 1 to 32768", c.Lanes))
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"max events", c.MaxEvents}, {"max bytes", c.MaxBytes},
		{"run events", c.RunEvents}, {"run bytes", c.RunBytes},
		{"page events", c.PageEvents}, {"page bytes", c.PageBytes},
		{"delete events", c.DeleteEvents}, {"deleters", c.Deleters}, {"max parts", c.MaxParts},
	} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("%s: %d is not positive", f.name, f.value))
		}
	}
	if c.MinPoll <= 0 || c.MaxPoll < c.MinPoll {
		errs = append(errs, fmt.Errorf("poll pause: %v to %v is not a range of positive durations", c.MinPoll, c.MaxPoll))
	}
	if c.StallAfter < 0 {
		errs = append(errs, fmt.Errorf("stall after: %v is not positive", c.StallAfter))
	}
	for _, b := range []Backoff{c.Broker, c.Topic, c.Record, c.Store} {
		if b.Min <= 0 || b.Max < b.Min {
			errs = append(errs, fmt.Errorf("backoff: %v to %v is not a range of positive durations", b.Min, b.Max))
		}
	}
	return errors.Join(errs...)
}
