package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// TestC08DeadlockIsRetried: a delete that is the victim of a deadlock is sent again and
// succeeds, without the caller's help.
func TestC08DeadlockIsRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "INSERT INTO outbox (topic) VALUES ('t'), ('t'), ('t')")
	w.exec("ALTER DATABASE " + value[string](w, "SELECT current_database()") + " SET deadlock_timeout = '2s'")
	logged := &logText{}
	s := w.open(func(c *Config) { c.Logger = logged.logger() })
	other := w.session()
	// Only the forwarder's session looks for deadlocks, so it is the victim.
	run(t, other, "SET deadlock_timeout = '1h'")
	run(t, other, "BEGIN")
	run(t, other, "UPDATE outbox SET topic = 'u' WHERE id = 3")
	done := make(chan error, 1)
	go func() { done <- s.Delete(t.Context(), []int64{1, 2, 3}, func(uint64) {}) }()
	eventually(t, "the delete waits", func() bool { return waiting(w) == 1 })
	run(t, other, "UPDATE outbox SET topic = 'u' WHERE id = 1") // returns when the delete is rolled back
	run(t, other, "COMMIT")
	if err := <-done; err != nil {
		t.Errorf("the delete: %v", err)
	}
	if n := w.rows(); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if text := logged.String(); !strings.Contains(text, "deleting again") || !strings.Contains(text, deadlockDetected) {
		t.Errorf("there was no deadlock: %q", text)
	}
	if s.DeletesRetried() == 0 {
		t.Error("the retry is not counted")
	}
}

// TestDeleteCountsItsRows: rows that are gone, or not visible yet, are no error and not counted.
func TestDeleteCountsItsRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "INSERT INTO outbox (topic) VALUES ('t'), ('t'), ('t')")
	s := w.open()
	writer := w.session()
	run(t, writer, "BEGIN")
	run(t, writer, "INSERT INTO outbox (topic) VALUES ('t')")
	for _, want := range []int{2, 0} {
		n, err := s.DeleteRows(t.Context(), []int64{1, 3, 4, 99}, func(uint64) {})
		if err != nil || n != want {
			t.Errorf("a delete found %d rows, want %d: %v", n, want, err)
		}
	}
	run(t, writer, "COMMIT")
	if n, err := s.DeleteRows(t.Context(), []int64{4}, func(uint64) {}); err != nil || n != 1 {
		t.Errorf("a delete of a row that is visible at last found %d: %v", n, err)
	}
}

// TestDeleteTellsItsTransaction: the xid is known while the delete still runs, and its end is
// the delete's.
func TestDeleteTellsItsTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "INSERT INTO outbox (topic) VALUES ('t'), ('t')")
	s := w.open()
	locker := w.session()
	run(t, locker, "BEGIN")
	run(t, locker, "SELECT FROM outbox WHERE id = 2 FOR UPDATE")
	began, done := make(chan uint64, deleteTries), make(chan error, 1)
	go func() { done <- s.Delete(t.Context(), []int64{1, 2}, func(xid uint64) { began <- xid }) }()
	var xid uint64
	select {
	case xid = <-began:
	case err := <-done:
		t.Fatalf("the delete ended without telling its xid: %v", err)
	case <-time.After(patience):
		t.Fatal("the xid is not told while the delete runs")
	}
	eventually(t, "the delete waits", func() bool { return waiting(w) == 1 })
	p := page(t, s, everything())
	wantIDs(t, "while the delete waits", p.Events, 1, 2)
	if p.Snapshot.Shows(xid) {
		t.Errorf("transaction %d has ended in %+v, while its delete waits", xid, p.Snapshot)
	}
	run(t, locker, "COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p = page(t, s, everything())
	wantIDs(t, "after the delete", p.Events)
	if !p.Snapshot.Shows(xid) {
		t.Errorf("transaction %d has not ended in %+v, after its delete", xid, p.Snapshot)
	}
	if len(began) > 0 {
		t.Errorf("one delete told another xid: %d", <-began)
	}
}

