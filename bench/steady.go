package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// steady measures from commit to consumed under an even load.
func (s *stage) steady(ctx context.Context) (err error) {
	topic, err := s.set(ctx)
	if err != nil {
		return err
	}
	var watch oracle.Stopwatch
	writer, err := oracle.NewWriter(oracle.WriterConfig{
		URL: s.postgres.URL(database), Topics: []string{topic}, Rate: s.rate, PayloadBytes: s.payload, Stopwatch: &watch,
	})
	if err != nil {
		return err
	}
	checker, err := oracle.StartChecker(oracle.CheckerConfig{Brokers: s.brokers(), Topics: []string{topic}, Stopwatch: &watch})
	if err != nil {
		return err
	}
	defer checker.Stop()
	p, err := s.start("forwarder")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()

	writing, stop := context.WithCancel(ctx)
	defer stop()
	written := make(chan error, 1)
	go func() { written <- writer.Run(writing) }()
	if err := pause(ctx, s.warmUp); err != nil {
		return errors.Join(err, <-written)
	}
	watch.Recent() // what was measured while everything warmed up
	since, err := s.meter(ctx, p)
	if err != nil {
		return err
	}
	progress("steady: %.0f events/s for %s", s.rate, s.steadyFor)
	begun := time.Now()
	if err := pause(ctx, s.steadyFor); err != nil {
		return errors.Join(err, <-written)
	}
	latency, took := watch.Recent(), time.Since(begun)
	used, err := since()
	if err != nil {
		return err
	}
	stop()
	if err := <-written; err != nil {
		return err
	}
	if err := await(ctx, p, s.empty); err != nil {
		return err
	}
	peak, err := p.peakMemory()
	if err != nil {
		return err
	}
	if err := p.stop(); err != nil {
		return err
	}
	if err := s.exact(ctx, topic); err != nil {
		return err
	}
	fmt.Printf("\nsteady: %.0f events/s in single-row transactions of 8 connections, %s after %s of warm-up, default settings\n",
		float64(latency.Count)/took.Seconds(), s.steadyFor, s.warmUp)
	fmt.Printf("commit to consumed: p50 %s, p99 %s, max %s (%d events)\n", ms(latency.P50), ms(latency.P99), ms(latency.Max), latency.Count)
	fmt.Printf("CPU of one core: forwarder %.1f %%, PostgreSQL with the writers' work %.1f %%, Kafka %.1f %%; peak %d MiB%s\n",
		share(used.subject, took), share(used.postgres, took), share(used.kafka, took), peak>>20, s.perSecond(used, took))
	return nil
}

// idle measures what the forwarder does with an empty outbox.
func (s *stage) idle(ctx context.Context) (err error) {
	if _, err := s.set(ctx); err != nil {
		return err
	}
	p, err := s.start("forwarder")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := pause(ctx, s.warmUp); err != nil {
		return err
	}
	since, err := s.meter(ctx, p)
	if err != nil {
		return err
	}
	begun := time.Now()
	progress("idle: %s", s.idleFor)
	if err := pause(ctx, s.idleFor); err != nil {
		return err
	}
	took := time.Since(begun)
	used, err := since()
	if err != nil {
		return err
	}
	if err := p.alive(); err != nil {
		return err
	}
	peak, err := p.peakMemory()
	if err != nil {
		return err
	}
	fmt.Printf("\nidle: an empty outbox for %s, default settings\n", s.idleFor)
	fmt.Printf("CPU of one core: forwarder %.2f %%, PostgreSQL %.2f %%; peak %d MiB%s; WAL %.0f bytes/s\n",
		share(used.subject, took), share(used.postgres, took), peak>>20, s.perSecond(used, took), float64(used.wal)/took.Seconds())
	return nil
}

func (s *stage) perSecond(u usage, took time.Duration) string {
	if !s.counted {
		return "; statements not counted"
	}
	return fmt.Sprintf("; %.1f statements/s", float64(u.statements)/took.Seconds())
}

func share(used, took time.Duration) float64 { return 100 * used.Seconds() / took.Seconds() }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond)) }
