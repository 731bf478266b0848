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
	total         time.Duration
	cpu, postgres time.Duration
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
		if err := s.printScale(delay, counts, results); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) printScale(delay time.Duration, counts []int, results map[int][]shared) error {
	fmt.Printf("\nscale: %d events of %d bytes, %d keys, %d partitions, acknowledgements %s late, median of %d runs in turns\n",
		s.events, s.payload, s.keys, s.partitions, delay, s.runs)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "replicas\tevents/s\tof one\tCPU µs/event\tof one\tPostgreSQL CPU µs/event\tof one\t")
	of := func(n int, f func(shared) time.Duration) float64 {
		var list []time.Duration
		for _, d := range results[n] {
			list = append(list, f(d))
		}
		return float64(middle(list)) / float64(s.events)
	}
	total := func(d shared) time.Duration { return d.total }
	cpu := func(d shared) time.Duration { return d.cpu }
	postgres := func(d shared) time.Duration { return d.postgres }
	for _, n := range counts {
		fmt.Fprintf(w, "%d\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", n,
			float64(time.Second)/of(n, total), of(1, total)/of(n, total),
			of(n, cpu)/1000, of(n, cpu)/of(1, cpu), of(n, postgres)/1000, of(n, postgres)/of(1, postgres))
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
// to the empty table, and checks that they were exact.
func (s *stage) drainBy(ctx context.Context, t *table, n int) (d shared, err error) {
	topic, err := s.set(ctx, t, modes[t.name()][0])
	if err != nil {
		return d, err
	}
	r, err := s.startFleet(ctx, t, n, stillLease)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := r.each((*subject).suspend); err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, r.each((*subject).release)) }() // or it could not be stopped
	if err := t.fill(ctx, s.keys, false); err != nil {
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
	total := time.Since(begun)
	used, err := since()
	if err != nil {
		return d, err
	}
	d = shared{total: total, cpu: used.subject, postgres: used.database}
	if err := r.stop(); err != nil {
		return d, err
	}
	return d, s.exact(ctx, t, topic)
}