// waiting counts the forwarder's sessions that wait for a lock.
func waiting(w *world) int {
	return value[int](w, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
		AND application_name = $1 AND wait_event_type = 'Lock'`, applicationName)
}

// TestDeleteTriesAgain: what was rolled back for another's sake is tried again, for a while;
// anything else is the caller's matter at once.
func TestDeleteTriesAgain(t *testing.T) {
	t.Parallel()
	for code, tries := range map[string]int64{serializationFailure: deleteTries, deadlockDetected: deleteTries, "23503": 1, "57014": 1} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox, "CREATE SEQUENCE tries", "CREATE TABLE good (after bigint)", "INSERT INTO good VALUES (1000000)",
				`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF nextval('public.tries') < (SELECT after FROM public.good) THEN RAISE EXCEPTION 'refused' USING ERRCODE = '`+code+`'; END IF;
					RETURN OLD; END $$`,
				"CREATE TRIGGER refuse BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
				"INSERT INTO outbox (topic) VALUES ('t')")
			s := w.open()
			err := s.Delete(t.Context(), []int64{1}, func(uint64) {})
			if sqlState(err) != code {
				t.Errorf("the error is %v", err)
			}
			if n := value[int64](w, "SELECT last_value FROM tries"); n != tries {
				t.Errorf("%d tries, want %d", n, tries)
			}
			if tries == 1 {
				return
			}
			w.exec("UPDATE good SET after = $1", 2*tries) // the last try of the next call
			if err := s.Delete(t.Context(), []int64{1}, func(uint64) {}); err != nil || w.rows() != 0 {
				t.Errorf("the last try: %v, %d rows left", err, w.rows())
			}
		})
	}
}

// TestC15StatementTimeoutOfTheRole: a time-out that somebody gave the role is not the
// forwarder's, and a table that stays locked is waited for.
func TestC15StatementTimeoutOfTheRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	name, login := w.role("")
	w.exec("GRANT ALL ON ALL TABLES IN SCHEMA public TO " + name)
	for _, setting := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		w.exec("ALTER ROLE " + name + " SET " + setting + " = '200ms'")
	}
	locker := w.session()
	lock := func() {
		run(t, locker, "BEGIN")
		run(t, locker, "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
	}
	longer := func() bool {
		return value[int](w, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1
			AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '600 ms'`, applicationName) > 0
	}

	sink := &recorder{}
	f := forward(t, w.open(func(c *Config) { c.URL = login }), sink)
	w.exec("INSERT INTO outbox (topic, key) SELECT 't', 'k' || i % 100 FROM generate_series(1, 20000) i")
	f.acked(1)
	lock()
	eventually(t, "a statement waits for longer than the role may", longer)
	run(t, locker, "COMMIT")
	f.drained(w)
	f.stop()
	if errs := f.source.failures(); len(errs) > 0 || strings.Contains(f.logged.String(), "failed") {
		t.Errorf("reads failed: %v\n%s", errs, f.logged)
	}
	if n := sink.count(); n != 20000 {
		t.Errorf("%d events acknowledged for 20000 rows", n)
	}

	// The forwarder's own time-out is an error that passes: reads and deletes go on after it.
	sink = &recorder{keep: func(*source.Event) bool { return true }}
	f = forward(t, w.open(func(c *Config) { c.URL, c.Timeout = login, time.Second }), sink)
	w.exec("INSERT INTO outbox (topic, key) SELECT 't', 'k' || i % 100 FROM generate_series(1, 1000) i")
	eventually(t, "the rows are in flight", func() bool { return sink.inFlight() == 1000 })
	lock()
	sink.release()
	eventually(t, "reads and deletes fail, and readiness tells", func() bool {
		reasons := strings.Join(f.Unready(), "\n")
		return len(f.source.failures()) > 0 && strings.Contains(reasons, "reading the outbox") && strings.Contains(reasons, "deleting acknowledged rows")
	})
	run(t, locker, "COMMIT")
	f.drained(w)
	eventually(t, "the trouble is over", func() bool { return len(f.Unready()) == 0 })
	f.stop()
	if n := sink.count(); n != 1000 {
		t.Errorf("%d events acknowledged for 1000 rows", n)
	}
	if stats := f.Stats(); stats.Blocked != [4]int{} || stats.Repeated != 0 || len(f.Parked()) != 0 {
		t.Errorf("rows were blamed: %+v", stats)
	}
}

