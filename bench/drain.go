package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// drained is one measured drain.
type drained struct {
	first, total time.Duration // from the start to the first record, and to the empty table
	peak         int64
	usage
}

// rate is in events a second from the first record to the empty table; start-up is shown by
// itself.
func (d drained) rate(events int) float64 {
	return float64(events) / (d.total - d.first).Seconds()
}

// compare drains preloaded outboxes by pipe and forwarder in turns.
func (s *stage) compare(ctx context.Context, title string, keys int) error {
	if !s.warm {
		// The broker's first hundred thousand records cost twice what later ones do.
		progress("warming up")
		if _, err := s.drain(ctx, "pipe", keys); err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
		s.warm = true
	}
	programs := []string{"pipe", "forwarder"}
	results := map[string][]drained{}
	for run := range s.runs {
		for _, name := range programs {
			d, err := s.drain(ctx, name, keys)
			if err != nil {
				return fmt.Errorf("draining by the %s: %w", name, err)
			}
			progress("%s, run %d of %d: %s %.0f events/s, exact", title, run+1, s.runs, name, d.rate(s.events))
			results[name] = append(results[name], d)
		}
	}
	fmt.Printf("\n%s: %d events of %d bytes, %d keys, %d partitions, median of %d runs in turns\n",
		title, s.events, s.payload, keys, s.partitions, s.runs)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tevents/s\tlowest\thighest\tstart-up ms\tCPU s\tPostgreSQL CPU s\tKafka CPU s\tpeak MiB\tstatements/1000 events\tWAL bytes/event\t")
	for _, name := range programs {
		s.row(t, name, results[name])
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	ratio := func(of func(drained) float64) float64 {
		return median(results["forwarder"], of) / median(results["pipe"], of)
	}
	fmt.Printf("ratio forwarder/pipe: %.2f; with start-up %.2f\n",
		ratio(func(d drained) float64 { return d.rate(s.events) }),
		ratio(func(d drained) float64 { return float64(s.events) / d.total.Seconds() }))
	return nil
}

func (s *stage) row(t *tabwriter.Writer, name string, runs []drained) {
	of := func(f func(drained) float64) float64 { return median(runs, f) }
	rate := func(d drained) float64 { return d.rate(s.events) }
	slowest := slices.MinFunc(runs, func(a, b drained) int { return int(rate(a) - rate(b)) })
	fastest := slices.MaxFunc(runs, func(a, b drained) int { return int(rate(a) - rate(b)) })
	statements := "not counted"
	if s.counted {
		statements = fmt.Sprintf("%.2f", of(func(d drained) float64 { return 1000 * float64(d.statements) / float64(s.events) }))
	}
	fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t%.0f\t%s\t%.0f\t\n", name,
		of(rate), rate(slowest), rate(fastest),
		of(func(d drained) float64 { return float64(d.first.Milliseconds()) }),
		of(func(d drained) float64 { return d.subject.Seconds() }),
		of(func(d drained) float64 { return d.postgres.Seconds() }),
		of(func(d drained) float64 { return d.kafka.Seconds() }),
		of(func(d drained) float64 { return float64(d.peak) / (1 << 20) }),
		statements,
		of(func(d drained) float64 { return float64(d.wal) / float64(s.events) }))
}

// drain measures one program on one preloaded outbox, and checks that it was exact.
func (s *stage) drain(ctx context.Context, name string, keys int) (d drained, err error) {
	topic, err := s.set(ctx)
	if err != nil {
		return d, err
	}
	err = oracle.Preload(ctx, oracle.PreloadConfig{
		URL: s.postgres.URL(database), Topic: topic, Events: s.events, Keys: keys, PayloadBytes: s.payload,
	})
	if err != nil {
		return d, err
	}
	if _, err := s.conn.Exec(ctx, "VACUUM ANALYZE outbox"); err != nil {
		return d, fmt.Errorf("preparing the outbox: %w", err)
	}
	since, err := s.meter(ctx, nil)
	if err != nil {
		return d, err
	}
	start := time.Now()
	p, err := s.start(name)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	// Asking for the end of the topic costs next to nothing; looking for rows where hundreds
	// of thousands were deleted costs milliseconds, so that begins when all are produced.
	atLeast := func(n int64) func(context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) {
			produced, err := s.produced(ctx, topic)
			return produced >= n, err
		}
	}
	if err := await(ctx, p, atLeast(1)); err != nil {
		return d, err
	}
	d.first = time.Since(start)
	if err := await(ctx, p, atLeast(int64(s.events))); err != nil {
		return d, err
	}
	if err := await(ctx, p, s.empty); err != nil {
		return d, err
	}
	d.total = time.Since(start)
	if d.usage, err = since(); err != nil {
		return d, err
	}
	// All of the program's time is its own, from its very start.
	if d.subject, err = cpuTime(p.cmd.Process.Pid, false); err != nil {
		return d, err
	}
	if d.peak, err = p.peakMemory(); err != nil {
		return d, err
	}
	if err := p.stop(); err != nil {
		return d, err
	}
	if err := s.exact(ctx, topic); err != nil {
		return d, err
	}
	if _, err := s.admin.DeleteTopic(ctx, topic); err != nil {
		return d, fmt.Errorf("deleting the topic: %w", err)
	}
	return d, nil
}

// await polls until the condition holds or the program ends.
func await(ctx context.Context, p *subject, condition func(context.Context) (bool, error)) error {
	for {
		if ok, err := condition(ctx); ok || err != nil {
			return err
		}
		if err := p.alive(); err != nil {
			return err
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

func median(runs []drained, f func(drained) float64) float64 {
	values := make([]float64, len(runs))
	for i, d := range runs {
		values[i] = f(d)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
