package e2e

import (
	"context"
	"errors"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// drainLimit bounds the wait for an outbox to become empty.
const drainLimit = 60 * time.Second

// world is what a test plays in: a database with an outbox, a topic, and the oracle.
type world struct {
	t       *testing.T
	mode    mode
	url     string // of the database
	broker  string
	topic   string
	watch   *oracle.Stopwatch
	checker *oracle.Checker
	counter *pgx.Conn // of left; nil while there is none

	collection *collection // the outbox in MongoDB; nil in PostgreSQL
}

// newWorld prepares an outbox and a topic on the shared servers, or on the given ones where
// they are not nil.
func newWorld(t *testing.T, db *servers.Postgres, kafka *servers.Kafka) *world {
	t.Helper()
	return newWorldOn(t, db, kafka, "events")
}

// newWorldOn is newWorld with a name for the topic on the given broker.
func newWorldOn(t *testing.T, db *servers.Postgres, kafka *servers.Kafka, topic string) *world {
	t.Helper()
	return newWorldIn(t, polled, db, kafka, topic)
}

// newWorldIn is newWorldOn in the given mode.
func newWorldIn(t *testing.T, m mode, db *servers.Postgres, kafka *servers.Kafka, topic string) *world {
	t.Helper()
	switch {
	case db != nil:
		return newWorldAt(t, m, db.URL("postgres"), kafka, topic)
	case m.mongo:
		return newWorldAt(t, m, sharedMongo(t), kafka, topic)
	}
	return newWorldAt(t, m, serverstest.Database(t), kafka, topic)
}

// newWorldAt is newWorldIn in the database of the URL.
func newWorldAt(t *testing.T, m mode, url string, kafka *servers.Kafka, topic string) *world {
	t.Helper()
	w := &world{t: t, mode: m, url: url, watch: &oracle.Stopwatch{}}
	if m.mongo {
		w.collection = openCollection(t, url)
	}
	if kafka != nil {
		w.broker, w.topic = kafka.Addr(), topic
		if err := oracle.CreateTopic(t.Context(), []string{w.broker}, w.topic, 12, nil); err != nil {
			t.Fatal(err)
		}
	} else {
		w.broker, w.topic = serverstest.Kafka(t), serverstest.Topic(t, 12, nil)
		if err := oracle.AwaitTopic(t.Context(), []string{w.broker}, w.topic); err != nil {
			t.Fatal(err)
		}
	}
	w.initialise()
	t.Cleanup(w.closeCounter)
	checker, err := oracle.StartChecker(oracle.CheckerConfig{Brokers: []string{w.broker}, Topics: []string{w.topic}, Stopwatch: w.watch})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(checker.Stop)
	w.checker = checker
	return w
}

// initialise runs `forwarder init`.
func (w *world) initialise() {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), binary, "init", "--source-url", w.url)
	cmd.Env = environment(w.mode.settings...)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("forwarder init: %v\n%s", err, out)
	}
}

// privatePostgres starts a server that the test may stop.
func privatePostgres(t *testing.T) *servers.Postgres {
	t.Helper()
	db, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// privateKafka starts a broker that the test may stop.
func privateKafka(t *testing.T) *servers.Kafka {
	t.Helper()
	kafka, err := servers.StartKafka(t.Context(), servers.KafkaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kafka.Close(); err != nil {
			t.Error(err)
		}
	})
	return kafka
}

// writer is a workload that runs beside the test.
type writer struct {
	*oracle.Writer
	t      *testing.T
	cancel context.CancelFunc
	done   func() error // waits for the end
}

// write starts the usual workload, 8 connections and 1,000 keys, with transactions of
// several events, some that roll back and some that stay open for a while.
func (w *world) write(change func(*oracle.WriterConfig)) *writer {
	w.t.Helper()
	cfg := oracle.WriterConfig{
		URL: w.url, Topics: []string{w.topic}, Connections: 8, Keys: 1000, MaxPerTransaction: 4,
		Rollback: 0.05, Hold: 0.02, HoldFor: 30 * time.Millisecond, Stopwatch: w.watch,
	}
	change(&cfg)
	inner, err := oracle.NewWriter(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- inner.Run(ctx) }()
	x := &writer{Writer: inner, t: w.t, cancel: cancel, done: sync.OnceValue(func() error { return <-done })}
	w.t.Cleanup(func() {
		cancel()
		_ = x.done() // its error was seen by stop or wait
	})
	return x
}

