package postgres

import (
	"context"
	"slices"
	"sync"
	"time"
)

// lateRows are rows of the log that a delete did not find: their writer has deleted them, or
// they were not visible yet, since their transaction waited for a standby. They are deleted once
// more when everything that was running then has ended.
type lateRows struct {
	mu      sync.Mutex
	rows    []int64
	xid     uint64 // above those of their transactions
	next    []int64
	nextXid uint64
}

const (
	// lateEvery is how often it is looked whether late rows can be deleted.
	lateEvery = time.Second
	// maxLate bounds the rows that are remembered; a delete that finds nothing costs little.
	maxLate = 1 << 18
)

// add remembers rows of which a delete with a transaction id found only some.
func (l *lateRows) add(rows []int64, xid uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.next) < maxLate {
		l.next = append(l.next, rows...)
		l.nextXid = max(l.nextXid, xid)
	}
}

// run deletes late rows until ctx is done.
func (l *lateRows) run(ctx context.Context, src *Source) {
	ticker := time.NewTicker(lateEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		l.mu.Lock()
		if len(l.rows) == 0 {
			l.rows, l.xid, l.next, l.nextXid = l.next, l.nextXid, nil, 0
		}
		rows, xid := l.rows, l.xid
		l.mu.Unlock()
		if len(rows) == 0 {
			continue
		}
		var xmin int64
		once, cancel := context.WithTimeout(ctx, src.cfg.Timeout)
		err := src.pool.QueryRow(once, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint`).Scan(&xmin)
		cancel()
		if err != nil || uint64(xmin) < xid {
			continue // a database that is away shows elsewhere
		}
		if src.deleteSorted(ctx, rows) == nil {
			l.mu.Lock()
			l.rows = nil
			l.mu.Unlock()
		}
	}
}

// deleteSorted deletes rows in any order, in pieces.
func (s *Source) deleteSorted(ctx context.Context, rows []int64) error {
	slices.Sort(rows)
	for piece := range slices.Chunk(rows, 4096) {
		if err := s.Delete(ctx, piece, func(uint64) {}); err != nil {
			return err
		}
	}
	return nil
}
