package oracle

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// hand is one session of a Writer. It is used by one goroutine.
type hand struct {
	*Writer
	pace    *pacer
	random  *rand.Rand
	db      database
	index   int              // of the connection
	session session          // nil while there is none
	events  []event          // of the transaction at hand
	own     map[Stream]int64 // the sums of its own streams, where connections are apart; else nil
}

// transactionTime bounds one transaction, so that a connection that died without a word
// cannot hold the writer.
const transactionTime = 30 * time.Second

func (h *hand) work(ctx context.Context) error {
	defer h.disconnect(ctx)
	if err := h.write(ctx); err != nil || len(h.own) == 0 {
		return err
	}
	return h.settle(context.WithoutCancel(ctx))
}

// settle writes the ledger of the hand's own streams.
func (h *hand) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, transactionTime)
	defer cancel()
	streams := slices.SortedFunc(maps.Keys(h.own), Stream.compare)
	_, err := h.session.turn(ctx, streams, h.own)
	if err == nil {
		err = h.session.end(ctx, nil, true)
	}
	if err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	return nil
}

// write carries out transactions until enough are written.
func (h *hand) write(ctx context.Context) error {
	for {
		n := 1 + h.random.IntN(h.cfg.MaxPerTransaction)
		if h.cfg.Events > 0 && h.begun.Add(int64(n))-int64(n) >= h.cfg.Events {
			return nil
		}
		h.choose(n)
		if !h.pace.wait(ctx, n) {
			return nil
		}
		// The choice stays until it has been committed or rolled back, so that an outage
		// neither changes the workload nor shortens it.
		for {
			done, err := h.attempt(ctx)
			if err != nil {
				return err
			}
			if done {
				break
			}
			if ctx.Err() != nil {
				return nil
			}
		}
	}
}

// choose picks the topics and keys of a transaction.
func (h *hand) choose(n int) {
	h.events = h.events[:0]
	for range n {
		u := h.random.Float64()
		// The square makes the first keys hot and still reaches all.
		key := int(u * u * float64(h.cfg.Keys))
		if n := h.cfg.Connections; h.own != nil {
			key = key/n*n + h.index // of each n neighbours every connection has one
		}
		h.events = append(h.events, event{
			Topic: h.cfg.Topics[h.random.IntN(len(h.cfg.Topics))],
			Key:   KeyName(key),
		})
	}
}

// attempt tries the transaction once. It is done when its end is known or, with the
// connection lost during the commit, only known to the ledger.
func (h *hand) attempt(ctx context.Context) (done bool, err error) {
	if h.session == nil {
		if err := h.connect(ctx); err != nil {
			return false, err
		}
		if h.session == nil {
			return false, nil
		}
	}
	// A transaction that has begun is finished: a writer that stops leaves no doubt.
	tx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionTime)
	defer cancel()
	ending, err := h.transact(tx)
	switch {
	case err == nil:
		return true, nil
	case h.own != nil || !h.db.transient(err):
		return false, fmt.Errorf("writing events: %w", err)
	}
	h.disconnect(ctx)
	h.reconnects.Add(1)
	if ending {
		h.unknown.Add(int64(len(h.events)))
	}
	return ending, nil
}

// transact runs the transaction. ending says that the commit or rollback had been sent.
func (h *hand) transact(ctx context.Context) (ending bool, err error) {
	if err := h.number(ctx); err != nil {
		return false, err
	}
	commit := h.random.Float64() >= h.cfg.Rollback
	rows := make([]row, len(h.events))
	for i, e := range h.events {
		rows[i] = e.row(h.cfg.PayloadBytes)
	}
	if h.cfg.Hold > 0 && h.random.Float64() < h.cfg.Hold {
		if err := h.session.insert(ctx, rows); err != nil {
			return false, err
		}
		rows = nil
		if !sleep(ctx, h.cfg.HoldFor) {
			return false, ctx.Err()
		}
	}
	end := h.session.end
	if h.own != nil {
		// Outside of a transaction an insert is one by itself.
		end = func(ctx context.Context, rows []row, _ bool) error { return h.session.insert(ctx, rows) }
	}
	if err := end(ctx, rows, commit); err != nil {
		return true, err
	}
	if !commit {
		h.rolledBack.Add(int64(len(h.events)))
		return true, nil
	}
	now := time.Now()
	for i := range h.events {
		h.cfg.Stopwatch.commit(h.events[i].N, now)
	}
	h.committed.Add(int64(len(h.events)))
	return true, nil
}

// number takes the turn of all streams, in one order for all writers so that none waits for
// another in a circle, and numbers the events.
func (h *hand) number(ctx context.Context) error {
	streams := make([]Stream, 0, len(h.events))
	count := map[Stream]int64{}
	for _, e := range h.events {
		s := Stream{e.Topic, e.Key}
		if count[s] == 0 {
			streams = append(streams, s)
		}
		count[s]++
	}
	slices.SortFunc(streams, Stream.compare)
	sums := h.own
	if sums != nil {
		for s, n := range count {
			sums[s] += n
		}
	} else {
		var err error
		if sums, err = h.session.turn(ctx, streams, count); err != nil {
			return err
		}
	}
	for i := range h.events {
		e := &h.events[i]
		s := Stream{e.Topic, e.Key}
		count[s]--
		e.Seq = sums[s] - count[s]
		e.N = h.Writer.number.Add(1)
	}
	return nil
}

// connect makes the session; it stays nil when the database is away, after a short wait.
func (h *hand) connect(ctx context.Context) error {
	dial, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	session, err := h.db.session(dial)
	if err == nil {
		h.session = session
		return nil
	}
	if ctx.Err() == nil && !h.db.transient(err) {
		return fmt.Errorf("connecting the writer: %w", err)
	}
	sleep(ctx, 50*time.Millisecond)
	return nil
}

func (h *hand) disconnect(ctx context.Context) {
	if h.session == nil {
		return
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	h.session.close(closing)
	h.session = nil
}