// TestReadWaitsForALock: a read that comes while the table is locked sees what the lock's
// holder left.
func TestReadWaitsForALock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "INSERT INTO outbox (topic) VALUES ('t')")
	s := w.open()
	locker := w.session()
	run(t, locker, "BEGIN")
	run(t, locker, "ALTER TABLE outbox ADD COLUMN more text DEFAULT 'x'")
	run(t, locker, "INSERT INTO outbox (topic) VALUES ('t')")
	type answer struct {
		page *source.Page
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		p, err := s.Read(t.Context(), everything())
		answers <- answer{p, err}
	}()
	eventually(t, "the read waits", func() bool { return waiting(w) == 1 })
	run(t, locker, "COMMIT")
	got := <-answers
	if got.err != nil {
		t.Fatal(got.err)
	}
	wantIDs(t, "after the lock", got.page.Events, 1, 2)

	// A caller that gives up is answered, and its connection is not used again.
	run(t, locker, "BEGIN")
	run(t, locker, "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		p, err := s.Read(ctx, everything())
		answers <- answer{p, err}
	}()
	eventually(t, "the read waits", func() bool { return waiting(w) == 1 })
	cancel()
	if got := <-answers; !errors.Is(got.err, context.Canceled) {
		t.Errorf("after the caller gave up: %v", got.err)
	}
	eventually(t, "the server's statement ends", func() bool { return waiting(w) == 0 })
	run(t, locker, "COMMIT")
	wantIDs(t, "afterwards", events(t, s, everything()), 1, 2)
}

// TestServerThatDoesNotAnswer: every call ends by itself when the server takes what it gets
// and says nothing, and the next one works when it is back.
func TestServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "INSERT INTO outbox (topic) VALUES ('t'), ('t')")
	p := newProxy(t, w.url)
	const timeout = time.Second
	behind := func(c *Config) { c.URL, c.Timeout = p.url, timeout }
	s := w.open(behind)
	page(t, s, everything())
	p.silence(true)
	var wg sync.WaitGroup
	for name, call := range map[string]func() error{
		"read":   func() error { _, err := s.Read(t.Context(), everything()); return err },
		"delete": func() error { return s.Delete(t.Context(), []int64{1}, func(uint64) {}) },
		"oldest": func() error { _, _, err := s.Oldest(t.Context()); return err },
		"open":   func() error { return calls["open"](t, w.config(behind)) },
		"init":   func() error { return calls["init"](t, w.config(behind)) },
	} {
		wg.Go(func() {
			begun := time.Now()
			err := call()
			var setup *source.SetupError
			if err == nil || errors.As(err, &setup) {
				t.Errorf("%s: not an error to be tried again: %v", name, err)
			}
			if took := time.Since(begun); took > timeout+callSlack+patience/3 {
				t.Errorf("%s took %v", name, took)
			}
		})
	}
	wg.Wait()
	p.silence(false)
	wantIDs(t, "afterwards", events(t, s, everything()), 1, 2)
	if err := s.Delete(t.Context(), []int64{1, 2}, func(uint64) {}); err != nil || w.rows() != 0 {
		t.Errorf("deleting afterwards: %v, %d rows left", err, w.rows())
	}
}

// proxy stands between a client and the server, and can swallow everything.
type proxy struct {
	url    string
	target string

	mu     sync.Mutex
	silent bool
	closed bool
	conns  []net.Conn
	wg     sync.WaitGroup
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal("the server's address is not a URL")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{target: u.Host}
	u.Host = listener.Addr().String()
	p.url = u.String()
	p.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.serve(client)
		}
	})
	t.Cleanup(func() {
		listener.Close()
		p.silence(false)
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.hangUp()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		client.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	closed := p.closed
	p.mu.Unlock()
	if closed {
		client.Close()
		server.Close()
		return
	}
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		p.wg.Go(func() {
			defer way[0].Close()
			defer way[1].Close()
			_, _ = io.Copy(gate{p, way[1]}, way[0])
		})
	}
}

// silence swallows everything from now on; a connection that lost a byte to it is hung up
// when it ends.
func (p *proxy) silence(on bool) {
	p.mu.Lock()
	was := p.silent
	p.silent = on
	p.mu.Unlock()
	if was && !on {
		p.hangUp()
	}
}

func (p *proxy) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		conn.Close()
	}
	p.conns = nil
}

// gate writes, or swallows while the proxy is silent.
type gate struct {
	*proxy
	to net.Conn
}

func (g gate) Write(b []byte) (int, error) {
	g.mu.Lock()
	silent := g.silent
	g.mu.Unlock()
	if silent {
		return len(b), nil
	}
	n, err := g.to.Write(b)
	if err != nil {
		return n, fmt.Errorf("passing on: %w", err)
	}
	return n, nil
}
