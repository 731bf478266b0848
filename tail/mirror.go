package tail

import (
	"context"

	"github.com/outbox-forwarder/forwarder/source"
)

// Mirror holds in memory what the table holds and is not deleted yet. Its methods may be called
// from anywhere; those that speak for the log (Attach, Append, Detach, Wants) from one goroutine
// at a time.
type Mirror struct {
	cfg   Config
	table Table
	wake  chan struct{}
}

// NewMirror returns a mirror without a log: every read goes to the table.
func NewMirror(cfg Config, table Table) *Mirror {
	return &Mirror{cfg: cfg.withDefaults(), table: table, wake: make(chan struct{}, 1)}
}

// Attach says that a log starts: every transaction that commits from a point on will be
// appended, and transactions at or above fence had not begun at that point. Fence 0 makes no
// claim; a source that counts by cluster time gives that of the log's start. Until a table read
// that was sent after Attach has a snapshot whose Xmin is at or above fence, the mirror is not
// complete: a transaction that had committed before the point and was not visible yet, since it
// waited for a synchronous standby, comes through neither.
func (m *Mirror) Attach(fence uint64) {}

// Append takes in rows of one committed transaction in the order of the log. A large transaction
// may come in several calls. skipped says that rows were left out because of Wants; a transaction
// of which every row was left out must be told too. Append blocks while memory is full, for
// Patience at most, or until ctx is done, which is its only error.
func (m *Mirror) Append(ctx context.Context, xid uint64, events []*source.Event, skipped bool) error {
	return nil
}

// Detach says that the log is lost: everything comes from the table until the next Attach.
func (m *Mirror) Detach() {}

// Wants reports whether rows of the lane are of use, so that the caller need not build those
// that are not. It must be asked anew for each row, before the Append that it is for.
func (m *Mirror) Wants(lane source.Lane) bool { return true }

// Read implements lanes.Source.
func (m *Mirror) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	page, err := m.table.Read(ctx, read)
	if err == nil && m.cfg.Head {
		page.Snapshot = source.Snapshot{}
	}
	return page, err
}

// Delete implements lanes.Source.
func (m *Mirror) Delete(ctx context.Context, ids []int64, began func(xid uint64)) error {
	_, err := m.table.DeleteRows(ctx, ids, began)
	return err
}

// Wake implements lanes.Waker.
func (m *Mirror) Wake() <-chan struct{} { return m.wake }

// Stats returns the counts of now.
func (m *Mirror) Stats() Stats { return Stats{} }
