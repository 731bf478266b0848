package tail

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Mirror holds in memory what the table holds and is not deleted yet. Its methods may be called
// from anywhere; those that speak for the log (Attach, Append, Detach, Wants) from one goroutine
// at a time.
type Mirror struct {
	cfg   Config
	table Table
	wake  chan struct{}

	wanted atomic.Pointer[filter] // the lanes of state.evicted, replaced as a whole; nil for none
	denied []uint64               // bits of the lanes that Wants has denied since the last Append
	lanes  []source.Lane          // the same lanes, for one Append

	mu    sync.Mutex // guards what follows
	state *state
	full  time.Time     // since when there is no room and nothing was taken; zero while there is room
	room  chan struct{} // closed when there may be room, nil while nobody waits
}

// NewMirror returns a mirror without a log: every read goes to the table.
func NewMirror(cfg Config, table Table) *Mirror {
	cfg = cfg.withDefaults()
	return &Mirror{cfg: cfg, table: table, wake: make(chan struct{}, 1), state: newState(cfg, cfg.Now())}
}

// Attach says that a log starts: every transaction that commits from a point on will be
// appended, and transactions at or above fence had not begun at that point. A source that counts
// by cluster time gives the first one that the log covers. Fence 0 says that every transaction that
// had committed before the point was visible then. Until a table read that was sent after Attach has
// a snapshot whose Xmin is at or above fence, the mirror is not complete: a transaction that had
// committed before the point and was not visible yet, since it waited for a synchronous standby,
// comes through neither.
func (m *Mirror) Attach(fence uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.attach(m.cfg.Now(), fence)
	m.token()
}

// Detach says that the log is lost: everything comes from the table until the next Attach.
func (m *Mirror) Detach() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.detach(m.cfg.Now())
	m.token()
}

// Wants reports whether rows of the lane are of use, so that the caller need not build those
// that are not. It must be asked anew for each row, before the Append that it is for.
func (m *Mirror) Wants(lane source.Lane) bool {
	if f := m.wanted.Load(); f == nil || f.reads(lane) {
		return true
	}
	m.denied = setBit(m.denied, int(lane))
	return false
}

// Append takes in rows of one committed transaction in the order of the log. A large transaction
// may come in several calls. skipped says that rows were left out because of Wants; a transaction
// of which every row was left out must be told too. Append blocks while memory is full, until
// nothing was taken out of it for Patience, or until ctx is done, which is its only error; then
// nothing was taken in.
func (m *Mirror) Append(ctx context.Context, xid uint64, events []*source.Event, skipped bool) error {
	m.lanes = m.lanes[:0]
	for i, word := range m.denied {
		for bit := range 64 {
			if word&(1<<bit) != 0 {
				m.lanes = append(m.lanes, source.Lane(i*64+bit))
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.makeRoom(ctx); err != nil {
		return err
	}
	clear(m.denied)
	if m.state.append(m.cfg.Now(), xid, events, skipped, m.lanes) {
		m.token()
	}
	return nil
}

// makeRoom waits for room, and lets rows go when it waited for too long.
func (m *Mirror) makeRoom(ctx context.Context) error {
	for m.state.complete && !m.state.roomy() {
		now := m.cfg.Now()
		if m.full.IsZero() {
			m.full = now
		}
		left := m.full.Add(m.cfg.Patience).Sub(now)
		if left <= 0 {
			m.state.shed(now)
			m.publish()
			break
		}
		m.room = make(chan struct{})
		room := m.room
		m.mu.Unlock()
		timer := time.NewTimer(left)
		var err error
		select {
		case <-room:
		case <-timer.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		m.mu.Lock()
		if err != nil {
			return err
		}
	}
	m.full = time.Time{}
	return nil
}

// taken says that there may be room, or will be soon.
func (m *Mirror) taken() {
	m.full = time.Time{}
	if m.room != nil {
		close(m.room)
		m.room = nil
	}
}

// Read implements lanes.Source.
func (m *Mirror) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	if page := m.askFor(read); page != nil {
		return page, nil
	}
	page, err := m.table.Read(ctx, read)
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.state.failed()
		return nil, err
	}
	if again := m.answer(read, page); len(again) > 0 {
		m.deleteAgain(ctx, again)
	}
	return page, nil
}

// FromMemory implements lanes.Waker.
func (m *Mirror) FromMemory(read *source.Read) *source.Page {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.recall(read)
}

// recall is FromMemory with the lock held.
func (m *Mirror) recall(read *source.Read) *source.Page {
	page := m.state.recall(m.cfg.Now(), read)
	if page != nil && len(page.Events) > 0 {
		m.taken()
	}
	return page
}

// askFor says that the table is about to be read, unless what is in memory has come to suffice.
func (m *Mirror) askFor(read *source.Read) *source.Page {
	m.mu.Lock()
	defer m.mu.Unlock()
	if page := m.recall(read); page != nil {
		return page
	}
	m.state.ask(m.cfg.Now(), read)
	m.publish()
	m.taken() // nobody waits for room while the mirror is not complete
	return nil
}

func (m *Mirror) answer(read *source.Read, page *source.Page) (again []int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	again = m.state.answer(m.cfg.Now(), read, page)
	if m.state.complete && m.state.queue.waiting.n > 0 {
		m.token()
	}
	return again
}

// deleteAgain deletes rows that are visible at last. A failure is no error of the read: the rows
// stay listed, and are tried again after the next one.
func (m *Mirror) deleteAgain(ctx context.Context, ids []int64) {
	n, err := m.table.DeleteRows(ctx, ids, func(uint64) {})
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.deletedAgain(ids, n)
}

// Delete implements lanes.Source.
func (m *Mirror) Delete(ctx context.Context, ids []int64, began func(xid uint64)) error {
	m.mu.Lock()
	m.state.deleting(ids)
	m.mu.Unlock()
	n, err := m.table.DeleteRows(ctx, ids, began)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.deleted(ids, n)
	return nil
}

// publish tells Wants what is of use now.
func (m *Mirror) publish() { m.wanted.Store(m.state.evicted.onlyLanes()) }

// token wakes the forwarder.
func (m *Mirror) token() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Wake implements lanes.Waker.
func (m *Mirror) Wake() <-chan struct{} { return m.wake }

// Stats returns the counts of now.
func (m *Mirror) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state.stats
	q := &m.state.queue
	s.Attached, s.Complete, s.Since = m.state.attached, m.state.complete, m.state.since
	s.Waiting, s.Bytes = q.waiting.n, q.waiting.bytes
	s.Out = q.out.n + q.ghosts.n
	return s
}
