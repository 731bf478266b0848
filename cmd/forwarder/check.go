package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/outbox-forwarder/forwarder/internal/config"
	"github.com/outbox-forwarder/forwarder/sink"
)

func (p *program) checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check [flags]", Short: "Finds what would keep a forwarder from running",
		Long: `Looks at the settings, the database and the brokers as a start would, and lists everything
that must be changed, each with its fix. It takes no lanes and sends nothing. Where something
cannot be reached it fails with 1: a forwarder would wait for that.`,
	}
	flags := addSettings(cmd, true, "source.postgres.url", "source.postgres.mode", "kafka.brokers")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Source: true, Kafka: true}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		return p.actions.check(cmd.Context(), cfg, newLogger(cfg.Log, p.stderr), p.stdout)
	}
	return cmd
}

// checkStart opens what a forwarder opens at its start.
func checkStart(ctx context.Context, cfg config.Config, logger *slog.Logger, out io.Writer) error {
	var found config.Problems
	var others []error
	sort := func(err error) {
		var setup *setupError
		var field *config.FieldError
		switch {
		case errors.As(err, &setup):
			found = append(found, setup.Problems...)
		case errors.As(err, &field):
			found = append(found, field)
		case err != nil:
			others = append(others, err)
		}
	}
	db := databaseOf(cfg, logger)
	outbox, err := db.open(ctx)
	if err != nil {
		sort(setupProblems(cfg, fmt.Errorf("opening the outbox in %s: %w", db.name(), err)))
	} else {
		outbox.Close()
	}
	sort(checkBrokers(ctx, cfg, logger))
	switch {
	case len(found) > 0:
		for _, err := range others {
			logger.Warn("the check is not complete", "err", err)
		}
		return &setupError{found}
	case len(others) > 0:
		return errors.Join(others...)
	}
	_, err = fmt.Fprintln(out, "ok")
	return err
}

func checkBrokers(ctx context.Context, cfg config.Config, logger *slog.Logger) error {
	settings, err := sinkConfig(cfg, logger)
	if err != nil {
		return err
	}
	producer, err := sink.New(settings)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := brokerProblem(producer.Check(ctx)); err != nil {
		return fmt.Errorf("connecting to Kafka: %w", err)
	}
	return nil
}

// brokerProblem turns what no retry mends into a problem of the configuration.
func brokerProblem(err error) error {
	var connect *sink.ConnectError
	if errors.As(err, &connect) && connect.Certain {
		return &config.FieldError{Field: "kafka", Problem: err.Error()}
	}
	return err
}
