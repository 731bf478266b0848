package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// end stops the writer, lets the forwarder deliver the rest and stop, and judges. ctx has
// usually ended already; a second signal is for the process to obey.
func (d *demo) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainLimit)
	defer cancel()
	err := d.writing.stopRunning()
	drainErr := d.drain(ctx)
	d.screen.hide()
	if stopErr := d.forwarder.stopRunning(); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("stopping the forwarder: %w", stopErr))
	}
	result, judgeErr := d.judge(ctx)
	if judgeErr != nil {
		return errors.Join(err, drainErr, judgeErr)
	}
	d.screen.printf("\n%s", result.text(d.screen.marks))
	if !result.clean() {
		return errors.Join(err, drainErr, ErrBroken)
	}
	return err
}

// drain waits until the outbox is empty, with the figures going on.
func (d *demo) drain(ctx context.Context) error {
	d.screen.printf("\n  The writer has stopped. Waiting for the rest ...")
	look, tick := time.NewTicker(refreshEvery), time.NewTicker(d.pace())
	defer look.Stop()
	defer tick.Stop()
	for {
		left, err := oracle.Left(ctx, d.database.url, d.database.tables)
		if err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		select {
		case <-look.C:
		case now := <-tick.C:
			d.show(now)
		case <-d.forwarder.done:
			return nil // the verdict tells what that left undone
		case <-ctx.Done():
			return fmt.Errorf("waiting for the rest: %w", ctx.Err())
		}
	}
}

// judge holds the whole topic and the table against the ledger. It has time of its own, since
// draining may have used up what there was.
func (d *demo) judge(ctx context.Context) (result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reachLimit)
	defer cancel()
	ledger, err := oracle.ReadLedger(ctx, d.database.url, d.database.tables)
	if err != nil {
		return result{}, err
	}
	verdict, err := d.checker.Verdict(ctx, ledger)
	if err != nil {
		return result{}, err
	}
	left, err := oracle.Left(ctx, d.database.url, d.database.tables)
	if err != nil {
		return result{}, err
	}
	return result{verdict, left}, nil
}
