package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-forwarder/forwarder/source"
)

// chunk is what the log brought next: events of one committed transaction, in order, or only a
// position.
type chunk struct {
	xid    uint64
	events []*source.Event
	// skipped says that rows of the transaction were left out, whose lanes nobody wants.
	skipped bool
	// position is the transaction's, the same in each of its chunks, or how far the log has nothing
	// for us. A server that starts behind it does not send the transaction again.
	position pglogrepl.LSN
	// end says that this was the transaction's last chunk.
	end bool
}

const (
	// chunkEvents and chunkBytes bound a chunk, one event beyond.
	chunkEvents = 512
	chunkBytes  = 1 << 20
)

// logReader reads the log from a connection and hands on what it says about the outbox. One
// goroutine reads and decodes, and another one tells the server where we are, whatever the
// first one is busy with.
type logReader struct {
	repl    *replication
	parser  parser
	decoder decoder
	// deliver takes a chunk. It may block for as long as it likes, and is called in order.
	deliver func(context.Context, chunk) error
	// resolve looks a table of the log up: nil for one that is not the outbox.
	resolve func(ctx context.Context, rel relationMessage) (*layout, error)
	// wants says whether rows of a lane are wanted; nil wants all.
	wants func(source.Lane) bool
	// messages turns logical messages into events; nil ignores them.
	messages func(m logicalMessage, committed time.Time) *source.Event
	// confirmed is up to where the server may forget its log; nil is all that was received.
	confirmed func() pglogrepl.LSN
	// positions asks for chunks that bring only a position.
	positions bool
	// near is a transaction id not far from those to come.
	near uint64
	note func(what string, args ...any) // logs what is left out

	layouts map[uint32]*layout
	current chunk
	size    int
	// committed is when the transaction was.
	committed time.Time
	news      chan struct{} // a position was reached

	received atomic.Uint64 // pglogrepl.LSN
	lastByte atomic.Int64  // when the server was heard last, in unix nanoseconds
	busy     atomic.Bool   // nobody listens

	writing sync.Mutex // one message at a time
}

// run reads until ctx is done or the connection is lost. It never returns nil.
func (r *logReader) run(ctx context.Context) error {
	r.layouts = make(map[uint32]*layout)
	r.news = make(chan struct{}, 1)
	r.lastByte.Store(time.Now().UnixNano())
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return r.listen(ctx) })
	work.Go(func() error { return r.beat(ctx) })
	return work.Wait()
}

// listen takes one message after the other.
func (r *logReader) listen(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = r.repl.network().SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		data, err := r.repl.receive()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		r.lastByte.Store(time.Now().UnixNano())
		if err := r.take(ctx, data); err != nil {
			return err
		}
	}
}

// confirmSoon is how soon the server hears of a new position: while other tables are written to,
// the log that it keeps for us grows until then.
const confirmSoon = 200 * time.Millisecond

// beat tells the server where we are, and asks it to answer: a server that says nothing is taken
// for dead.
func (r *logReader) beat(ctx context.Context) error {
	ticker := time.NewTicker(r.repl.interval)
	defer ticker.Stop()
	answer := true
	for {
		if r.busy.Load() {
			r.lastByte.Store(time.Now().UnixNano())
		}
		if silent := time.Since(time.Unix(0, r.lastByte.Load())); silent > r.repl.silence {
			return fmt.Errorf("the server has said nothing for %v: the connection is taken for dead", silent.Round(time.Millisecond))
		}
		if err := r.confirm(answer); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			answer = true
		case <-r.news:
			answer = false
			select {
			case <-ctx.Done():
			case <-time.After(confirmSoon):
			}
		}
	}
}

// advance notes a position that was reached.
func (r *logReader) advance(position pglogrepl.LSN) {
	r.received.Store(uint64(position))
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// confirm tells the server where we are.
func (r *logReader) confirm(answer bool) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	received := pglogrepl.LSN(r.received.Load())
	done := received
	if r.confirmed != nil {
		done = r.confirmed()
	}
	return r.repl.confirm(received, done, answer)
}