// wait returns when the writer has written all its events.
func (x *writer) wait() {
	x.t.Helper()
	if err := x.done(); err != nil {
		x.t.Fatalf("the writer gave up: %v", err)
	}
}

// stop ends the writer.
func (x *writer) stop() {
	x.t.Helper()
	x.cancel()
	x.wait()
}

// awaitEmpty returns when the outbox is empty.
func (w *world) awaitEmpty() {
	w.t.Helper()
	eventually(w.t, drainLimit, "the outbox is empty", func() bool { return w.left() == 0 })
}

// left counts the rows in the outbox; -1 while the database cannot be asked.
func (w *world) left() int64 {
	if w.collection != nil {
		return w.collection.left()
	}
	var n int64
	err := errors.New("not connected")
	if w.counter != nil {
		err = w.counter.QueryRow(w.t.Context(), "SELECT count(*) FROM outbox").Scan(&n)
	}
	if err == nil {
		return n
	}
	w.closeCounter() // the server was away; try a new session, once
	if w.counter, err = connect(w.t.Context(), w.url); err != nil {
		w.counter = nil
		return -1
	}
	if err := w.counter.QueryRow(w.t.Context(), "SELECT count(*) FROM outbox").Scan(&n); err != nil {
		return -1
	}
	return n
}

func (w *world) closeCounter() {
	if w.counter != nil {
		_ = w.counter.Close(context.Background()) // it may be gone already
		w.counter = nil
	}
}

// forwarderGone returns when the database has ended the sessions of a forwarder that was
// killed. A delete that was on the wire is carried out after the death of its sender, and
// the rows must not vanish between two reads of the next process: it would repeat what the
// first read found and not what the second one missed.
func (w *world) forwarderGone() {
	w.t.Helper()
	if w.collection != nil {
		w.collection.forwarderGone()
		return
	}
	conn := w.connect()
	eventually(w.t, 10*time.Second, "the killed forwarder's sessions end", func() bool {
		var n int
		err := conn.QueryRow(w.t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND backend_type = 'client backend' AND application_name <> $1`, oracle.ApplicationName).Scan(&n)
		if err != nil {
			w.t.Fatal(err)
		}
		return n == 0
	})
}

// connect opens a session under the oracle's name.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["application_name"] = oracle.ApplicationName
	return pgx.ConnectConfig(ctx, cfg)
}

// verdict waits for the outbox to be empty and judges the topic. Repeats are the caller's to
// judge; everything else is demanded here.
func (w *world) verdict() oracle.Verdict {
	w.t.Helper()
	v := w.judge()
	if err := v.Err(); err != nil {
		w.t.Fatalf("promises broken: %v", err)
	}
	return v
}

// judge is verdict that leaves all of the judgement to the caller.
func (w *world) judge() oracle.Verdict {
	w.t.Helper()
	w.awaitEmpty()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	ledger, err := oracle.ReadLedger(ctx, w.url, oracle.Tables{})
	if err != nil {
		w.t.Fatal(err)
	}
	v, err := w.checker.Verdict(ctx, ledger)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Logf("verdict: %v; table empty", v)
	if v.Written == 0 {
		w.t.Fatal("nothing was written, so nothing was tested")
	}
	return v
}

// received waits until n records have been consumed in all.
func (w *world) received(n int64) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	if err := w.checker.WaitReceived(ctx, n); err != nil {
		w.t.Fatal(err)
	}
}

// connect opens a session of the test's own.
func (w *world) connect() *pgx.Conn {
	w.t.Helper()
	conn, err := connect(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// execute runs a statement in the session.
func (w *world) execute(conn *pgx.Conn, statement string, args ...any) {
	w.t.Helper()
	if _, err := conn.Exec(w.t.Context(), statement, args...); err != nil {
		w.t.Fatalf("%s: %v", statement, err)
	}
}

// noRepeats demands that no record was sent twice.
func noRepeats(t *testing.T, v oracle.Verdict) {
	t.Helper()
	if v.Repeated != 0 {
		t.Errorf("%d repeats where none is allowed", v.Repeated)
	}
}
