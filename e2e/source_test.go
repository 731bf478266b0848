package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// insert puts one event into the outbox, in the session's transaction where one is open.
const insert = "INSERT INTO outbox (topic, key, payload) VALUES ($1, $2, $3)"

// TestC01LateCommit commits the lower id last, with a restart between the two.
func TestC01LateCommit(t *testing.T) {
	for _, restart := range []bool{false, true} {
		name := "same process"
		if restart {
			name = "restart between the commits"
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, nil)
			p := w.start()
			late, early := w.connect(), w.connect()
			w.execute(late, "BEGIN")
			w.execute(late, insert, w.topic, "k1", "first id")
			w.execute(early, insert, w.topic, "k2", "second id")
			w.received(1)
			eventually(t, drainLimit, "the committed row is deleted", func() bool { return w.left() == 0 })
			if restart {
				p.stop()
				p = w.start()
				p.awaitReady()
			}
			w.execute(late, "COMMIT")
			w.received(2)
			w.awaitEmpty()
			p.stop()
			if got, want := w.payloads(), "first id,second id"; got != want {
				t.Errorf("the topic has %q, want %q", got, want)
			}
		})
	}
}

// TestC01YoungestTransactionTakesLowerID has the lower id taken by the transaction that got its
// own number last. No snapshot shows such a transaction until a younger one has ended: its
// xmax is one past the youngest that has ended, not past the youngest that has begun. When it
// commits, an event of the same key follows, which must not be read before its row.
func TestC01YoungestTransactionTakesLowerID(t *testing.T) {
	w := newWorld(t, nil, nil)
	p := w.start()
	p.awaitReady()
	older, younger, looker := w.connect(), w.connect(), w.connect()
	const rounds = 20
	for round := range rounds {
		key := fmt.Sprintf("key-%d", round)
		for _, session := range []*pgx.Conn{older, younger} { // transaction numbers, in this order
			w.execute(session, "BEGIN")
			w.execute(session, "SELECT pg_current_xact_id()")
		}
		w.execute(younger, insert, w.topic, key, "1")
		w.execute(older, insert, w.topic, "other", "0")
		w.execute(older, "COMMIT")
		// The other row has to be read, and then reads have to find nothing new for a while.
		w.received(int64(3*round + 1))
		eventually(t, drainLimit, "the row that was committed is deleted", func() bool {
			var left bool
			if err := looker.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM outbox)").Scan(&left); err != nil {
				t.Fatal(err)
			}
			return !left
		})
		w.execute(younger, "COMMIT")
		w.execute(younger, insert, w.topic, key, "2")
		w.received(int64(3*round + 3))
	}
	w.awaitEmpty()
	p.stop()
	last := map[string]string{}
	for _, r := range w.records() {
		if string(r.Value) <= last[string(r.Key)] && string(r.Key) != "other" {
			t.Errorf("%s: %s after %s", r.Key, r.Value, last[string(r.Key)])
		}
		last[string(r.Key)] = string(r.Value)
	}
	if len(last) != rounds+1 {
		t.Errorf("%d keys arrived, want %d", len(last), rounds+1)
	}
}

// payloads returns the values of the whole topic, joined by commas.
func (w *world) payloads() string {
	w.t.Helper()
	var values []string
	for _, r := range w.records() {
		values = append(values, string(r.Value))
	}
	slices.Sort(values)
	return strings.Join(values, ",")
}