// take handles one message of the replication protocol.
func (r *logReader) take(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	switch data[0] {
	case pglogrepl.XLogDataByteID:
		log, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return fmt.Errorf("reading the log: %w", err)
		}
		return r.change(ctx, log.WALStart, log.WALData)
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return fmt.Errorf("reading a keep-alive: %w", err)
		}
		if r.current.xid == 0 { // between transactions
			if err := r.reach(ctx, alive.ServerWALEnd); err != nil {
				return err
			}
		}
		if alive.ReplyRequested {
			return r.confirm(false)
		}
		return nil
	}
	return fmt.Errorf("reading the log: unknown message %q", data[0])
}

// reach notes a position before which the log has nothing more for us.
func (r *logReader) reach(ctx context.Context, position pglogrepl.LSN) error {
	if position <= pglogrepl.LSN(r.received.Load()) {
		return nil
	}
	r.advance(position)
	if !r.positions {
		return nil
	}
	return r.hand(ctx, chunk{position: position, end: true})
}

// change handles one message of the plugin.
func (r *logReader) change(ctx context.Context, at pglogrepl.LSN, data []byte) error {
	message, err := r.parser.parse(data)
	if err != nil {
		return fmt.Errorf("reading the log at %s: %w", at, err)
	}
	switch m := message.(type) {
	case beginMessage:
		r.near = extendXid(m.xid, r.near)
		r.committed = m.when
		// One behind the start of its commit record, since its end is not known yet. Records are
		// longer than that.
		r.current = chunk{xid: r.near, position: m.final + 1}
	case *insertMessage:
		if err := r.row(m); err != nil {
			return fmt.Errorf("reading the log at %s: %w", at, err)
		}
		return r.flushFull(ctx)
	case commitMessage:
		return r.commit(ctx, m)
	case relationMessage:
		l, err := r.resolve(ctx, m)
		if err != nil {
			return err
		}
		r.layouts[m.id] = l
	case logicalMessage:
		if r.messages == nil {
			return nil
		}
		if ev := r.messages(m, r.committed); ev != nil {
			r.add(ev)
		}
		return r.flushFull(ctx)
	case truncateMessage:
		for _, id := range m.relations {
			if r.layouts[id] != nil {
				r.note("the outbox was truncated: rows that were not read before are gone", "lsn", at.String())
			}
		}
	case changeMessage:
		if r.layouts[m.relation] != nil {
			r.note("the publication sends updates or deletes of the outbox, which are no events: publish only inserts", "lsn", at.String())
		}
	}
	return nil
}

// row adds an inserted row, if it is the outbox's and its lane is wanted.
func (r *logReader) row(m *insertMessage) error {
	l, known := r.layouts[m.relation]
	if !known {
		return fmt.Errorf("a row of table %d, which was not described", m.relation)
	}
	if l == nil {
		return nil
	}
	row, err := l.read(m.values)
	if err != nil {
		return err
	}
	if r.wants != nil && !r.wants(laneOf(row, r.decoder.table.lanes)) {
		r.current.skipped = true
		return nil
	}
	r.add(r.decoder.event(row))
	return nil
}

func (r *logReader) add(ev *source.Event) {
	r.current.events = append(r.current.events, ev)
	r.size += ev.Size()
}

func (r *logReader) flushFull(ctx context.Context) error {
	if len(r.current.events) < chunkEvents && r.size < chunkBytes {
		return nil
	}
	full := r.current
	r.current = chunk{xid: full.xid, position: full.position}
	r.size = 0
	return r.hand(ctx, full)
}

func (r *logReader) commit(ctx context.Context, m commitMessage) error {
	last := r.current
	r.current, r.size = chunk{}, 0
	last.end = true
	r.advance(m.end)
	if len(last.events) == 0 && !last.skipped && !r.positions {
		return nil
	}
	return r.hand(ctx, last)
}

// hand gives a chunk to who takes them.
func (r *logReader) hand(ctx context.Context, c chunk) error {
	r.busy.Store(true)
	err := r.deliver(ctx, c)
	r.lastByte.Store(time.Now().UnixNano())
	r.busy.Store(false)
	return err
}
