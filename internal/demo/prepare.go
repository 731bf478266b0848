package demo

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// prepare starts everything up to the writer.
func (d *demo) prepare(ctx context.Context) error {
	for _, step := range []struct {
		name, doing string
		do          func(context.Context) (string, error)
	}{
		{d.product(), d.either(d.cfg.SourceURL != "", "preparing "+d.product(), "starting "+d.product()), d.openDatabase},
		{"Kafka", d.either(len(d.cfg.Brokers) > 0, "preparing Kafka", "starting a Kafka broker"), d.openBroker},
		{"Outbox", "creating the outbox", d.createOutbox},
		{"Forwarder", "starting the forwarder", d.startForwarder},
	} {
		if err := d.screen.step(step.name, step.doing, func() (string, error) { return step.do(ctx) }); err != nil {
			return err
		}
	}
	return d.startWork(ctx)
}

func (d *demo) product() string {
	if oracle.IsMongo(d.cfg.SourceURL) {
		return "MongoDB"
	}
	return "PostgreSQL"
}

func (d *demo) either(given bool, ifGiven, otherwise string) string {
	if given {
		return ifGiven
	}
	return otherwise
}

func (d *demo) openDatabase(ctx context.Context) (detail string, err error) {
	if d.cfg.SourceURL != "" {
		use := useDatabase
		if oracle.IsMongo(d.cfg.SourceURL) {
			use = useMongo
		}
		ctx, cancel := context.WithTimeout(ctx, reachLimit)
		defer cancel()
		d.database, err = use(ctx, d.cfg.SourceURL)
	} else {
		// What is fetched is told in plain words.
		bare := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}}
		d.database, err = startDatabase(ctx, slog.New(slog.NewTextHandler(d.screen, bare)))
	}
	if err != nil {
		return "", err
	}
	d.closers = append(d.closers, d.database.close)
	return d.database.detail, nil
}

func (d *demo) openBroker(ctx context.Context) (detail string, err error) {
	if len(d.cfg.Brokers) > 0 {
		ctx, cancel := context.WithTimeout(ctx, reachLimit)
		defer cancel()
		d.broker, err = useBrokers(ctx, d.cfg.Brokers, time.Now())
	} else {
		d.broker, err = startBroker()
	}
	if err != nil {
		return "", err
	}
	d.closers = append(d.closers, d.broker.close)
	return d.broker.detail, nil
}

func (d *demo) target() Target {
	return Target{
		SourceURL:   d.database.url,
		Table:       d.database.tables.Outbox,
		Brokers:     d.broker.addrs,
		AdminListen: "127.0.0.1:0",
		Listening:   func(string) {},
		Logger:      d.logger,
	}
}

func (d *demo) createOutbox(ctx context.Context) (detail string, err error) {
	if err := d.cfg.Init(ctx, d.target()); err != nil {
		return "", err
	}
	if err := oracle.CreateLedger(ctx, d.database.url, d.database.tables); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s, and %s to know what was committed", d.database.kind, d.database.tables.Outbox, d.database.tables.Ledger), nil
}

func (d *demo) startForwarder(ctx context.Context) (detail string, err error) {
	listening := make(chan string, 1)
	target := d.target()
	target.Listening = func(addr string) {
		select {
		case listening <- addr:
		default: // told already
		}
	}
	d.forwarder = begin(ctx, func(ctx context.Context) error { return d.cfg.Run(ctx, target) })
	d.closers = append(d.closers, func(context.Context) error {
		// Its error has been reported by whoever stopped it or saw it end.
		_ = d.forwarder.stop()
		return nil
	})
	select {
	case addr := <-listening:
		return fmt.Sprintf("http://%s  health, metrics and what waits", addr), nil
	case <-d.forwarder.done:
		return "", d.forwarder.ended()
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// startWork starts the checker and then the writer, so that no event is written unseen.
func (d *demo) startWork(ctx context.Context) (err error) {
	watch := &oracle.Stopwatch{}
	topics := []string{d.broker.topic}
	d.checker, err = oracle.StartChecker(oracle.CheckerConfig{
		Brokers: d.broker.addrs, Topics: topics, Stopwatch: watch, History: checkerHistory,
	})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, func(context.Context) error { d.checker.Stop(); return nil })
	d.writer, err = oracle.NewWriter(oracle.WriterConfig{
		URL: d.database.url, Tables: d.database.tables, Topics: topics,
		Connections: writerConnections, Keys: writerKeys,
		// What rolls back is written on top, so that the rate is that of committed events.
		Rate:              d.cfg.Rate / (1 - rollbacks),
		MaxPerTransaction: 1,
		Rollback:          rollbacks, Hold: lateCommits, HoldFor: lateBy,
		Seed:      uint64(time.Now().UnixNano()),
		Stopwatch: watch,
	})
	if err != nil {
		return err
	}
	d.meter = newMeter(time.Now(), watch)
	d.writing = begin(ctx, d.writer.Run)
	d.closers = append(d.closers, func(context.Context) error { _ = d.writing.stop(); return nil })
	return nil
}
