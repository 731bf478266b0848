package postgres

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/source/sourcetest"
)

// TestConformance: what every source does, in each mode.
func TestConformance(t *testing.T) {
	const durable = "durable slot"
	for name, open := range map[string]func(ctx context.Context, cfg Config) (sourcetest.Store, error){
		"poll":   func(ctx context.Context, cfg Config) (sourcetest.Store, error) { return Open(ctx, cfg) },
		"stream": func(ctx context.Context, cfg Config) (sourcetest.Store, error) { return OpenStream(ctx, cfg) },
		durable:  func(ctx context.Context, cfg Config) (sourcetest.Store, error) { return OpenDurable(ctx, cfg) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sourcetest.Sources(t, func(t *testing.T) sourcetest.Outbox {
				w := newWorld(t, outbox)
				w.publish()
				pool, err := pgxpool.New(t.Context(), w.url)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				return sourcetest.Outbox{
					Repeats: name == durable,
					Open: func(t testing.TB) sourcetest.Replica {
						t.Helper()
						s, err := open(t.Context(), w.config())
						if err != nil {
							t.Fatal(err)
						}
						return sourcetest.ReplicaOf(s)
					},
					Begin: func(t testing.TB) sourcetest.Writer { return beginWriter(t, pool) },
					Left: func(t testing.TB) (n int) {
						t.Helper()
						if err := pool.QueryRow(context.Background(), "SELECT count(*) FROM outbox").Scan(&n); err != nil {
							t.Fatal(err)
						}
						return n
					},
				}
			})
		})
	}
}

// transactionWriter is a sourcetest.Writer.
type transactionWriter struct {
	t  testing.TB
	tx pgx.Tx
}

func beginWriter(t testing.TB, pool *pgxpool.Pool) *transactionWriter {
	tx, err := pool.Begin(context.Background())
	if err != nil {
		t.Errorf("beginning a transaction: %v", err)
	}
	return &transactionWriter{t, tx}
}

func (w *transactionWriter) check(err error) {
	if err != nil {
		w.t.Errorf("writing: %v", err)
	}
}

// Insert writes the headers as pairs, which may have a name twice.
func (w *transactionWriter) Insert(rows ...sourcetest.Row) {
	for _, r := range rows {
		var key, headers *string
		if r.Key != nil {
			text := string(r.Key)
			key = &text
		}
		if r.Headers != nil {
			text := pairs(r.Headers)
			headers = &text
		}
		_, err := w.tx.Exec(context.Background(), "INSERT INTO outbox (topic, key, payload, headers) VALUES ($1, $2, $3, $4)", r.Topic, key, r.Payload, headers)
		w.check(err)
	}
}

func pairs(headers []source.Header) string {
	list := make([][2]*string, len(headers))
	for i, h := range headers {
		list[i][0] = &headers[i].Name
		if h.Value != nil {
			text := string(h.Value)
			list[i][1] = &text
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err) // strings can always be written
	}
	return string(text)
}

func (w *transactionWriter) Commit()   { w.check(w.tx.Commit(context.Background())) }
func (w *transactionWriter) Rollback() { w.check(w.tx.Rollback(context.Background())) }