// records reads what the checker has received with a client of the test's own.
func (w *world) records() []*kgo.Record {
	w.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(w.broker), kgo.ConsumeTopics(w.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		w.t.Fatal(err)
	}
	defer client.Close()
	var records []*kgo.Record
	for int64(len(records)) < w.checker.Received() {
		fetches := client.PollFetches(w.t.Context())
		if err := fetches.Err(); err != nil {
			w.t.Fatal(err)
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

// TestC02LongTransactionElsewhere delivers while another session's transaction stays open,
// in the same database and in another one.
func TestC02LongTransactionElsewhere(t *testing.T) {
	w := newWorld(t, nil, nil)
	elsewhere := newWorld(t, nil, nil)
	p := w.start()
	p.awaitReady()
	for _, session := range []*pgx.Conn{w.connect(), elsewhere.connect()} {
		w.execute(session, "CREATE TABLE unrelated (x int)")
		w.execute(session, "BEGIN")
		w.execute(session, "INSERT INTO unrelated VALUES (1)")
	}
	begun := time.Now()
	w.write(func(c *oracle.WriterConfig) { c.Events, c.Rollback, c.Hold = 500, 0, 0 }).wait()
	v := w.verdict()
	noRepeats(t, v)
	if took := time.Since(begun); v.Latency.Max > 2*time.Second {
		t.Errorf("an event took %s, all of them %s", v.Latency.Max, took)
	}
	p.stop()
}

// TestC03RestoreIntoAnotherServer moves the database by dump and restore to a new server,
// whose transaction ids are far below the old one's.
func TestC03RestoreIntoAnotherServer(t *testing.T) {
	w := newWorld(t, nil, nil)
	// The dump must be of a database with a history: many transactions, delivered rows.
	p := w.start()
	w.write(func(c *oracle.WriterConfig) { c.Events = 3000 }).wait()
	w.awaitEmpty()
	p.stop()
	w.write(func(c *oracle.WriterConfig) { c.Events = 500 }).wait()

	restored := privatePostgres(t)
	w.dumpInto(restored)
	old := w.transactionID()
	w.closeCounter()
	w.url = restored.URL("postgres")
	if young := w.transactionID(); young >= old {
		t.Fatalf("the new server is at transaction %d, the old one at %d: nothing is tested", young, old)
	}
	if w.left() == 0 {
		t.Fatal("the restored outbox has no rows")
	}
	w.initialise()
	p = w.start()
	w.write(func(c *oracle.WriterConfig) { c.Events = 500 }).wait()
	noRepeats(t, w.verdict())
	p.stop()
}

// dumpInto copies the world's database into the server with PostgreSQL's own tools.
func (w *world) dumpInto(target *servers.Postgres) {
	t := w.t
	t.Helper()
	tool := func(name string) string {
		// A server that was fetched as a package comes without the client's programs.
		if path, err := exec.LookPath(filepath.Join(target.Bin(), name)); err == nil {
			return path
		}
		if err := servers.Install(t.Context(), slog.Default(), servers.PostgreSQL); err != nil {
			t.Fatal(err)
		}
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("looking for PostgreSQL's client programs: %v", err)
		}
		return path
	}
	var script, problems bytes.Buffer
	dump := exec.CommandContext(t.Context(), tool("pg_dump"), "--dbname", w.url)
	dump.Stdout, dump.Stderr = &script, &problems
	restore := exec.CommandContext(t.Context(), tool("psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname", target.URL("postgres"))
	restore.Stdin, restore.Stderr = &script, &problems
	if err := errors.Join(dump.Run(), restore.Run()); err != nil {
		t.Fatalf("dumping and restoring: %v\n%s", err, &problems)
	}
}

// transactionID is the server's next transaction id.
func (w *world) transactionID() int64 {
	w.t.Helper()
	var id int64
	if err := w.connect().QueryRow(w.t.Context(), "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&id); err != nil {
		w.t.Fatal(err)
	}
	return id
}

// TestC12ColumnsChangeUnderneath alters the outbox under a running forwarder: a new column,
// which explicit column lists do not notice, and a changed type of one that is read, by which
// PostgreSQL refuses every prepared read once.
func TestC12ColumnsChangeUnderneath(t *testing.T) {
	w := newWorld(t, nil, nil)
	p := w.start()
	migration := w.connect()
	for _, change := range []string{
		"ALTER TABLE outbox ADD COLUMN trace text",
		"ALTER TABLE outbox ALTER COLUMN key TYPE varchar(200)",
		"ALTER TABLE outbox DROP COLUMN trace",
	} {
		writer := w.write(func(c *oracle.WriterConfig) { c.Rate, c.Hold = 500, 0 })
		// The writer before may have left enough for all that is waited for below.
		eventually(t, drainLimit, "rows are written", func() bool { return writer.Stats().Committed > 0 })
		w.received(w.checker.Received() + 200)
		w.execute(migration, change)
		w.received(w.checker.Received() + 200)
		writer.stop()
	}
	noRepeats(t, w.verdict())
	if !p.running() {
		t.Error("the forwarder ended")
	}
	if text := p.output(); strings.Contains(text, "0A000") || strings.Contains(text, "cached plan") {
		t.Errorf("the change is visible in the log:\n%s", text)
	}
	p.stop()
}
