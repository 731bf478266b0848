package oracle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// hand is one connection of a Writer. It is used by one goroutine.
type hand struct {
	*Writer
	pace   *pacer
	random *rand.Rand
	conn   *pgx.Conn // nil while there is none
	events []event   // of the transaction at hand
}

// transactionTime bounds one transaction, so that a connection that died without a word
// cannot hold the writer.
const transactionTime = 30 * time.Second

func (h *hand) work(ctx context.Context) error {
	defer h.disconnect(ctx)
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
		h.events = append(h.events, event{
			Topic: h.cfg.Topics[h.random.IntN(len(h.cfg.Topics))],
			// The square makes the first keys hot and still reaches all.
			Key: KeyName(int(u * u * float64(h.cfg.Keys))),
		})
	}
}

// attempt tries the transaction once. It is done when its end is known or, with the
// connection lost during the commit, only known to the ledger.
func (h *hand) attempt(ctx context.Context) (done bool, err error) {
	if h.conn == nil {
		if err := h.connect(ctx); err != nil {
			return false, err
		}
		if h.conn == nil {
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
	case !transient(err):
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
	if err := h.lock(ctx); err != nil {
		return false, err
	}
	commit := h.random.Float64() >= h.cfg.Rollback
	batch := h.inserts()
	if h.cfg.Hold > 0 && h.random.Float64() < h.cfg.Hold {
		if err := h.conn.SendBatch(ctx, batch).Close(); err != nil {
			return false, err
		}
		batch = &pgx.Batch{}
		if !sleep(ctx, h.cfg.HoldFor) {
			return false, ctx.Err()
		}
	}
	if commit {
		batch.Queue("COMMIT")
	} else {
		batch.Queue("ROLLBACK")
	}
	results := h.conn.SendBatch(ctx, batch)
	var tag pgconn.CommandTag
	for range batch.Len() {
		if tag, err = results.Exec(); err != nil {
			break
		}
	}
	if err := errors.Join(err, results.Close()); err != nil {
		return true, err
	}
	if !commit {
		h.rolledBack.Add(int64(len(h.events)))
		return true, nil
	}
	if tag.String() != "COMMIT" {
		return true, fmt.Errorf("the commit was answered with %s", tag)
	}
	now := time.Now()
	for i := range h.events {
		h.cfg.Stopwatch.commit(h.events[i].N, now)
	}
	h.committed.Add(int64(len(h.events)))
	return true, nil
}

// lock takes the ledger rows of all streams, in one order for all writers so that none waits
// for another in a circle, and numbers the events.
func (h *hand) lock(ctx context.Context) error {
	streams := make([]Stream, 0, len(h.events))
	count := map[Stream]int64{}
	for _, e := range h.events {
		s := Stream{e.Topic, e.Key}
		if count[s] == 0 {
			streams = append(streams, s)
		}
		count[s]++
	}
	slices.SortFunc(streams, func(a, b Stream) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), strings.Compare(a.Key, b.Key))
	})
	upsert := "INSERT INTO " + quoted(h.cfg.Tables.Ledger) + " AS l (topic, key, seq) VALUES ($1, $2, $3)" +
		" ON CONFLICT (topic, key) DO UPDATE SET seq = l.seq + excluded.seq RETURNING seq"
	batch := &pgx.Batch{}
	batch.Queue("BEGIN")
	for _, s := range streams {
		batch.Queue(upsert, s.Topic, s.Key, count[s])
	}
	results := h.conn.SendBatch(ctx, batch)
	_, err := results.Exec()
	last := map[Stream]int64{}
	for _, s := range streams {
		if err != nil {
			break
		}
		var seq int64
		err = results.QueryRow().Scan(&seq)
		last[s] = seq
	}
	if err := errors.Join(err, results.Close()); err != nil {
		return err
	}
	for i := range h.events {
		e := &h.events[i]
		s := Stream{e.Topic, e.Key}
		count[s]--
		e.Seq = last[s] - count[s]
		e.N = h.number.Add(1)
	}
	return nil
}

func (h *hand) inserts() *pgx.Batch {
	insert := "INSERT INTO " + quoted(h.cfg.Tables.Outbox) + " (topic, key, payload) VALUES ($1, $2, $3)"
	batch := &pgx.Batch{}
	for _, e := range h.events {
		batch.Queue(insert, e.Topic, e.Key, e.appendPayload(nil, h.cfg.PayloadBytes))
	}
	return batch
}

// connect makes the connection; it stays nil when the database is away, after a short wait.
func (h *hand) connect(ctx context.Context) error {
	dial, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := connect(dial, h.cfg.URL)
	if err == nil {
		h.conn = conn
		return nil
	}
	if ctx.Err() == nil && !transient(err) {
		return fmt.Errorf("connecting the writer: %w", err)
	}
	sleep(ctx, 50*time.Millisecond)
	return nil
}

func (h *hand) disconnect(ctx context.Context) {
	if h.conn == nil {
		return
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	// An error here says no more than that the connection is gone, which is what is wanted.
	_ = h.conn.Close(closing)
	h.conn = nil
}

// transient says that the same transaction may succeed on a new connection. What the server
// refuses for other reasons would be refused again.
func transient(err error) bool {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return true // the network, or a time-out
	}
	switch refused.Code[:2] {
	case "08", "40", "53", "57", "58": // connection, rollback, resources, operator, system
		return true
	}
	return false
}
