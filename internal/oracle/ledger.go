package oracle

import (
	"cmp"
	"context"
	"fmt"
	"strings"
)

// Stream names an ordered sequence of events.
type Stream struct{ Topic, Key string }

func (s Stream) compare(other Stream) int {
	return cmp.Or(strings.Compare(s.Topic, other.Topic), strings.Compare(s.Key, other.Key))
}

// Ledger says how many events of each stream were committed: exactly those numbered 1 to the
// value.
type Ledger map[Stream]int64

// Events is the number of events in the ledger.
func (l Ledger) Events() int64 {
	var sum int64
	for _, n := range l {
		sum += n
	}
	return sum
}

// Tables names the two tables of a workload, each as `table` or `schema.table`; in MongoDB, the
// two collections, each as `collection`, in the URL's database, or as `database.collection`.
type Tables struct {
	Outbox string // default public.outbox, in MongoDB outbox
	Ledger string // default public.oracle_ledger, in MongoDB oracle_ledger
}

// or fills in the names that are not given.
func (t Tables) or(outbox, ledger string) Tables {
	if t.Outbox == "" {
		t.Outbox = outbox
	}
	if t.Ledger == "" {
		t.Ledger = ledger
	}
	return t
}

// CreateLedger creates the ledger table where there is none. The row of a stream is also the
// lock by which its writers take turns.
func CreateLedger(ctx context.Context, url string, tables Tables) error {
	return withDatabase(ctx, url, tables, func(db database) error {
		if err := db.createLedger(ctx); err != nil {
			return fmt.Errorf("creating the ledger: %w", err)
		}
		return nil
	})
}

// ReadLedger reads what has been committed.
func ReadLedger(ctx context.Context, url string, tables Tables) (ledger Ledger, err error) {
	err = withDatabase(ctx, url, tables, func(db database) error {
		ledger, err = db.readLedger(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	return ledger, nil
}

// Left counts the rows in the outbox.
func Left(ctx context.Context, url string, tables Tables) (n int64, err error) {
	err = withDatabase(ctx, url, tables, func(db database) error {
		n, err = db.left(ctx)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("counting the outbox: %w", err)
	}
	return n, nil
}
