package postgres

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/tail"
)

// Stream is an outbox whose new rows are told by the log, from a temporary slot of its own.
// The table stays the truth: while there is no log the table is read, and nothing that happens to
// the slot or its connection can lose a row. The methods of Source that read and delete go
// through memory. Run must be running for it to stream; without it, it polls.
type Stream struct {
	*Source
	mirror *tail.Mirror
	link   *link
}

var (
	_ lanes.Source = (*Stream)(nil)
	_ lanes.Waker  = (*Stream)(nil)
	_ tail.Table   = (*Source)(nil)
)

// OpenStream is Open, and checks that the outbox can be streamed. A SetupError lists everything
// that no retry mends.
func OpenStream(ctx context.Context, cfg Config) (*Stream, error) {
	src, err := openStreamed(ctx, cfg)
	if err != nil {
		return nil, err
	}
	src.warnLeftover(ctx)
	return &Stream{Source: src, mirror: tail.NewMirror(tail.Config{MaxBytes: src.cfg.MemoryBytes}, src), link: newLink(src)}, nil
}

// openStreamed joins what is wrong with the outbox and what is wrong with its log.
func openStreamed(ctx context.Context, cfg Config) (*Source, error) {
	src, err := open(ctx, cfg)
	var table, log *source.SetupError
	if err != nil && !errors.As(err, &table) {
		return nil, err
	}
	if cfg = cfg.withDefaults(); cfg.Validate() != nil {
		return nil, err
	}
	logErr := checkStream(ctx, cfg)
	if logErr == nil && err == nil {
		return src, nil
	}
	if src != nil {
		src.Close()
	}
	switch {
	case table == nil, errors.As(logErr, &log) && table.Error() == log.Error():
		return nil, logErr
	case log != nil:
		return nil, &source.SetupError{Problems: append(table.Problems, log.Problems...)}
	}
	return nil, table
}

// Read implements lanes.Source.
func (s *Stream) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	return s.mirror.Read(ctx, read)
}

// Delete implements lanes.Source.
func (s *Stream) Delete(ctx context.Context, ids []int64, began func(xid uint64)) error {
	return s.mirror.Delete(ctx, ids, began)
}

// Wake implements lanes.Waker.
func (s *Stream) Wake() <-chan struct{} { return s.mirror.Wake() }

// FromMemory implements lanes.Waker.
func (s *Stream) FromMemory(read *source.Read) *source.Page { return s.mirror.FromMemory(read) }

// Unready says what must be mended for the log to be read again.
func (s *Stream) Unready() []string { return s.link.unready() }

// Run streams until ctx is done, and begins anew whenever the log is lost. It may be called
// once, and returns nil.
func (s *Stream) Run(ctx context.Context) error {
	s.link.keep(ctx, func(ctx context.Context) error {
		defer s.mirror.Detach()
		return s.follow(ctx)
	})
	return nil
}

// follow reads the log from a new slot until it is lost.
func (s *Stream) follow(ctx context.Context) error {
	repl, err := s.link.dial(ctx)
	if err != nil {
		return err
	}
	defer repl.close()
	database, err := repl.value(ctx, "SELECT current_database()")
	if err != nil {
		return err
	}
	slot := s.cfg.temporarySlot(database)
	point, err := s.link.createSlot(ctx, repl, slot, slotKind{temporary: true})
	if err != nil {
		return err
	}
	// An id that is assigned now is above those of all transactions that may have committed
	// before the slot's point.
	fence, err := repl.xid(ctx)
	if err != nil {
		return err
	}
	if err := repl.start(ctx, slot, s.cfg.Publication, point, false); err != nil {
		return err
	}
	s.mirror.Attach(fence)
	reader := s.link.newReader(repl, point, fence, func(ctx context.Context, c chunk) error {
		return s.mirror.Append(ctx, c.xid, c.events, c.skipped)
	})
	reader.wants = s.mirror.Wants
	s.link.gained(reader, slot)
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return reader.run(ctx) })
	work.Go(func() error { return s.link.watch(ctx, slot) })
	return work.Wait()
}
