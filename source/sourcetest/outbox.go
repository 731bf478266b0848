package sourcetest

import (
	"context"
	"testing"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// Outbox is an outbox of one test in a real database, to be read in one mode.
type Outbox struct {
	// Open opens the outbox as a replica does at its start. It may be called again while
	// another replica lives.
	Open func(t testing.TB) Replica
	// Begin starts a transaction of a writer. It is called from many goroutines.
	Begin func(t testing.TB) Writer
	// Left counts the rows that are in the database.
	Left func(t testing.TB) int
	// Repeats says that what was delivered behind an undelivered event comes again after a
	// crash, though it was deleted: the mode confirms a position of a log.
	Repeats bool
}

// Replica is an open outbox.
type Replica struct {
	lanes.Source
	Lanes int
	// Run follows the database's log until its context ends; nil where there is none.
	Run func(ctx context.Context) error
	// Owner makes the owner of lanes that the forwarder is to be run with; nil for any.
	Owner func(next lanes.Owner) lanes.Owner
	// Finish goes before a stop in order; nil where nothing does.
	Finish func(ctx context.Context)
	Close  func()
}

// Store is an open outbox with the methods that its users have. One that follows a log has Run
// besides, and one whose log is the truth has Owner and Finish.
type Store interface {
	lanes.Source
	Lanes() int
	Close()
}

// ReplicaOf takes from a store what it has.
func ReplicaOf(s Store) Replica {
	r := Replica{Source: s, Lanes: s.Lanes(), Close: s.Close}
	if f, ok := s.(interface {
		Run(ctx context.Context) error
	}); ok {
		r.Run = f.Run
	}
	if c, ok := s.(interface {
		Owner(next lanes.Owner) lanes.Owner
		Finish(ctx context.Context)
	}); ok {
		r.Owner, r.Finish = c.Owner, c.Finish
	}
	return r
}

// Writer is a transaction. It is used by one goroutine, and ends with Commit or Rollback.
type Writer interface {
	Insert(rows ...Row)
	Commit()
	Rollback()
}

// Row is a row to be inserted. Nil is NULL in a key, a payload, headers and a header's value.
type Row struct {
	Topic        string
	Key, Payload []byte
	Headers      []source.Header
}

// Sources runs what every source and mode must do. open is called for each test.
func Sources(t *testing.T, open func(t *testing.T) Outbox) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Outbox)
	}{
		{"Values", sameValues},
		{"UnacknowledgedComesBack", unacknowledgedComesBack},
		{"OrderAndRollback", orderAndRollback},
		{"RefusedHoldsItsKey", refusedHoldsItsKey},
		{"LanesMove", lanesMove},
		{"StopUnderLoad", stopUnderLoad},
		{"Idle", idle},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, open(t))
		})
	}
}

// put inserts rows in one transaction.
func (o Outbox) put(t testing.TB, rows ...Row) {
	t.Helper()
	w := o.Begin(t)
	w.Insert(rows...)
	w.Commit()
}

// keyed is a row with a key of topic "t".
func keyed(key, payload string) Row {
	return Row{Topic: "t", Key: []byte(key), Payload: []byte(payload)}
}
