package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/outbox-forwarder/forwarder/internal/admin"
	"github.com/outbox-forwarder/forwarder/internal/config"
	"github.com/outbox-forwarder/forwarder/internal/repeat"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/sink"
	"github.com/outbox-forwarder/forwarder/source"
)

// service is one forwarder from its start to its stop.
type service struct {
	cfg       config.Config
	log       *slog.Logger
	listening func(addr string) // told the admin server's address, when not nil

	mu        sync.Mutex // guards what follows, for the admin server
	starting  string     // what the start waits for
	forwarder *lanes.Forwarder
	producer  *sink.Producer
	keeper    *lanes.Keeper
	follower  follower  // nil for a store that is polled
	custodian custodian // nil where the log is not the truth
}

// How long the start waits between two tries of a database or a broker that may come.
const (
	startRetry = time.Second
	adminStop  = 2 * time.Second
	// ageEvery is how often the oldest undelivered row is looked for.
	ageEvery = 5 * time.Second
)

// run starts everything in the order in which it is needed, forwards until ctx is done, and
// stops it in the reverse order.
func (s *service) run(ctx context.Context) error {
	s.tuneCollector()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if s.cfg.Admin.Listen != "" {
		server := admin.New(admin.Config{
			Listen: s.cfg.Admin.Listen, Status: s, Metrics: registry, Version: versionName(),
			Profiling: s.cfg.Admin.Profiling, Logger: s.log,
		})
		if err := server.Start(); err != nil {
			return &config.FieldError{Field: "admin.listen", Value: s.cfg.Admin.Listen, Problem: err.Error(),
				Hint: "choose another address with --admin-listen, or none"}
		}
		defer func() {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminStop)
			defer cancel()
			if err := server.Stop(stop); err != nil {
				s.log.Warn("the admin server did not stop in time", "err", err)
			}
		}()
		if s.listening != nil {
			s.listening(server.Addr())
		}
	}

	db := databaseOf(s.cfg, s.log)
	outbox, err := s.openSource(ctx, db)
	if err != nil || outbox == nil {
		return err
	}
	defer outbox.Close()
	producer, err := s.openSink(ctx)
	if err != nil || producer == nil {
		return err
	}
	defer producer.Close()
	custodian, _ := outbox.(custodian)
	grace := s.cfg.Shutdown.Grace
	if custodian != nil {
		grace -= s.finishTime()
	}
	forwarder, err := lanes.NewForwarder(lanes.Config{
		Lanes: outbox.Lanes(), MaxBytes: int(s.cfg.Memory.Events),
	}, outbox, producer, s.log.With("table", outbox.Table()), grace)
	if err != nil {
		return err
	}
	registry.MustRegister(forwarder, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "forwarder_deletes_retried_total",
		Help: "Deletes sent again after a deadlock or a serialization failure.",
	}, func() float64 { return float64(outbox.DeletesRetried()) }))
	leases := db.leases()
	defer leases.Close()
	keeper := lanes.NewKeeper(lanes.KeeperConfig{
		Host: hostName(), TTL: s.cfg.Lanes.LeaseTTL, Exclusive: db.exclusive(), Report: s.report, Logger: s.log,
	}, leases, outbox.Lanes())
	log, _ := outbox.(follower)
	s.mu.Lock()
	s.forwarder, s.producer, s.keeper, s.follower, s.custodian = forwarder, producer, keeper, log, custodian
	s.mu.Unlock()

	// These go on until the forwarder has deleted its last row: what was deleted may have to be
	// confirmed to the log.
	beside, end := context.WithCancel(context.WithoutCancel(ctx))
	var others sync.WaitGroup
	others.Go(func() { watchAge(beside, outbox, registry) })
	if log != nil {
		registry.MustRegister(log)
		others.Go(func() {
			if err := log.Run(beside); err != nil {
				s.log.Error("the log is not followed any more", "err", err)
			}
		})
	}
	s.log.Info("forwarding", "table", outbox.Table(), "lanes", outbox.Lanes(), "mode", s.cfg.Source.Describe(), "brokers", s.cfg.Kafka.Brokers, "version", versionName())
	var owner lanes.Owner = keeper
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	if custodian != nil {
		owner = custodian.Owner(keeper)
	}
	unstop := context.AfterFunc(ctx, func() {
		s.finish()
		stop()
	})
	err = forwarder.Run(running, owner)
	unstop()
	stop()
	end()
	others.Wait()
	stats := forwarder.Stats()
	s.log.Info("stopped", "acknowledged", stats.Acked, "deleted", stats.Deleted, "in_flight", stats.Flying, "undeleted", stats.Undeleted)
	return err
}

// finishTime is the share of the grace period in which what was read of the log is delivered.
func (s *service) finishTime() time.Duration { return s.cfg.Shutdown.Grace / 2 }

// finish prepares a stop or a move in order, for a log that would bring again what was delivered
// behind the first event that was not.
func (s *service) finish() {
	s.mu.Lock()
	c := s.custodian
	s.mu.Unlock()
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.finishTime())
	defer cancel()
	c.Finish(ctx)
}

