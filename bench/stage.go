package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// stage holds the servers and the sessions that watch them. The programs under measurement
// connect as a role of their own, which tells their statements from ours.
type stage struct {
	options
	programs map[string]string // by name, the path

	postgres *servers.Postgres
	kafka    *servers.Kafka
	admin    *kadm.Client
	conn     *pgx.Conn // in database bench
	counted  bool      // pg_stat_statements is there
	topics   int       // made so far
	warm     bool      // a drain has warmed up the servers
}

const (
	role     = "subject"
	database = "bench"
)

// brokerJVM is what a broker has in production, not what starts fast.
var brokerJVM = []string{"-Xms256m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"}

func newStage(ctx context.Context, o options, forwarder, pipe string) (_ *stage, err error) {
	s := &stage{options: o, programs: map[string]string{"forwarder": forwarder, "pipe": pipe}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.startPostgres(ctx); err != nil {
		return nil, err
	}
	s.kafka, err = servers.StartKafka(ctx, servers.KafkaConfig{JVM: brokerJVM})
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Addr()))
	if err != nil {
		return nil, err
	}
	s.admin = kadm.NewClient(client)
	return s, nil
}

func (s *stage) startPostgres(ctx context.Context) (err error) {
	settings := map[string]string{
		"shared_buffers": "1GB",
		// No checkpoint falls into a measurement but the one that each begins with.
		"checkpoint_timeout": "1h", "max_wal_size": "8GB",
		"shared_preload_libraries": "pg_stat_statements",
	}
	if s.postgres, err = servers.StartPostgres(ctx, servers.PostgresConfig{Settings: settings}); err == nil {
		s.counted = true
		return nil
	}
	// A server that was fetched as a package comes without the extension.
	delete(settings, "shared_preload_libraries")
	progress("no pg_stat_statements here, so statements are not counted")
	s.postgres, err = servers.StartPostgres(ctx, servers.PostgresConfig{Settings: settings})
	return err
}

func (s *stage) close() error {
	var errs []error
	if s.conn != nil {
		errs = append(errs, s.conn.Close(context.Background()))
	}
	if s.admin != nil {
		s.admin.Close()
	}
	if s.kafka != nil {
		errs = append(errs, s.kafka.Close())
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Close())
	}
	return errors.Join(errs...)
}

// set makes a new database with an empty outbox, and a new topic, whose name it returns.
func (s *stage) set(ctx context.Context) (topic string, err error) {
	if s.conn != nil {
		if err := s.conn.Close(ctx); err != nil {
			return "", fmt.Errorf("closing a session: %w", err)
		}
		s.conn = nil
	}
	server, err := pgx.Connect(ctx, s.postgres.URL("postgres"))
	if err != nil {
		return "", fmt.Errorf("connecting: %w", err)
	}
	defer func() { err = errors.Join(err, server.Close(context.WithoutCancel(ctx))) }()
	for _, statement := range []string{
		"DROP DATABASE IF EXISTS " + database + " WITH (FORCE)",
		"DROP ROLE IF EXISTS " + role,
		"CREATE ROLE " + role + " SUPERUSER LOGIN",
		"CREATE DATABASE " + database,
		// Before the load: the pages that deletes touch have been logged in full by then, as
		// those of an outbox whose rows live for milliseconds are.
		"CHECKPOINT",
	} {
		if _, err := server.Exec(ctx, statement); err != nil {
			return "", fmt.Errorf("executing %q: %w", statement, err)
		}
	}
	if out, err := exec.CommandContext(ctx, s.programs["forwarder"], "init", "--source-url", s.url()).CombinedOutput(); err != nil {
		return "", fmt.Errorf("running forwarder init: %w\n%s", err, out)
	}
	if s.conn, err = pgx.Connect(ctx, s.postgres.URL(database)); err != nil {
		return "", fmt.Errorf("connecting: %w", err)
	}
	if s.counted {
		if _, err := s.conn.Exec(ctx, "CREATE EXTENSION pg_stat_statements"); err != nil {
			return "", fmt.Errorf("creating an extension: %w", err)
		}
	}
	s.topics++
	topic = fmt.Sprintf("bench-%d", s.topics)
	return topic, oracle.CreateTopic(ctx, s.brokers(), topic, int32(s.partitions), nil)
}

// url is the database as the measured programs reach it, by their own role.
func (s *stage) url() string {
	cfg := s.postgres.URL(database)
	return withUser(cfg, role)
}

func (s *stage) brokers() []string { return []string{s.kafka.Addr()} }

// start starts one of the measured programs.
func (s *stage) start(name string, settings ...string) (*subject, error) {
	args := []string{"-source-url", s.url(), "-brokers", s.kafka.Addr()}
	if name == "forwarder" {
		args = []string{"run", "--source-url", s.url(), "--brokers", s.kafka.Addr(), "--admin-listen", "none"}
	}
	return startSubject(s.programs[name], args, settings...)
}

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

// empty says whether the outbox is.
func (s *stage) empty(ctx context.Context) (bool, error) {
	var left bool
	if err := s.conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox)").Scan(&left); err != nil {
		return false, fmt.Errorf("looking at the outbox: %w", err)
	}
	return !left, nil
}

// exact reads the topic and holds it against the ledger: every event once, in the order of
// its key, and the outbox empty.
func (s *stage) exact(ctx context.Context, topic string) error {
	url := s.postgres.URL(database)
	checker, err := oracle.StartChecker(oracle.CheckerConfig{Brokers: s.brokers(), Topics: []string{topic}})
	if err != nil {
		return err
	}
	defer checker.Stop()
	ledger, err := oracle.ReadLedger(ctx, url, oracle.Tables{})
	if err != nil {
		return err
	}
	v, err := checker.Verdict(ctx, ledger)
	if err != nil {
		return err
	}
	left, err := oracle.Left(ctx, url, oracle.Tables{})
	if err != nil {
		return err
	}
	if v.Err() != nil || v.Repeated > 0 || left > 0 {
		return fmt.Errorf("not exact: %v; %d rows left", v, left)
	}
	return nil
}
