package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/admin"
	"github.com/outbox-forwarder/forwarder/internal/config"
	"github.com/outbox-forwarder/forwarder/internal/demo"
	"github.com/outbox-forwarder/forwarder/sink"
	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/source/postgres"
)

// actions are the bodies of the commands. Each gets a valid configuration and a context that
// ends with the first signal; run returns nil for a clean stop. An error that holds a
// *config.FieldError ends the process with the code of a configuration problem.
type actions struct {
	run       func(ctx context.Context, cfg config.Config, logger *slog.Logger) error
	slots     func(ctx context.Context, cfg config.Config) ([]postgres.Slot, error)
	dropSlot  func(ctx context.Context, cfg config.Config, name string) error
	check     func(ctx context.Context, cfg config.Config, logger *slog.Logger, out io.Writer) error
	initStore func(ctx context.Context, cfg config.Config, print bool, logger *slog.Logger, out io.Writer) error
	demo      func(ctx context.Context, cfg config.Config, options demoOptions, out io.Writer) error
	parked    func(ctx context.Context, cfg config.Config, retry bool, out io.Writer) error
	retire    func(ctx context.Context, cfg config.Config, out io.Writer) error
	overview  func(ctx context.Context, cfg config.Config) (*source.Overview, error)
}

var wired = actions{run: runForwarder, check: checkStart, slots: listSlots, dropSlot: dropSlot, initStore: initStore, demo: runDemo, parked: listParked, retire: retire, overview: readOverview}

func runForwarder(ctx context.Context, cfg config.Config, logger *slog.Logger) error {
	return (&service{cfg: cfg, log: logger}).run(ctx)
}

func initStore(ctx context.Context, cfg config.Config, print bool, logger *slog.Logger, out io.Writer) error {
	db := databaseOf(cfg, logger)
	if !print {
		if err := db.initialize(ctx); err != nil {
			return setupProblems(cfg, err)
		}
		_, err := fmt.Fprintf(out, "%s is ready\n", cfg.Source.Outbox())
		return err
	}
	list, err := db.statements()
	if err != nil {
		return &config.FieldError{Field: cfg.Source.Section(), Problem: err.Error()}
	}
	for _, sql := range list {
		if _, err := fmt.Fprintf(out, "%s;\n", sql); err != nil {
			return err
		}
	}
	return nil
}

func runDemo(ctx context.Context, cfg config.Config, options demoOptions, out io.Writer) error {
	settings := func(t demo.Target) config.Config {
		c := cfg
		schema, table, _ := strings.Cut(t.Table, ".") // the demo's own names hold no other dot
		if cfg.Source.IsMongo() {
			c.Source.Mongo.Database, c.Source.Mongo.Collection = schema, table
		} else {
			c.Source.Postgres.URL = config.NewURL(t.SourceURL)
			c.Source.Postgres.Table = config.Table{Schema: schema, Name: table}
		}
		c.Kafka.Brokers = t.Brokers
		c.Admin.Listen = t.AdminListen
		return c
	}
	d := demo.Config{
		Brokers:  cfg.Kafka.Brokers,
		Rate:     options.Rate,
		Duration: options.Duration,
		Out:      out,
		Init: func(ctx context.Context, t demo.Target) error {
			return setupProblems(cfg, databaseOf(settings(t), t.Logger).initialize(ctx))
		},
		Run: func(ctx context.Context, t demo.Target) error {
			return (&service{cfg: settings(t), log: t.Logger, listening: t.Listening}).run(ctx)
		},
	}
	d.SourceURL = cfg.Source.Postgres.URL.Reveal()
	if cfg.Source.IsMongo() {
		d.SourceURL = cfg.Source.Mongo.URL.Reveal()
	}
	return demo.Run(ctx, d)
}

func listParked(ctx context.Context, cfg config.Config, retry bool, out io.Writer) error {
	client, err := admin.NewClient(cfg.Admin.Listen)
	if err != nil {
		return err
	}
	if retry {
		n, err := client.RetryParked(ctx)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%d tried again now\n", n)
		return err
	}
	parked, err := client.Parked(ctx)
	if err != nil {
		return err
	}
	return admin.WriteTable(out, parked, time.Now())
}

func retire(ctx context.Context, cfg config.Config, out io.Writer) error {
	client, err := admin.NewClient(cfg.Admin.Listen)
	if err != nil {
		return err
	}
	if err := client.Retire(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "giving up its lanes; `forwarder status` shows how far it is")
	return err
}

func readOverview(ctx context.Context, cfg config.Config) (*source.Overview, error) {
	o, err := databaseOf(cfg, slog.New(slog.DiscardHandler)).overview(ctx)
	return o, setupProblems(cfg, err)
}

func sinkConfig(cfg config.Config, logger *slog.Logger) (sink.Config, error) {
	tls, problems := cfg.Kafka.TLS.Client(os.ReadFile)
	if len(problems) > 0 {
		return sink.Config{}, problems
	}
	return sink.Config{
		Brokers:     cfg.Kafka.Brokers,
		ClientID:    cfg.Kafka.ClientID,
		Compression: cfg.Kafka.Compression,
		TLS:         tls,
		SASL: sink.SASL{
			Mechanism: cfg.Kafka.SASL.Mechanism,
			User:      cfg.Kafka.SASL.Username,
			Password:  cfg.Kafka.SASL.Password.Reveal(),
		},
		Logger: logger,
	}, nil
}