// tuneCollector lets garbage grow to twice what is in use, which spares a fifth of the CPU time
// at full speed, and not beyond what the bound on events in memory suggests. The runtime's own
// variables win.
func (s *service) tuneCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		shares := int64(3)
		if s.cfg.Source.Postgres.Mode == config.ModeStream || s.cfg.Source.Mongo.Mode == config.ModeStream {
			shares = 5 // a stream holds as much again, which the forwarder has not asked for yet
		}
		debug.SetMemoryLimit(shares*int64(s.cfg.Memory.Events) + 16<<20)
	}
}

// hostName begins the member's id.
func hostName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		return "forwarder"
	}
	return host
}

// openSource connects to the database. It waits for one that cannot be reached, and returns
// nil without an error when ctx ends meanwhile.
func (s *service) openSource(ctx context.Context, db database) (store, error) {
	var outbox store
	err := s.persist(ctx, db.name(), func() (retry bool, err error) {
		outbox, err = db.open(ctx)
		var setup *source.SetupError
		return !errors.As(err, &setup), err
	})
	return outbox, setupProblems(s.cfg, err)
}

// openSink connects to the cluster, as openSource does.
func (s *service) openSink(ctx context.Context) (*sink.Producer, error) {
	cfg, err := sinkConfig(s.cfg, s.log)
	if err != nil {
		return nil, err
	}
	producer, err := sink.New(cfg)
	if err != nil {
		return nil, err
	}
	err = s.persist(ctx, "Kafka", func() (retry bool, err error) {
		err = producer.Check(ctx)
		var connect *sink.ConnectError
		return !errors.As(err, &connect) || !connect.Certain, err
	})
	if err != nil || ctx.Err() != nil {
		producer.Close()
		return nil, brokerProblem(err)
	}
	return producer, nil
}

// persist tries until it succeeds, fails for good, or ctx is done; the last is no error.
func (s *service) persist(ctx context.Context, whom string, try func() (retry bool, err error)) error {
	log := repeat.New(s.log, lanes.LogEvery)
	msg := whom + " cannot be reached, it is tried again"
	defer s.setStarting("")
	for {
		retry, err := try()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			log.Recovered(msg, whom+" is reached")
			return nil
		case !retry:
			return err
		}
		s.setStarting(fmt.Sprintf("%s: %v", msg, err))
		log.Log(ctx, slog.LevelWarn, msg, msg, "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(startRetry):
		}
	}
}

func (s *service) setStarting(what string) {
	s.mu.Lock()
	s.starting = what
	s.mu.Unlock()
}

// watchAge keeps the metric of the oldest undelivered row.
func watchAge(ctx context.Context, outbox store, registry prometheus.Registerer) {
	gauge := lanes.OldestGauge()
	registry.MustRegister(gauge)
	ticker := time.NewTicker(ageEvery)
	defer ticker.Stop()
	for {
		created, waiting, err := outbox.Oldest(ctx)
		if err == nil { // a database that is away shows elsewhere
			lanes.SetAge(gauge, created, waiting, time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// parts returns what runs by now.
func (s *service) parts() (*lanes.Forwarder, *sink.Producer, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forwarder, s.producer, s.starting
}

// Alive implements admin.Status.
func (s *service) Alive() bool {
	forwarder, _, _ := s.parts()
	return forwarder == nil || forwarder.Alive()
}

// Unready implements admin.Status.
func (s *service) Unready() []string {
	forwarder, producer, starting := s.parts()
	if forwarder == nil {
		if starting == "" {
			starting = "starting"
		}
		return []string{starting}
	}
	reasons := append(forwarder.Unready(), producer.Waiting()...)
	if s.follower != nil { // set together with the forwarder, and never changed
		reasons = append(reasons, s.follower.Unready()...)
	}
	return reasons
}

// Parked implements admin.Status.
func (s *service) Parked() []admin.Parked {
	forwarder, _, _ := s.parts()
	if forwarder == nil {
		return nil
	}
	var list []admin.Parked
	for _, p := range forwarder.Parked() {
		a := admin.Parked{
			ID: p.Name, Topic: p.Topic, Reason: p.Err.Error(),
			Attempts: p.Attempts, Since: p.Since, NextRetry: p.RetryAt,
		}
		switch p.Kind {
		case lanes.WholeLane:
			lane := uint16(p.Lane)
			a.Part, a.Lane = admin.PartLane, &lane
		case lanes.WholeTopic:
			a.Part = admin.PartTopic
		case lanes.OneKey:
			a.Part, a.Key = admin.PartKey, admin.Key(p.Key)
		case lanes.OneRow:
			a.Part = admin.PartRow
		}
		list = append(list, a)
	}
	return list
}

// RetryParked implements admin.Status.
func (s *service) RetryParked() int {
	forwarder, producer, _ := s.parts()
	if forwarder == nil {
		return 0
	}
	producer.Recheck() // before anything is submitted again
	return forwarder.RetryParked()
}

// Retire implements admin.Status.
func (s *service) Retire() {
	s.mu.Lock()
	keeper := s.keeper
	s.mu.Unlock()
	if keeper == nil {
		return
	}
	go func() {
		s.finish()
		keeper.Retire()
	}()
}
