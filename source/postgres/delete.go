package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// deleteTries bounds how often a delete is sent that was rolled back for another session's
// sake, before the caller waits for longer.
const deleteTries = 5

// Delete implements lanes.Source. A deadlock or a serialization failure is tried again here.
func (s *Source) Delete(ctx context.Context, ids []int64, began func(xid uint64)) error {
	_, err := s.DeleteRows(ctx, ids, began)
	return err
}

// DeleteRows is Delete, and says how many of the rows there were.
func (s *Source) DeleteRows(ctx context.Context, ids []int64, began func(xid uint64)) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout+callSlack)
	defer cancel()
	var err error
	for try := range deleteTries {
		if try > 0 {
			s.retried.Add(1)
			s.log.Debug("deleting again", "count", len(ids), "err", err)
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-time.After(time.Duration(try) * 20 * time.Millisecond):
			}
		}
		n := 0
		if n, err = s.delete(ctx, ids, began); err == nil {
			return n, nil
		}
		if !retriable(err) {
			break
		}
	}
	return 0, fmt.Errorf("deleting %d rows of %s: %w", len(ids), s.Table(), err)
}

// DeletesRetried counts the deletes that were sent again because they were rolled back for
// another session's sake.
func (s *Source) DeletesRetried() uint64 { return s.retried.Load() }

// delete sends two statements at once, which are one transaction, and one round trip. The xid
// is answered before the delete is done.
func (s *Source) delete(ctx context.Context, ids []int64, began func(xid uint64)) (rows int, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return 0, fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	defer conn.Release()
	stmts := s.stmts.Load()
	xid, err := conn.Conn().Prepare(ctx, stmts.xid, stmts.xid)
	if err != nil {
		return 0, err
	}
	del, err := conn.Conn().Prepare(ctx, stmts.del, stmts.del)
	if err != nil {
		return 0, err
	}
	pipe := conn.Conn().PgConn().StartPipeline(ctx)
	pipe.SendQueryStatement(xid, nil, nil, nil)
	pipe.SendFlushRequest()
	pipe.SendQueryStatement(del, [][]byte{int8ArrayParam(ids)}, []int16{binaryFormat}, nil)
	err = pipe.Sync()
	if err == nil {
		rows, err = s.deleted(pipe, began)
	}
	if cerr := pipe.Close(); err == nil {
		err = cerr
	}
	return rows, err
}

// deleted takes in the answers to both statements, and returns how many rows there were.
func (s *Source) deleted(pipe *pgconn.Pipeline, began func(xid uint64)) (rows int, err error) {
	for first := true; ; first = false {
		results, err := pipe.GetResults()
		if err != nil {
			return 0, err
		}
		reader, ok := results.(*pgconn.ResultReader)
		if !ok {
			return rows, nil // the end of the pipeline
		}
		if first && reader.NextRow() {
			xid, err := strconv.ParseUint(string(reader.Values()[0]), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("parsing the xid of a delete: %w", err)
			}
			began(xid)
		}
		tag, err := reader.Close()
		if err != nil {
			return 0, err
		}
		if !first {
			rows = int(tag.RowsAffected())
		}
	}
}
