package demo

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

func TestMain(m *testing.M) { serverstest.Main(m) }

// row is an outbox row as the pipe reads it.
type row struct {
	id           int64
	topic        string
	key, payload []byte
}

// pipe is the simplest forwarder that keeps order in a single process: read by id, produce
// and wait, delete. spoil may change what is produced, to plant a fault.
type pipe struct {
	spoil func([]row) []row
	// fails, where set, is what run returns at once after it listens.
	fails error
	// stopped is set when run has been asked to end and has ended.
	stopped bool
}

func (p *pipe) init(ctx context.Context, t Target) error {
	conn, err := pgx.Connect(ctx, t.SourceURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "CREATE TABLE "+t.Table+` (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL,
		key text, payload bytea, headers jsonb, created_at timestamptz NOT NULL DEFAULT now())`)
	return err
}

func (p *pipe) run(ctx context.Context, t Target) error {
	conn, err := pgx.Connect(ctx, t.SourceURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	client, err := kgo.NewClient(kgo.SeedBrokers(t.Brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	t.Listening("127.0.0.1:12345")
	if p.fails != nil {
		return p.fails
	}
	t.Logger.Info("nobody needs to read this in a demo")
	t.Logger.Warn("a pipe is at work")
	for ctx.Err() == nil {
		// A round is never cut short, so that a stop in order repeats nothing.
		n, err := p.round(context.WithoutCancel(ctx), conn, client, t.Table)
		if err != nil {
			return err
		}
		if n == 0 {
			select {
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	p.stopped = true
	return nil
}

func (p *pipe) round(ctx context.Context, conn *pgx.Conn, client *kgo.Client, table string) (int, error) {
	found, err := conn.Query(ctx, "SELECT id, topic, key, payload FROM "+table+" ORDER BY id LIMIT 1000")
	if err != nil {
		return 0, err
	}
	rows, err := pgx.CollectRows(found, func(r pgx.CollectableRow) (w row, err error) {
		return w, r.Scan(&w.id, &w.topic, &w.key, &w.payload)
	})
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	ids := make([]int64, len(rows))
	for i := range rows {
		ids[i] = rows[i].id
	}
	if p.spoil != nil {
		rows = p.spoil(rows)
	}
	records := make([]*kgo.Record, len(rows))
	for i, w := range rows {
		records[i] = &kgo.Record{
			Topic: w.topic, Key: w.key, Value: w.payload,
			Headers: []kgo.RecordHeader{{Key: "id", Value: strconv.AppendInt(nil, w.id, 10)}},
		}
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return 0, err
	}
	if _, err := conn.Exec(ctx, "DELETE FROM "+table+" WHERE id = ANY($1)", ids); err != nil {
		return 0, err
	}
	return len(ids), nil
}

// once returns a spoiler that applies f to the first rows on which f succeeds.
func once(f func([]row) ([]row, bool)) func([]row) []row {
	done := false
	return func(rows []row) []row {
		if done {
			return rows
		}
		rows, done = f(rows)
		return rows
	}
}

// query returns the result of a query for one value.
func query[T any](t *testing.T, url, sql string, args ...any) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var value T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// execute runs statements.
func execute(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func schemaExists(t *testing.T, url string) bool {
	t.Helper()
	return query[bool](t, url, "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)", schemaName)
}

// mustContain reports every text that is missing in the demo's output.
func mustContain(t *testing.T, output string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(output, text) {
			t.Errorf("%q is missing in\n%s", text, output)
		}
	}
}

// figure reads the number behind a name in the verdict.
func figure(t *testing.T, output, name string) int64 {
	t.Helper()
	for line := range strings.Lines(output) {
		var value string
		rest, found := strings.CutPrefix(strings.TrimSpace(line), "ok "+name)
		if !found {
			continue
		}
		if _, err := fmt.Sscan(rest, &value); err != nil {
			t.Fatalf("reading %q: %v", line, err)
		}
		n, err := strconv.ParseInt(strings.ReplaceAll(value, ",", ""), 10, 64)
		if err != nil {
			t.Fatalf("reading %q: %v", line, err)
		}
		return n
	}
	t.Fatalf("no good %q in\n%s", name, output)
	return 0
}
