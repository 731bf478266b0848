// Command bench measures the built forwarder on a real PostgreSQL or MongoDB and a real Kafka,
// all started for the purpose. It owns no promise about time: it prints what it measured, and
// fails only when a drained topic is not exact.
//
//	drain     a preloaded outbox of many keys, polled, beside a bare pipe (bench/pipe) in turns
//	hot       the same with 10 keys
//	streamed  rows that are committed while the programs are ready and suspended, in transactions
//	          of 1,000, in all modes beside the pipe, each measured from its release
//	steady    1,000 single-row transactions a second: time from commit to consumed, and processor
//	          time for an event, in all modes and with the writers alone
//	idle      statements a second with nothing to do, in all modes
//
// the same in MongoDB, under the names mongo-drain and so on, and several replicas that poll
// PostgreSQL:
//
//	handover  how long lanes and events wait when replicas join, stop and crash
//	fleet     what leasing costs the database while four replicas have nothing to do
//	scale     1, 2 and 4 replicas: events a second and processor time for an event, with
//	          acknowledgements that come at once, late, and very late
//
// Figures of different machines, or of one machine at different times, do not compare. The
// ratio to the pipe, taken in turns within one run, does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	events, runs, payload, partitions int
	keys, hotKeys                     int
	rate                              float64
	steadyFor, warmUp, idleFor        time.Duration
	warmServers                       time.Duration
	leaseTTL                          time.Duration
	ackDelays                         []time.Duration
	documents                         int
	modes, only                       []string
}

// sections are what can be measured, in the order in which it is.
var sections = []string{
	"drain", "hot", "streamed", "steady", "idle", "handover", "fleet", "scale",
	"mongo-drain", "mongo-hot", "mongo-streamed", "mongo-steady", "mongo-idle",
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.IntVar(&o.events, "events", 300_000, "events in the preloaded outbox")
	f.IntVar(&o.documents, "documents", 200_000, "events in the preloaded outbox in MongoDB")
	f.IntVar(&o.runs, "runs", 3, "runs of each program in a drain; the median counts")
	f.IntVar(&o.payload, "payload", 200, "bytes of a payload")
	f.IntVar(&o.partitions, "partitions", 12, "partitions of the topic")
	f.IntVar(&o.keys, "keys", 100_000, "keys of the drain")
	f.IntVar(&o.hotKeys, "hot-keys", 10, "keys of the drain with hot keys")
	f.Float64Var(&o.rate, "rate", 1000, "events a second of the steady load")
	f.DurationVar(&o.steadyFor, "steady", 20*time.Second, "length of the steady load")
	f.DurationVar(&o.warmUp, "warm-up", 3*time.Second, "time before measuring steady and idle")
	f.DurationVar(&o.warmServers, "warm-servers", time.Minute, "load before the steady measurements, for the broker's compiler")
	f.DurationVar(&o.idleFor, "idle", 10*time.Second, "length of the idle measurement")
	f.DurationVar(&o.leaseTTL, "lease-ttl", 10*time.Second, "lanes.lease_ttl of the hand-overs")
	ackDelays := f.String("ack-delays", "0s,50ms,1s", "how late acknowledgements are while replicas are added")
	modes := f.String("modes", "", "modes of the forwarder, of poll,stream,durable; those of the section when empty")
	only := f.String("only", "", "one or more of "+strings.Join(sections, ",")+"; all when empty")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for _, text := range strings.Split(*ackDelays, ",") {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return o, fmt.Errorf("-ack-delays %s: want durations like 50ms, joined by commas", *ackDelays)
		}
		o.ackDelays = append(o.ackDelays, d)
	}
	if *modes != "" {
		o.modes = strings.Split(*modes, ",")
	}
	for _, name := range o.modes {
		if !slices.Contains(allModes, name) {
			return o, fmt.Errorf("-modes %s: want some of %s", *modes, strings.Join(allModes, ","))
		}
	}
	o.only = sections
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	for _, name := range o.only {
		if !slices.Contains(sections, name) {
			return o, fmt.Errorf("-only %s: want some of %s", name, strings.Join(sections, ","))
		}
	}
	if f.NArg() > 0 || o.events < 1 || o.documents < 1 || o.runs < 1 || o.keys < 1 || o.hotKeys < 1 || o.partitions < 1 || o.rate <= 0 {
		return o, errors.New("counts and rates must be positive, and there are no arguments besides the flags")
	}
	return o, nil
}

func main() {
	o, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ran, err := withoutAutogroups(ctx)
	if !ran && err == nil {
		err = run(ctx, o)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "forwarder-bench-")
	if err != nil {
		return fmt.Errorf("making a folder for the programs: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	progress("building")
	forwarder, err := build(ctx, dir, "forwarder", "github.com/outbox-forwarder/forwarder/cmd/forwarder")
	if err != nil {
		return err
	}
	pipe, err := build(ctx, dir, "pipe", "github.com/outbox-forwarder/forwarder/bench/pipe")
	if err != nil {
		return err
	}
	progress("starting Kafka")
	s, err := newStage(ctx, o, forwarder, pipe)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, name := range o.only {
		if err := s.section(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// section measures what a section is about.
func (s *stage) section(ctx context.Context, name string) error {
	var db outbox
	name, mongo := strings.CutPrefix(name, "mongo-")
	if mongo {
		c, err := s.mongo(ctx)
		if err != nil {
			return err
		}
		db = c
	} else {
		t, err := s.postgres(ctx)
		if err != nil {
			return err
		}
		switch name {
		case "handover":
			return s.handOver(ctx, t)
		case "fleet":
			return s.idleFleet(ctx, t)
		case "scale":
			return s.scale(ctx, t)
		}
		db = t
	}
	switch name {
	case "drain":
		return s.compare(ctx, db, backlog{title: "drain", keys: s.keys}, s.chosen(db, "poll"))
	case "hot":
		return s.compare(ctx, db, backlog{title: "hot keys", keys: s.hotKeys}, s.chosen(db, "poll"))
	case "streamed":
		return s.compare(ctx, db, backlog{title: "streamed", keys: s.keys, held: true}, s.chosen(db, allModes...))
	case "steady":
		return s.steady(ctx, db, s.chosen(db, allModes...))
	default:
		return s.idle(ctx, db, s.chosen(db, allModes...))
	}
}

func build(ctx context.Context, dir, name, pkg string) (string, error) {
	path := filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}

// progress goes to stderr, so that stdout has the results alone.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "# "+format+"\n", args...)
}

// pause waits for d, or fails when the bench is stopped.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
