package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/proxy"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// shared is one drain by several replicas.
type shared struct {
	total time.Duration
	usage
}

// scale drains preloaded outboxes by 1, 2 and 4 replicas. On a machine with few cores more
// replicas can be faster only where waiting is the limit, and a replica hides much of it: it has
// tens of thousands of events in flight. Acknowledgements that come at once show what sharing
// costs.
func (s *stage) scale(ctx context.Context, t *table) error {
	late, err := proxy.StartKafka()
	if err != nil {
		return err
	}
	defer late.Close() //nolint:errcheck // nothing is left to be lost
	restore, err := s.behind(ctx, late)
	if err != nil {
		return err
	}
	defer restore()
	progress("warming up")
	if _, err := s.drainBy(ctx, t, 1); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	counts := []int{1, 2, 4}
	for _, delay := range s.ackDelays {
		late.DelayAcks(delay)
		results := map[int][]shared{}
		for run := range s.runs {
			for _, n := range counts {
				d, err := s.drainBy(ctx, t, n)
				if err != nil {
					return fmt.Errorf("draining by %d replicas: %w", n, err)
				}
				progress("scale, acknowledgements %s late, run %d of %d: %d replicas %.0f events/s, exact",
					delay, run+1, s.runs, n, float64(s.events)/d.total.Seconds())
				results[n] = append(results[n], d)
			}
		}
		if err := s.printScale(t, delay, counts, results); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) printScale(db outbox, delay time.Duration, counts []int, results map[int][]shared) error {
	fmt.Printf("\nscale: %d events of %d bytes, %d keys, %d partitions, acknowledgements %s late, median of %d runs in turns, each after a first backlog\n",
		s.events, s.payload, s.keys, s.partitions, delay, s.runs)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	each := func(n float64) float64 { return n / float64(s.events) }
	micros := func(d time.Duration) float64 { return each(float64(d.Microseconds())) }
	type column struct {
		name  string
		of    func(shared) float64
		ratio bool
	}
	columns := []column{
		{"events/s", func(d shared) float64 { return float64(s.events) / d.total.Seconds() }, true},
		{"CPU µs/event", func(d shared) float64 { return micros(d.subject) }, true},
		{db.name() + " CPU µs/event", func(d shared) float64 { return micros(d.database) }, true},
		{"Kafka CPU µs/event", func(d shared) float64 { return micros(d.kafka) }, true},
		{"all CPU µs/event", func(d shared) float64 { return micros(d.subject + d.database + d.kafka) }, true},
	}
	for i, name := range db.counters() {
		columns = append(columns, column{name: name + "/event", of: func(d shared) float64 { return each(float64(d.counts[i])) }})
	}
	fmt.Fprint(w, "replicas\t")
	for _, c := range columns {
		fmt.Fprintf(w, "%s\t", c.name)
		if c.ratio {
			fmt.Fprint(w, "of one\t")
		}
	}
	fmt.Fprintln(w)
	for _, n := range counts {
		fmt.Fprintf(w, "%d\t", n)
		for _, c := range columns {
			v := median(results[n], c.of)
			fmt.Fprintf(w, "%.3g\t", v)
			if c.ratio {
				fmt.Fprintf(w, "%.2f\t", v/median(results[1], c.of))
			}
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// behind starts a broker behind the proxy and makes it the stage's until restore is called.
func (s *stage) behind(ctx context.Context, p *proxy.Proxy) (restore func(), err error) {
	kafka, err := servers.StartKafka(ctx, servers.KafkaConfig{JVM: brokerJVM, Properties: map[string]string{
		"advertised.listeners": "PLAINTEXT://" + p.Addr(),
	}})
	if err != nil {
		return nil, err
	}
	p.SetTarget(kafka.Addr())
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addr()))
	if err != nil {
		return nil, errors.Join(err, kafka.Close())
	}
	oldKafka, oldAdmin := s.kafka, s.admin
	s.kafka, s.admin = kafka, kadm.NewClient(client)
	return func() {
		s.admin.Close()
		if err := s.kafka.Close(); err != nil {
			progress("closing the broker: %v", err)
		}
		s.kafka, s.admin = oldKafka, oldAdmin
	}, nil
}

// drainBy measures n replicas on one outbox that is filled while they are suspended, from their release
// to the empty table, and checks that they were exact. They have drained another backlog before, so that
// what a process costs once, above all the memory that it grows by, is not taken for the price
// of an event.
func (s *stage) drainBy(ctx context.Context, t *table, n int) (d shared, err error) {
	topic, err := s.set(ctx, t, modes[t.name()][0])
	if err != nil {
		return d, err
	}
	first := topic + "-first"
	if err := s.create(ctx, first); err != nil {
		return d, err
	}
	r, err := s.startFleet(ctx, t, n, stillLease)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if _, err := s.drainHeld(ctx, t, r, first); err != nil {
		return d, err
	}
	if _, err := t.conn.Exec(ctx, "VACUUM outbox"); err != nil {
		return d, fmt.Errorf("clearing the outbox: %w", err)
	}
	if d, err = s.drainHeld(ctx, t, r, topic); err != nil {
		return d, err
	}
	if err := r.stop(); err != nil {
		return d, err
	}
	return d, s.exact(ctx, t, first, topic)
}

// drainHeld suspends the replicas, fills the outbox for a topic, and measures from their release on.
func (s *stage) drainHeld(ctx context.Context, t *table, r *replicas, topic string) (d shared, err error) {
	if err := r.each((*subject).suspend); err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, r.each((*subject).release)) }() // or it could not be stopped
	if err := t.fill(ctx, topic, s.keys, false); err != nil {
		return d, err
	}
	since, err := s.meter(ctx, t, r)
	if err != nil {
		return d, err
	}
	begun := time.Now()
	if err := r.each((*subject).release); err != nil {
		return d, err
	}
	drained := func(ctx context.Context) (bool, error) {
		produced, err := s.produced(ctx, topic)
		if err != nil || produced < int64(s.events) {
			return false, err
		}
		return t.empty(ctx)
	}
	if err := await(ctx, r, drained); err != nil {
		return d, err
	}
	d.total = time.Since(begun)
	d.usage, err = since()
	return d, err
}
