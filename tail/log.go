package tail

import (
	"cmp"
	"context"
	"sync"
	"time"

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
	// Event.ID is the row's id. The log gives a copy of the event another ID of its own, and the
	// row's id as its Ref where it has none.
	Event *source.Event
	// NoRow says that there is no row to delete: a message.
	NoRow bool
}

// Deleter deletes rows of the outbox by id, which are in ascending order; see lanes.Source.
type Deleter func(ctx context.Context, rows []int64, began func(xid uint64)) error

// Log is an outbox whose truth is a log with positions P, which ascend in the order of the log.
// Nothing that it is given is dropped before it is delivered, but by Reset. The methods that speak
// for the log (Append, Idle, Scan, EndSkip, Reset) are called from one goroutine at a time,
// the others from anywhere.
type Log[P cmp.Ordered] struct {
	cfg  LogConfig
	del  Deleter
	wake chan struct{}

	mu     sync.Mutex // guards what follows
	state  *logState[P]
	room   chan struct{} // closed when something was deleted, nil while nobody waits
	open   bool          // the end of a transaction is still to come
	ending bool          // nothing more is begun, see Finish
}

// NewLog returns an empty log.
func NewLog[P cmp.Ordered](cfg LogConfig, del Deleter) *Log[P] {
	cfg.MaxEvents = cmp.Or(cfg.MaxEvents, 65536)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 64<<20)
	return &Log[P]{cfg: cfg, del: del, wake: make(chan struct{}, 1), state: newLogState[P]()}
}

// Append takes in entries of the transaction that commits at pos, in the order of the log; end
// says that these were its last. A large transaction may come in several calls with the same pos,
// and nothing in between. Append blocks while memory is full until something is deleted or ctx is
// done, which is its only error; then nothing was taken in.
func (l *Log[P]) Append(ctx context.Context, pos P, end bool, entries []Entry) error {
	return l.take(ctx, len(entries), func() bool {
		l.open = !end
		return l.state.append(pos, end, entries)
	})
}

// Idle says that up to pos the log has nothing but what was appended: a keep-alive. It is
// confirmed once everything before it is, and is ignored in the middle of a transaction.
func (l *Log[P]) Idle(pos P) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.idle(pos)
}

// Scan takes in rows that were found in the table, in the order in which they are to be sent,
// before the log starts; end says that there are no more. It blocks as Append does. Nothing more
// is confirmed before all of them are delivered and deleted. When the log brings a scanned row,
// it is skipped. After a Reset the scan begins anew.
func (l *Log[P]) Scan(ctx context.Context, rows []*source.Event, end bool) error {
	return l.take(ctx, len(rows), func() bool { return l.state.addScan(rows, end) })
}

// Scanning reports whether rows of a Scan are still to be delivered or deleted.
func (l *Log[P]) Scanning() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.scan != nil
}

// EndSkip ends the skipping of rows: the log is past every transaction that the scan saw.
func (l *Log[P]) EndSkip() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.state.skip)
	l.roomy()
}

// take waits for room for n entries, and adds them.
func (l *Log[P]) take(ctx context.Context, n int, add func() bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n > 0 && (l.full() || l.ending && !l.open && !l.state.scanning()) {
		room := l.freed()
		l.mu.Unlock()
		var err error
		select {
		case <-room:
		case <-ctx.Done():
			err = ctx.Err()
		}
		l.mu.Lock()
		if err != nil {
			return err
		}
	}
	if add() {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

func (l *Log[P]) full() bool {
	q := &l.state.queue
	return q.rows.Len() >= l.cfg.MaxEvents || q.waiting.bytes+q.out.bytes >= l.cfg.MaxBytes
}

// freed returns what is closed when something was deleted.
func (l *Log[P]) freed() <-chan struct{} {
	if l.room == nil {
		l.room = make(chan struct{})
	}
	return l.room
}

// finishPatience is how long Finish waits for the next delete.
const finishPatience = time.Second

// Finish prepares a stop that repeats nothing: Append takes in what belongs to the transaction that
// was begun, and what the log may bring of a scan, and then blocks until Reset. Finish returns when everything was delivered and deleted,
// so that all of it is confirmed; or when nothing was deleted for a while, since something cannot be
// delivered and the log will bring again what is behind it; or when ctx is done.
func (l *Log[P]) Finish(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ending = true
	patience := time.NewTimer(finishPatience)
	defer patience.Stop()
	for l.open || l.state.scanning() || !l.state.idles() {
		freed := l.freed()
		l.mu.Unlock()
		again := false
		select {
		case <-freed:
			again = true
			patience.Reset(finishPatience)
		case <-patience.C:
		case <-ctx.Done():
		}
		l.mu.Lock()
		if !again {
			return
		}
	}
}

// roomy wakes who waits for room.
func (l *Log[P]) roomy() {
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
}

// Confirmed returns the position up to which everything is delivered and deleted, which is
// always the end of a transaction. It is false until there is one.
func (l *Log[P]) Confirmed() (P, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.confirmed()
}

// Holding returns the event that holds Confirmed where it is, the first that is not delivered, and the
// position of its transaction, the zero one for a row of the scan. It is nil where nothing waits to be
// delivered.
func (l *Log[P]) Holding() (*source.Event, P) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.holding()
}

// Reset says that the connection or the lease is lost. What the forwarder does not hold is
// dropped; the log starts again after Confirmed and brings the same entries of each transaction
// again: those that were delivered are skipped, and those that the forwarder holds are not handed
// out twice. other says that it is not the same log any more (another timeline, a new slot), so
// that equal positions mean nothing, and nothing is confirmed.
func (l *Log[P]) Reset(other bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.reset(other)
	l.open, l.ending = false, false
	l.roomy()
}

// Read implements lanes.Source.
func (l *Log[P]) Read(_ context.Context, read *source.Read) (*source.Page, error) {
	return l.FromMemory(read), nil
}

// FromMemory implements lanes.Waker. It never returns nil.
func (l *Log[P]) FromMemory(read *source.Read) *source.Page {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.take(read)
}

// Delete implements lanes.Source. Of events without a row nothing is deleted.
func (l *Log[P]) Delete(ctx context.Context, ids []int64, began func(xid uint64)) error {
	l.mu.Lock()
	rows := l.state.deleting(ids)
	l.mu.Unlock()
	if len(rows) > 0 {
		if err := l.del(ctx, rows, began); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.deleted(ids)
	l.roomy()
	return nil
}

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
func (l *Log[P]) Stats() LogStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := &l.state.queue
	return LogStats{
		Waiting: q.waiting.n,
		Bytes:   q.waiting.bytes + q.out.bytes,
		Out:     q.out.n + q.ghosts.n,
		Skipped: l.state.skipped,
	}
}
