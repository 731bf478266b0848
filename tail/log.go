package tail

import (
	"cmp"
	"context"

	"github.com/outbox-forwarder/forwarder/source"
)

// LogConfig tunes a Log. The zero value of each field takes its default.
type LogConfig struct {
	// MaxEvents and MaxBytes (of source.Event.Size) bound what is in memory and not deleted yet;
	// one Append may pass them. Defaults 65,536 and 64 MiB.
	MaxEvents, MaxBytes int
}

// Entry is one event of the log.
type Entry struct {
	// Event.ID is the row's id. The log gives the event another ID of its own, and the row's id
	// as its Ref where it has none.
	Event *source.Event
	// NoRow says that there is no row to delete: a message.
	NoRow bool
}

// Deleter deletes rows of the outbox by id, which are in ascending order; see lanes.Source.
type Deleter func(ctx context.Context, rows []int64, began func(xid uint64)) error

// Log is an outbox whose truth is a log with positions P, which ascend in the order of the log.
// Nothing that it is given is dropped before it is delivered. The methods that speak for the log
// (Append, Scan, Skip, Reset) are called from one goroutine at a time, the others from anywhere.
type Log[P cmp.Ordered] struct {
	cfg  LogConfig
	del  Deleter
	wake chan struct{}
}

// NewLog returns an empty log.
func NewLog[P cmp.Ordered](cfg LogConfig, del Deleter) *Log[P] {
	return &Log[P]{cfg: cfg, del: del, wake: make(chan struct{}, 1)}
}

// Append takes in entries of the transaction that commits at pos, in the order of the log; end
// says that these were its last. A transaction without entries, or a position up to which there
// is nothing, is an Append without entries and with end. Append blocks while memory is full until
// something is deleted or ctx is done, which is its only error; then nothing was taken in.
func (l *Log[P]) Append(ctx context.Context, pos P, end bool, entries []Entry) error { return nil }

// Scan takes in rows that were found in the table, in the order in which they are to be sent,
// before the log starts. It blocks as Append does. Nothing is confirmed before all of them are
// delivered and deleted. When the log brings a scanned row, that is skipped.
func (l *Log[P]) Scan(ctx context.Context, rows []*source.Event) error { return nil }

// Scanned ends the skipping of scanned rows: the log is past every transaction that the scan saw.
func (l *Log[P]) Scanned() {}

// Skip names rows, besides those of Scan, that are to be skipped when the log brings them.
func (l *Log[P]) Skip(rows []int64) {}

// Confirmed returns the position up to which everything is delivered and deleted, which is
// always the end of a transaction. It is false until there is one.
func (l *Log[P]) Confirmed() (P, bool) { var p P; return p, false }

// Reset says that the connection or the lease is lost. What the forwarder does not hold is
// dropped; the log starts again after Confirmed and brings the same entries of each transaction
// again: those that were delivered are skipped, and those that the forwarder holds are not handed
// out twice. other says that it is not the same log any more (another timeline, a new slot), so
// that equal positions mean nothing.
func (l *Log[P]) Reset(other bool) {}

// Read implements lanes.Source.
func (l *Log[P]) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	return &source.Page{}, nil
}

// Delete implements lanes.Source.
func (l *Log[P]) Delete(ctx context.Context, ids []int64, began func(xid uint64)) error { return nil }

// Wake implements lanes.Waker.
func (l *Log[P]) Wake() <-chan struct{} { return l.wake }

// LogStats is a copy of what a Log counts.
type LogStats struct {
	Waiting int    // events in memory to be handed out
	Bytes   int    // of the events in memory
	Out     int    // events handed out and not deleted yet
	Skipped uint64 // entries that had been delivered or scanned before
}

// Stats returns the counts of now.
func (l *Log[P]) Stats() LogStats { return LogStats{} }
