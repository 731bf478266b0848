package oracle

import (
	"context"
	"iter"
	"strings"
)

// database is the server that holds an outbox and its ledger.
type database interface {
	createLedger(ctx context.Context) error
	readLedger(ctx context.Context) (Ledger, error)
	// left counts the events in the outbox.
	left(ctx context.Context) (int64, error)
	// preload fills the outbox and then the ledger.
	preload(ctx context.Context, ledger Ledger, rows iter.Seq[row], perTransaction int) error
	// session returns a connection for one goroutine.
	session(ctx context.Context) (session, error)
	// transient says that the same transaction may succeed in a new session. What the server
	// refuses for other reasons would be refused again.
	transient(err error) bool
	close(ctx context.Context)
}

// session carries one transaction after the other. After an error it is closed.
type session interface {
	// turn begins a transaction and waits until no other one has events of the streams under
	// way. It adds the counts to the ledger and returns the sums. The streams are in order.
	turn(ctx context.Context, streams []Stream, count map[Stream]int64) (map[Stream]int64, error)
	insert(ctx context.Context, rows []row) error
	// end inserts what is left, and commits or rolls back.
	end(ctx context.Context, rows []row, commit bool) error
	close(ctx context.Context)
}

// row is an event as it stands in the outbox.
type row struct {
	n          int64 // the event's N
	topic, key string
	payload    []byte
}

// open returns the database of the URL, without connecting.
func open(url string, tables Tables) (database, error) {
	if IsMongo(url) {
		return openMongo(url, tables)
	}
	return postgresDatabase{url: url, tables: tables.or("public.outbox", "public.oracle_ledger")}, nil
}

// IsMongo says whether a URL is one of MongoDB, and not of PostgreSQL.
func IsMongo(url string) bool {
	return strings.HasPrefix(url, "mongodb://") || strings.HasPrefix(url, "mongodb+srv://")
}

// withDatabase runs do on the database of the URL.
func withDatabase(ctx context.Context, url string, tables Tables, do func(database) error) error {
	db, err := open(url, tables)
	if err != nil {
		return err
	}
	defer db.close(ctx)
	return do(db)
}
