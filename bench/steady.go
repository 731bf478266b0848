package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// even is what was measured of a program under an even load, or with nothing to do.
type even struct {
	program string
	latency oracle.Latency
	peak    int64
	usage
}

// steady measures from commit to consumed under an even load, by one mode after the other, and
// what the writers cost alone.
func (s *stage) steady(ctx context.Context, db outbox, forwarders []program) error {
	if s.warmServers > 0 {
		// The broker compiles what an even load asks of it, which takes a JVM a minute on two cores:
		// one in production has done so long ago.
		progress("%s, steady: warming up for %s", db.name(), s.warmServers)
		if _, err := s.evenly(ctx, db, forwarders[0], s.warmServers); err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
	}
	results := []even{}
	for _, p := range append([]program{{name: nobody}}, forwarders...) {
		progress("%s, steady: %s at %.0f events/s for %s", db.name(), p.name, s.rate, s.steadyFor)
		e, err := s.evenly(ctx, db, p, s.steadyFor)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		results = append(results, e)
	}
	fmt.Printf("\n%s, steady: %.0f events/s in single-row transactions of 8 connections, %s after %s of warm-up (the broker's %s before), default settings, from commit to consumed\n",
		db.name(), s.rate, s.steadyFor, s.warmUp, s.warmServers)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tevents/s\tp50 ms\tp99 ms\tmax ms\tCPU µs/event\t%s CPU µs/event\tbeyond %s's\tKafka CPU µs/event\tpeak MiB\t", db.name(), nobody)
	for _, name := range db.counters() {
		fmt.Fprintf(t, "%s/event\t", name)
	}
	fmt.Fprintln(t)
	var alone float64
	for _, e := range results {
		events := float64(e.latency.Committed)
		each := func(d time.Duration) float64 { return d.Seconds() * 1e6 / events }
		if e.program == nobody {
			alone = each(e.database)
		}
		fmt.Fprintf(t, "%s\t%.0f\t%s\t%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t", e.program,
			events/e.took.Seconds(), ms(e.latency.P50), ms(e.latency.P99), ms(e.latency.Max),
			each(e.subject), each(e.database), each(e.database)-alone, each(e.kafka), e.peak>>20)
		for _, n := range e.counts {
			fmt.Fprintf(t, "%.3g\t", float64(n)/events)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// evenly measures one program, which must be exact, or nobody.
func (s *stage) evenly(ctx context.Context, db outbox, p program, during time.Duration) (e even, err error) {
	e.program = p.name
	topic, err := s.set(ctx, db, p)
	if err != nil {
		return e, err
	}
	n := 1
	if p.name == nobody {
		n = 0
	}
	r, err := s.start(db, p, n)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := r.ready(ctx); err != nil {
		return e, err
	}
	l, err := s.write(ctx, db, topic)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	if e.latency, e.usage, err = s.measure(ctx, db, r, &l.watch, during); err != nil {
		return e, err
	}
	if err := l.stop(); err != nil || n == 0 {
		return e, err
	}
	if err := await(ctx, r, db.empty); err != nil {
		return e, err
	}
	if e.peak, err = r.peak(); err != nil {
		return e, err
	}
	if err := r.stop(); err != nil {
		return e, err
	}
	return e, s.exact(ctx, db, topic)
}

// idle measures what a forwarder does with an empty outbox, by one mode after the other.
func (s *stage) idle(ctx context.Context, db outbox, forwarders []program) error {
	fmt.Printf("\n%s, idle: an empty outbox for %s, default settings\n", db.name(), s.idleFor)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tCPU of one core\t%s's\tpeak MiB\t", db.name())
	for _, name := range db.counters() {
		fmt.Fprintf(t, "%s/s\t", name)
	}
	fmt.Fprintln(t)
	for _, p := range forwarders {
		progress("%s, idle: %s for %s", db.name(), p.name, s.idleFor)
		e, err := s.idly(ctx, db, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(t, "%s\t%.2f %%\t%.2f %%\t%d\t", p.name, share(e.subject, e.took), share(e.database, e.took), e.peak>>20)
		for _, n := range e.counts {
			fmt.Fprintf(t, "%.1f\t", float64(n)/e.took.Seconds())
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func (s *stage) idly(ctx context.Context, db outbox, p program) (e even, err error) {
	if _, err := s.set(ctx, db, p); err != nil {
		return e, err
	}
	r, err := s.start(db, p, 1)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := r.ready(ctx); err != nil {
		return e, err
	}
	if _, e.usage, err = s.measure(ctx, db, r, nil, s.idleFor); err != nil {
		return e, err
	}
	e.peak, err = r.peak()
	return e, err
}

func share(used, took time.Duration) float64 { return 100 * used.Seconds() / took.Seconds() }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }
