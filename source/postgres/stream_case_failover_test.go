package postgres

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// TestC42Failover: a standby is told at start. With the addresses of both servers the stream
// goes on when the primary dies and the standby is promoted: from a new slot, and from the rows
// that are there.
func TestC42Failover(t *testing.T) {
	t.Parallel()
	primary := ownServer(t, nil)
	standby := standbyOf(t, primary, nil)
	w := worldAt(t, primary.URL("postgres"), outbox)
	w.beside(Config{})
	w.publish()
	w.standbyCaughtUp()
	problems := worldAt(t, standby.URL("postgres")).streamProblems()
	count(t, problems, 1)
	wantProblem(t, problems, "the server is a standby", "primary", "target_session_attrs=read-write")

	both := hosts(t, standby, primary) + "&target_session_attrs=read-write"
	st := w.streamTo(&recorder{keep: func(ev *source.Event) bool { return string(ev.Key) == "kept" }}, lanes.Config{},
		func(c *Config) { c.URL = both })
	st.live()
	w.insert(1, 50)
	st.numbered(w, 50)
	w.exec("INSERT INTO outbox (topic, key, payload) VALUES ('t', 'kept', '51')")
	eventually(t, "a row is in flight", func() bool { return st.sink.inFlight() == 1 })
	w.standbyCaughtUp()
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	st.says("level=WARN", "the log cannot be streamed")
	promoted := worldAt(t, standby.URL("postgres"), "SELECT pg_promote()")
	promoted.insert(52, 61)
	st.again(2)
	promoted.insert(62, 70)
	st.sink.release()
	eventually(t, "the outbox is empty", func() bool { return st.sink.count() >= 70 && promoted.rows() == 0 })
	if n := st.sink.count(); n != 70 {
		t.Errorf("%d events of 70", n)
	}
	if unready := st.Unready(); len(unready) > 0 {
		t.Errorf("not ready: %q", unready)
	}
}

// standbyOf starts a standby for as long as the test runs. The server restarts for it.
func standbyOf(t *testing.T, primary *servers.Postgres, settings map[string]string) *servers.Postgres {
	t.Helper()
	standby, err := primary.StartStandby(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Close(); err != nil {
			t.Error(err)
		}
	})
	return standby
}

// standbyCaughtUp waits until the standby has everything that was written.
func (w *world) standbyCaughtUp() {
	w.t.Helper()
	eventually(w.t, "the standby has everything", func() bool {
		return value[bool](w, "SELECT coalesce((SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication WHERE application_name = 'standby'), false)")
	})
}

// hosts is the URL of several servers.
func hosts(t *testing.T, list ...*servers.Postgres) string {
	t.Helper()
	var addresses []string
	for _, server := range list {
		u, err := url.Parse(server.URL("postgres"))
		if err != nil {
			t.Fatal("the server's address is not a URL")
		}
		addresses = append(addresses, u.Host)
	}
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", strings.Join(addresses, ","))
}

// TestStreamBeforeCommitsAreVisible: while a transaction waits for a synchronous standby that is
// away, it is in the log and nobody sees it. Its rows are delivered once, in order, and deleted
// although the first delete does not find them.
func TestStreamBeforeCommitsAreVisible(t *testing.T) {
	t.Parallel()
	server := ownServer(t, nil)
	w := worldAt(t, server.URL("postgres"), outbox, counters)
	w.beside(Config{})
	w.publish()
	// The forwarder's own sessions do not wait, or their deletes would be stuck as well.
	login := w.url + "&synchronous_commit=local"
	w.exec("SET synchronous_commit = local")
	st := w.stream(func(c *Config) { c.URL = login })
	st.live()
	w.insert(1, 10)
	st.numbered(w, 10)

	waits := func(first, last int, meanwhile func(pid uint32)) {
		t.Helper()
		w.reconfigure("synchronous_standby_names", "nowhere")
		writing := make(chan error, 1)
		conn := w.session()
		go func() {
			_, err := conn.Exec(context.Background(), fmt.Sprintf("INSERT INTO outbox (topic, key, payload) SELECT 't', 'k', convert_to(i::text, 'UTF8') FROM generate_series(%d, %d) i", first, last))
			writing <- err
		}()
		eventually(t, "the rows are acknowledged, before anybody sees them", func() bool { return st.sink.count() == last })
		eventually(t, "they are deleted, which finds none", func() bool { return st.Stats().Out == 0 })
		meanwhile(conn.PgConn().PID())
		if n := w.rows(); n != 0 {
			t.Errorf("%d rows are visible", n)
		}
		select {
		case err := <-writing:
			t.Fatalf("the transaction did not wait: %v", err)
		default:
		}
		w.reconfigure("synchronous_standby_names", "")
		if err := <-writing; err != nil {
			t.Fatal(err)
		}
	}
	for first := 11; first < 60; first += 20 {
		waits(first, first+9, func(uint32) {})
		w.insert(first+10, first+19)
		st.numbered(w, first+19)
	}
	if st.Stats().Unseen == 0 {
		t.Error("no delete met rows that it could not see")
	}

	// The same under load: the standby is away, and comes back, again and again.
	n := st.sink.count()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.write(4, 40)
	}()
	for busy := true; busy; {
		w.reconfigure("synchronous_standby_names", "nowhere")
		w.reconfigure("synchronous_standby_names", "")
		select {
		case <-done:
			busy = false
		default:
		}
	}
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	w.judge(st.sink.events()[n:])

	// The log is lost while rows are delivered that nobody sees. The next slot waits for their
	// transaction. It may be another server's by then, where it never happened: they are delivered
	// again when the table shows them, and not taken for delivered.
	n = st.sink.count()
	waits(n+1, n+10, func(pid uint32) {
		w.cut()
		st.says("level=WARN", "the replication slot waits for a transaction to end", fmt.Sprint("pid=", pid))
	})
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	st.again(2)
	wantNumbers(t, "delivered before they were visible", st.sink.payloads()[n:n+10], n+1, n+10)
	if more := st.sink.payloads()[n+10:]; len(more) > 0 {
		wantNumbers(t, "delivered again", more, n+1, n+10)
	}
}

// TestStreamOnNewestServer: the whole way on the newest PostgreSQL that is fetched, under load.
func TestStreamOnNewestServer(t *testing.T) {
	t.Parallel()
	w := worldAt(t, newestServer(t).URL("postgres"))
	mustInit(t, w.config(func(c *Config) { c.Stream = true }))
	w.exec(counters)
	t.Logf("PostgreSQL %s", value[string](w, "SELECT current_setting('server_version')"))
	tp := w.tap()
	w.exec(`INSERT INTO outbox (topic, key, payload, headers) VALUES ('t', NULL, NULL, NULL), ('t', '', '', '{}'), ('t', 'k', '\x00ff0a0d22', '{"a": "b", "c": null}')`)
	tp.same()
	w.exec("DELETE FROM outbox")
	w.write(2, 10)
	st := w.stream()
	st.live()
	w.write(4, 40)
	w.cut()
	w.write(4, 40)
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	st.again(2)
	w.judge(st.sink.events())
}
