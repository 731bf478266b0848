package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// stage holds the servers and the sessions that watch them. A database is started when its
// first section is measured.
type stage struct {
	options
	forwarder, pipe string // paths of the programs

	table      *table      // nil before it is started
	collection *collection // nil before it is started
	kafka      *servers.Kafka
	admin      *kadm.Client
	topics     int             // made so far
	warm       map[outbox]bool // a drain has warmed up the servers
}

// database is the outbox's, on either server.
const database = "bench"

// brokerJVM is the heap that a broker's own start script gives it, and not what starts fast. The
// compiler of one in production has long done its work; here it may have what is left.
var brokerJVM = []string{
	"-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
	"-XX:ThreadPriorityPolicy=1", "-XX:CompilerThreadPriority=19",
}

func newStage(ctx context.Context, o options, forwarder, pipe string) (*stage, error) {
	s := &stage{options: o, forwarder: forwarder, pipe: pipe, warm: map[outbox]bool{}}
	var err error
	s.kafka, err = servers.StartKafka(ctx, servers.KafkaConfig{JVM: brokerJVM})
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Addr()))
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.admin = kadm.NewClient(client)
	return s, nil
}

// postgres is the outbox in PostgreSQL.
func (s *stage) postgres(ctx context.Context) (_ *table, err error) {
	if s.table == nil {
		s.table, err = startTable(ctx, s.options, s.initialize)
	}
	return s.table, err
}

// mongo is the outbox in MongoDB.
func (s *stage) mongo(ctx context.Context) (_ *collection, err error) {
	if s.collection == nil {
		s.collection, err = startCollection(ctx, s.options, s.initialize)
	}
	return s.collection, err
}

// initialize runs forwarder init.
func (s *stage) initialize(ctx context.Context, url string, settings []string) error {
	cmd := exec.CommandContext(ctx, s.forwarder, "init", "--source-url", url)
	cmd.Env = append(os.Environ(), settings...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running forwarder init: %w\n%s", err, out)
	}
	return nil
}

func (s *stage) close() error {
	var errs []error
	if s.admin != nil {
		s.admin.Close()
	}
	if s.kafka != nil {
		errs = append(errs, s.kafka.Close())
	}
	if s.table != nil {
		errs = append(errs, s.table.close())
	}
	if s.collection != nil {
		errs = append(errs, s.collection.close())
	}
	return errors.Join(errs...)
}

// set makes a new and empty outbox for a program, and a new topic, whose name it returns.
func (s *stage) set(ctx context.Context, db outbox, p program) (topic string, err error) {
	s.topics++
	topic = fmt.Sprintf("bench-%d", s.topics)
	if err := db.reset(ctx, topic, p.settings); err != nil {
		return "", err
	}
	return topic, s.create(ctx, topic)
}

func (s *stage) create(ctx context.Context, topic string) error {
	return oracle.CreateTopic(ctx, s.brokers(), topic, int32(s.partitions), nil)
}

func (s *stage) brokers() []string { return []string{s.kafka.Addr()} }

// produced is the number of records in the topic.
func (s *stage) produced(ctx context.Context, topic string) (int64, error) {
	ends, err := s.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("asking for the end of the topic: %w", err)
	}
	var sum int64
	ends.Each(func(o kadm.ListedOffset) { sum += o.Offset })
	return sum, nil
}

// exact reads the topics and holds them against the ledger: every event once, in the order of
// its key, and the outbox empty. Then it deletes the topics.
func (s *stage) exact(ctx context.Context, db outbox, topics ...string) error {
	checker, err := oracle.StartChecker(oracle.CheckerConfig{Brokers: s.brokers(), Topics: topics})
	if err != nil {
		return err
	}
	defer checker.Stop()
	ledger, err := db.ledger(ctx)
	if err != nil {
		return err
	}
	v, err := checker.Verdict(ctx, ledger)
	if err != nil {
		return err
	}
	empty, err := db.empty(ctx)
	if err != nil {
		return err
	}
	if v.Err() != nil || v.Repeated > 0 || !empty {
		return fmt.Errorf("not exact: %v; the outbox is empty: %v", v, empty)
	}
	if _, err := s.admin.DeleteTopics(ctx, topics...); err != nil {
		return fmt.Errorf("deleting the topics: %w", err)
	}
	return nil
}

// load is an even load: a writer, and a consumer that measures when the events arrive.
type load struct {
	watch   oracle.Stopwatch
	checker *oracle.Checker
	cancel  context.CancelFunc
	written chan error // gets what the writer's Run returned
	ended   bool       // written was read
}

// write begins to write to an outbox for a topic.
func (s *stage) write(ctx context.Context, db outbox, topic string) (*load, error) {
	l := &load{written: make(chan error, 1)}
	w, err := db.writer(&l.watch)
	if err != nil {
		return nil, err
	}
	l.checker, err = oracle.StartChecker(oracle.CheckerConfig{Brokers: s.brokers(), Topics: []string{topic}, Stopwatch: &l.watch})
	if err != nil {
		return nil, err
	}
	ctx, l.cancel = context.WithCancel(ctx)
	go func() { l.written <- w.Run(ctx) }()
	return l, nil
}

// stop ends the writer. It may be called twice.
func (l *load) stop() error {
	if l.ended {
		return nil
	}
	l.ended = true
	l.cancel()
	err := <-l.written
	l.checker.Stop()
	return err
}

// measure gives the latency and the usage of some time, after the warm-up.
func (s *stage) measure(ctx context.Context, db outbox, r *replicas, watch *oracle.Stopwatch, during time.Duration) (oracle.Latency, usage, error) {
	var none oracle.Latency
	if err := pause(ctx, s.warmUp); err != nil {
		return none, usage{}, err
	}
	watch.Recent() // what was measured while everything warmed up
	since, err := s.meter(ctx, db, r)
	if err != nil {
		return none, usage{}, err
	}
	if err := pause(ctx, during); err != nil {
		return none, usage{}, err
	}
	latency := watch.Recent()
	used, err := since()
	return latency, used, errors.Join(err, r.each((*subject).alive))
}
