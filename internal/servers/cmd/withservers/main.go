// Command withservers runs a command with a PostgreSQL, a MongoDB and a Kafka of its own:
//
//	withservers go test ./...
//
// The command finds them by the variables of package serverstest. Before that, what tests
// need of the machine is installed where it is missing and that is possible. Afterwards the
// servers are stopped, and withservers exits as the command did.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

func main() {
	code, err := withServers(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "withservers:", err)
	}
	os.Exit(code)
}

func withServers(command []string) (code int, err error) {
	if len(command) == 0 {
		return 2, errors.New("name the command to run")
	}
	// Until the command runs, a signal ends the start; then it is the command's, which
	// decides when to end.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	log := slog.Default()
	all, err := startAll(log, signals)
	defer func() {
		if closeErr := all.close(); closeErr != nil {
			code, err = max(code, 1), errors.Join(err, closeErr)
		}
	}()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(),
		serverstest.PostgresEnv+"="+all.postgres.URL("postgres"),
		serverstest.MongoEnv+"="+all.mongo.URL(""),
		serverstest.KafkaEnv+"="+all.kafka.Addr())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return runToEnd(cmd, signals)
}

// trio holds the servers; each is nil where it did not start.
type trio struct {
	postgres *servers.Postgres
	mongo    *servers.Mongo
	kafka    *servers.Kafka
}

func startAll(log *slog.Logger, signals <-chan os.Signal) (all trio, err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	started := make(chan struct{})
	defer close(started)
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("got the signal %s", s))
		case <-started:
		}
	}()
	if err := servers.Install(ctx, log, servers.PostgreSQL, servers.MongoLibraries, servers.Java, servers.Kcat, servers.CCompiler); err != nil {
		return all, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		cfg := serverstest.PostgresConfig()
		cfg.Log = log
		all.postgres, err = servers.StartPostgres(ctx, cfg)
		return err
	})
	group.Go(func() (err error) {
		all.mongo, err = servers.StartMongo(ctx, servers.MongoConfig{Log: log})
		return err
	})
	group.Go(func() (err error) {
		all.kafka, err = servers.StartKafka(ctx, servers.KafkaConfig{Log: log})
		return err
	})
	return all, group.Wait()
}

func (t trio) close() error {
	var errs []error
	if t.postgres != nil {
		errs = append(errs, t.postgres.Close())
	}
	if t.mongo != nil {
		errs = append(errs, t.mongo.Close())
	}
	if t.kafka != nil {
		errs = append(errs, t.kafka.Close())
	}
	return errors.Join(errs...)
}

// runToEnd runs the command, passes signals on to it, and returns its exit code.
func runToEnd(cmd *exec.Cmd, signals <-chan os.Signal) (int, error) {
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("running the command: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			// A Ctrl-C reaches the command from the terminal too; twice does no harm. An
			// error only says that it has ended.
			_ = cmd.Process.Signal(s)
		case err := <-ended:
			var exit *exec.ExitError
			switch {
			case err == nil:
				return 0, nil
			case errors.As(err, &exit) && exit.ExitCode() >= 0:
				return exit.ExitCode(), nil
			}
			return 1, fmt.Errorf("running the command: %w", err)
		}
	}
}
