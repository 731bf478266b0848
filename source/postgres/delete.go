package postgres

import (
	"context"
	"fmt"
	"time"
)

// deleteTries bounds how often a delete is sent that was rolled back for another session's
// sake, before the caller waits for longer.
const deleteTries = 5

// Delete implements lanes.Source. A deadlock or a serialization failure is tried again here.
func (s *Source) Delete(ctx context.Context, ids []int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout+callSlack)
	defer cancel()
	var err error
	for try := range deleteTries {
		if try > 0 {
			s.log.Debug("deleting again", "count", len(ids), "err", err)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(try) * 20 * time.Millisecond):
			}
		}
		_, err = s.pool.Exec(ctx, s.stmts.Load().del, ids)
		if err == nil {
			return nil
		}
		if !retriable(err) {
			break
		}
	}
	return fmt.Errorf("deleting %d rows of %s: %w", len(ids), s.Table(), err)
}
