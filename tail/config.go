package tail

import (
	"cmp"
	"context"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Table is the outbox itself.
type Table interface {
	// Read answers one page, see lanes.Source. Page.Snapshot must be set: it says which of the
	// log's transactions the page covers. A source without xids counts by another clock of its
	// log, such as the cluster time T of the snapshot, and gives Snapshot{Xmin: T+1, Xmax: T+1}.
	Read(ctx context.Context, read *source.Read) (*source.Page, error)
	// DeleteRows is Delete of lanes.Source, and also says how many rows it found: a row may have
	// come through the log before a statement can see it.
	DeleteRows(ctx context.Context, ids []int64, began func(xid uint64)) (int, error)
}

// Config tunes a Mirror. The zero value of each field takes its default.
type Config struct {
	// MaxEvents and MaxBytes (of source.Event.Size) bound what waits in the mirror to be handed
	// out, and once more what was handed out and is not deleted yet. One Append may pass them.
	// Defaults 8,192, a page, since more would only leave the processor's cache before it is taken,
	// and 32 MiB.
	MaxEvents, MaxBytes int
	// Patience is how long Append blocks while that memory is full and nothing is taken out of
	// it, before the mirror lets rows go. Default 250 ms.
	Patience time.Duration
	// Resync is how often the table is read in spite of the log, to find what no log tells: rows
	// deleted by others. Default 30 s.
	Resync time.Duration
	// Head says that the table is always read from its head: pages are handed on with a zero
	// Snapshot. For a source without floors.
	Head bool
	// Now is time.Now, but in simulated time.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	c.MaxEvents = cmp.Or(c.MaxEvents, 8192)
	c.MaxBytes = cmp.Or(c.MaxBytes, 32<<20)
	c.Patience = cmp.Or(c.Patience, 250*time.Millisecond)
	c.Resync = cmp.Or(c.Resync, 30*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Stats is a copy of what a Mirror counts.
type Stats struct {
	Attached bool      // a log is there
	Complete bool      // reads are answered from memory
	Since    time.Time // of Complete's value
	Waiting  int       // events in memory to be handed out
	Bytes    int       // their size
	Out      int       // rows handed out and not deleted yet

	Covered    uint64 // rows of the log that were skipped since a table read covered them
	TableReads uint64
	Memory     uint64 // reads answered from memory
	Evictions  uint64 // times that rows were let go for want of memory
	Unseen     uint64 // rows deleted once more, since the first delete could not see them yet
}
