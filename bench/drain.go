package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// backlog is what is drained.
type backlog struct {
	title string
	keys  int
	// held says that the program is ready and suspended while the events are committed, in
	// transactions of smallTransaction rows, and is measured from its release: so a program that
	// follows the database's log gets all of them from there, and all programs begin at the same
	// moment. Otherwise the events are there before the program starts.
	held bool
}

// drained is one measured drain.
type drained struct {
	first, total time.Duration // from the start or the release to the first record, and to the empty outbox
	peak         int64
	reads        float64 // of the table, in spite of a log
	usage
}

// rate is in events a second from the first record to the empty outbox; start-up is shown by
// itself.
func (d drained) rate(events int) float64 {
	return float64(events) / (d.total - d.first).Seconds()
}

// compare drains an outbox by the pipe and by modes of the forwarder, in turns.
func (s *stage) compare(ctx context.Context, db outbox, b backlog, forwarders []program) error {
	if !s.warm[db] {
		// The broker's first hundred thousand records cost twice what later ones do.
		progress("warming up")
		if _, err := s.drain(ctx, db, pipe, b); err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
		s.warm[db] = true
	}
	events := db.size()
	programs := append([]program{pipe}, forwarders...)
	results := map[string][]drained{}
	for run := range s.runs {
		for _, p := range programs {
			d, err := s.drain(ctx, db, p, b)
			if err != nil {
				return fmt.Errorf("draining by %s: %w", p.name, err)
			}
			progress("%s, %s, run %d of %d: %s %.0f events/s, %.0f reads of the table besides the log, exact",
				db.name(), b.title, run+1, s.runs, p.name, d.rate(events), d.reads)
			results[p.name] = append(results[p.name], d)
		}
	}
	fmt.Printf("\n%s, %s: %d events of %d bytes, %d keys, %d partitions, median of %d runs in turns\n",
		db.name(), b.title, events, s.payload, b.keys, s.partitions, s.runs)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tevents/s\tlowest\thighest\tstart-up ms\tCPU µs/event\t%s CPU µs/event\tKafka CPU µs/event\tpeak MiB\t", db.name())
	for _, name := range db.counters() {
		fmt.Fprintf(t, "%s/event\t", name)
	}
	fmt.Fprintln(t)
	for _, p := range programs {
		drainRow(t, p.name, results[p.name], events)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	for _, p := range forwarders {
		ratio := func(of func(drained) float64) float64 {
			return median(results[p.name], of) / median(results[pipe.name], of)
		}
		fmt.Printf("ratio %s/pipe: %.2f; with start-up %.2f; CPU of all processes %.2f\n", p.name,
			ratio(func(d drained) float64 { return d.rate(events) }),
			ratio(func(d drained) float64 { return 1 / d.total.Seconds() }),
			ratio(func(d drained) float64 { return (d.subject + d.database + d.kafka).Seconds() }))
	}
	return nil
}

func drainRow(t *tabwriter.Writer, name string, runs []drained, events int) {
	of := func(f func(drained) float64) float64 { return median(runs, f) }
	rate := func(d drained) float64 { return d.rate(events) }
	var rates []float64
	for _, d := range runs {
		rates = append(rates, rate(d))
	}
	each := func(f func(drained) time.Duration) float64 {
		return of(func(d drained) float64 { return f(d).Seconds() * 1e6 / float64(events) })
	}
	fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t%.0f\t", name,
		of(rate), slices.Min(rates), slices.Max(rates),
		of(func(d drained) float64 { return float64(d.first.Milliseconds()) }),
		each(func(d drained) time.Duration { return d.subject }),
		each(func(d drained) time.Duration { return d.database }),
		each(func(d drained) time.Duration { return d.kafka }),
		of(func(d drained) float64 { return float64(d.peak) / (1 << 20) }))
	for i := range runs[0].counts {
		fmt.Fprintf(t, "%.3g\t", of(func(d drained) float64 { return float64(d.counts[i]) / float64(events) }))
	}
	fmt.Fprintln(t)
}

// drain measures one program on one backlog, and checks that it was exact.
func (s *stage) drain(ctx context.Context, db outbox, p program, b backlog) (d drained, err error) {
	topic, err := s.set(ctx, db, p)
	if err != nil {
		return d, err
	}
	r := &replicas{stage: s, db: db, program: p}
	defer func() { err = errors.Join(err, r.stop()) }()
	if b.held {
		if r.program.name != pipe.name {
			r.program.settings = append(slices.Clone(p.settings), stillLease)
		}
		if err := r.hold(ctx); err != nil {
			return d, err
		}
		defer func() { err = errors.Join(err, r.each((*subject).release)) }() // or it could not be stopped
	}
	if err := db.preload(ctx, b.keys, b.held); err != nil {
		return d, err
	}
	since, err := s.meter(ctx, db, r)
	if err != nil {
		return d, err
	}
	start := time.Now()
	if b.held {
		err = r.each((*subject).release)
	} else {
		err = r.add()
	}
	if err != nil {
		return d, err
	}
	// Asking for the end of the topic costs next to nothing; looking for rows where hundreds
	// of thousands were deleted costs milliseconds, so that begins when all are produced.
	atLeast := func(n int) error {
		return await(ctx, r, func(ctx context.Context) (bool, error) {
			produced, err := s.produced(ctx, topic)
			return produced >= int64(n), err
		})
	}
	if err := atLeast(1); err != nil {
		return d, err
	}
	d.first = time.Since(start)
	if err := atLeast(db.size()); err != nil {
		return d, err
	}
	if err := await(ctx, r, db.empty); err != nil {
		return d, err
	}
	d.total = time.Since(start)
	if d.usage, err = since(); err != nil {
		return d, err
	}
	if d.peak, err = r.peak(); err != nil {
		return d, err
	}
	if r.procs[0].admin != "" {
		d.reads = r.procs[0].metrics(ctx)["forwarder_stream_table_reads_total"] - r.procs[0].reads
	}
	if err := r.stop(); err != nil {
		return d, err
	}
	return d, s.exact(ctx, db, topic)
}

// stillLease is for who is suspended for longer than leases last by default.
const stillLease = "FORWARDER_LANES_LEASE_TTL=5m"

// hold starts the program and suspends it once it is ready.
func (r *replicas) hold(ctx context.Context) error {
	if err := r.add(); err != nil {
		return err
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	// Until all that goes with a start is over.
	if err := pause(ctx, r.warmUp); err != nil {
		return err
	}
	return r.each(func(p *subject) error {
		if p.admin != "" {
			p.reads = p.metrics(ctx)["forwarder_stream_table_reads_total"]
		}
		return p.suspend()
	})
}

func median[R any](runs []R, f func(R) float64) float64 {
	values := make([]float64, len(runs))
	for i, d := range runs {
		values[i] = f(d)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
