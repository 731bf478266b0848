package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

const (
	writerConnections = 8
	writerKeys        = 1000
	// rollbacks and lateCommits are the shares of transactions that roll back, and that stay
	// open while others with higher ids commit: what an outbox meets in earnest.
	rollbacks   = 0.01
	lateCommits = 0.01
	lateBy      = 20 * time.Millisecond

	// checkerHistory is how far back a repeat of a key can be compared.
	checkerHistory = 10_000

	// refreshEvery is the pace of the live line, lineEvery that of the lines elsewhere.
	refreshEvery = 100 * time.Millisecond
	lineEvery    = time.Second

	// Limits of the phases that wait for others.
	reachLimit = 15 * time.Second
	drainLimit = 30 * time.Second
	closeLimit = 30 * time.Second
)

// demo is one run. It is used by one goroutine.
type demo struct {
	cfg    Config
	screen *screen
	logger *slog.Logger // the forwarder's

	closers   []func(context.Context) error // run in reverse
	database  *database
	broker    *broker
	forwarder *task
	writer    *oracle.Writer
	writing   *task
	checker   *oracle.Checker
	meter     *meter
}

// Run runs the demo until ctx ends, or for the configured duration, and prints the verdict.
// The error is ErrBroken when that is not clean; a demo that is stopped before it began to
// write has no verdict and no error.
func Run(ctx context.Context, cfg Config) (err error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	d := &demo{cfg: cfg, screen: newScreen(cfg.Out, cfg.Getenv)}
	d.logger = slog.New(slog.NewTextHandler(d.screen, &slog.HandlerOptions{Level: slog.LevelWarn}))
	defer func() { err = errors.Join(err, d.close(ctx), d.screen.broken()) }()

	d.screen.printf("Events go into an outbox in %s, the forwarder moves them to Kafka, and every one is checked.\n", d.product())
	if err := d.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			d.screen.printf("\n  Stopped before it began.")
			return nil
		}
		return err
	}
	d.introduce()
	runErr := d.watch(ctx)
	return errors.Join(runErr, d.end(ctx))
}

// introduce says what is going on and how to look at it.
func (d *demo) introduce() {
	rate := perSecond(d.cfg.Rate) + " of them"
	if d.cfg.Rate == 0 {
		rate = "as many as it can"
	}
	ends := "Ctrl-C ends"
	if d.cfg.Duration > 0 {
		ends = fmt.Sprintf("%s or Ctrl-C end", d.cfg.Duration)
	}
	d.screen.printf(`
  Look at it from another terminal:
    %s
    kcat -b %s -t %s -C -q -o -1 -f '%%p/%%o  %%k  %%s\n'

  The writer commits events on %d connections for %s keys: %s. One transaction
  in a hundred rolls back, one commits late. %s it with a verdict.
`, d.database.look, strings.Join(d.broker.addrs, ","), d.broker.topic,
		writerConnections, thousands(writerKeys), rate, ends)
}

// watch shows the figures until it is time to end. Its error is that of a part that failed.
func (d *demo) watch(ctx context.Context) error {
	var over <-chan time.Time
	if d.cfg.Duration > 0 {
		timer := time.NewTimer(d.cfg.Duration)
		defer timer.Stop()
		over = timer.C
	}
	tick := time.NewTicker(d.pace())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			return nil
		case <-d.forwarder.done:
			return fmt.Errorf("running the forwarder: %w", d.forwarder.ended())
		case <-d.writing.done:
			return fmt.Errorf("writing events: %w", d.writing.ended())
		case now := <-tick.C:
			d.show(now)
			if d.screen.broken() != nil {
				return nil // Run reports it
			}
		}
	}
}

func (d *demo) pace() time.Duration {
	if d.screen.terminal() {
		return refreshEvery
	}
	return lineEvery
}

// show draws the live line, or prints a line where there is none.
func (d *demo) show(now time.Time) {
	stats := d.meter.read(now, d.writer.Stats().Committed, d.checker.Snapshot())
	if d.screen.terminal() {
		d.screen.show(stats.Elapsed, func(width int) string { return line(stats, width) })
	} else {
		d.screen.printf("%s", line(stats, plainWidth))
	}
}

// plainWidth is wide enough for the fullest line: files and pipes have no edge.
const plainWidth = 1000

// close undoes what was set up, the newest first.
func (d *demo) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	d.screen.hide()
	var err error
	for _, undo := range slices.Backward(d.closers) {
		err = errors.Join(err, undo(ctx))
	}
	return err
}
