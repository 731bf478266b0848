package postgres

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// count asserts how many problems there are.
func count(t *testing.T, problems []string, want int) {
	t.Helper()
	if len(problems) != want {
		t.Errorf("%d problems, want %d:\n%s", len(problems), want, strings.Join(problems, "\n"))
	}
}

// TestC43StreamSettings: what the server and the role lack for streaming is told at once, each
// with its fix, and nothing is created. The level is told before the role.
func TestC43StreamSettings(t *testing.T) {
	t.Parallel()
	t.Run("level, role and publication", func(t *testing.T) {
		t.Parallel()
		w := worldAt(t, ownServer(t, map[string]string{"wal_level": "replica"}).URL("postgres"), outbox)
		w.beside(Config{})
		name, login := w.role("")
		w.exec("GRANT ALL ON ALL TABLES IN SCHEMA public TO " + name)
		problems := w.streamProblems(func(c *Config) { c.URL = login })
		count(t, problems, 3)
		wantProblem(t, problems[:1], "wal_level is replica", "set wal_level = logical", "restart")
		wantProblem(t, problems[1:2], "role "+name+" may not replicate", `ALTER ROLE "`+name+`" REPLICATION`)
		wantProblem(t, problems, "no publication", "outbox_publication", "forwarder init")
		page(t, w.open(func(c *Config) { c.URL = login }), everything()) // to poll is allowed
		if n := value[int](w, "SELECT count(*) FROM pg_publication") + value[int](w, "SELECT count(*) FROM pg_replication_slots"); n != 0 {
			t.Errorf("%d things were created", n)
		}
		// The publication can be made before the level is right.
		logged := &logText{}
		mustInit(t, w.config(func(c *Config) { c.Stream, c.Logger = true, logged.logger() }))
		if !strings.Contains(logged.String(), "wal_level is not logical yet") {
			t.Errorf("not told: %s", logged)
		}
		count(t, w.streamProblems(func(c *Config) { c.URL = login }), 2)
	})
	t.Run("no slots", func(t *testing.T) {
		t.Parallel()
		w := worldAt(t, ownServer(t, map[string]string{"max_replication_slots": "0", "max_wal_senders": "0"}).URL("postgres"), outbox)
		w.beside(Config{})
		w.publish()
		problems := w.streamProblems()
		count(t, problems, 2)
		wantProblem(t, problems, "max_replication_slots is 0", "restart")
		wantProblem(t, problems, "max_wal_senders is 0", "restart")
	})
	t.Run("with what is wrong with the table", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "CREATE TABLE outbox (id bigint PRIMARY KEY, topic text, payload int, key text, headers jsonb)")
		problems := w.streamProblems()
		wantProblem(t, problems, `"payload"`, "type integer")
		wantProblem(t, problems, `no column "created_at"`)
		wantProblem(t, problems, "no publication")
		count(t, problems, 3)
	})
	t.Run("a role with the right", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, outbox)
		w.publish()
		name, login := w.role("REPLICATION")
		w.exec("GRANT ALL ON ALL TABLES IN SCHEMA public TO " + name)
		w.exec("ALTER ROLE " + name + " SET statement_timeout = '50ms'; ALTER ROLE " + name + " SET idle_session_timeout = '2s'")
		st := w.stream(func(c *Config) { c.URL = login })
		st.live()
		ended := time.Now().Add(3 * time.Second)
		eventually(t, "the role's time is over", func() bool { return time.Now().After(ended) })
		w.exec("INSERT INTO outbox (topic) VALUES ('t')")
		eventually(t, "the row is delivered", func() bool { return st.sink.count() == 1 })
		if begun := st.Stats().Begun; begun != 1 {
			t.Errorf("the log was begun %d times", begun)
		}
	})
}

// TestC43SlotsUsedUp: while there is no slot or no connection to be had, the table is polled and
// it is said once what is waited for; then it is streamed.
func TestC43SlotsUsedUp(t *testing.T) {
	t.Parallel()
	for setting, code := range map[string]string{"max_replication_slots": limitExceeded, "max_wal_senders": tooManyConnections} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			server := ownServer(t, map[string]string{setting: "1"})
			w := worldAt(t, server.URL("postgres"), outbox)
			w.beside(Config{})
			w.publish()
			other, err := dialReplication(t.Context(), w.config().withDefaults())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.createSlot(t.Context(), "other", slotKind{temporary: true}); err != nil {
				t.Fatal(err)
			}
			st := w.stream()
			w.exec("INSERT INTO outbox (topic) VALUES ('t')")
			eventually(t, "the row is delivered", func() bool { return st.sink.count() == 1 })
			eventually(t, "the wait is told", func() bool { return strings.Contains(st.Stats().Waits, code) })
			if unready := st.Unready(); len(unready) != 0 {
				t.Errorf("not ready: %q", unready)
			}
			eventually(t, "it was tried again", func() bool { return strings.Contains(st.logged.String(), "is free, it is tried again") })
			other.close()
			st.live()
			if n := strings.Count(st.logged.String(), "is free, it is tried again"); n != 1 {
				t.Errorf("it was logged %d times", n)
			}
		})
	}
}

// TestC44C48Publication: a publication that would leave rows or columns out is told at start,
// each time with a statement that mends it.
func TestC44C48Publication(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		create string
		words  []string
	}{
		"missing":     {"SELECT", []string{"there is no publication", "forwarder init"}},
		"other table": {"CREATE TABLE other (id int); CREATE PUBLICATION outbox_publication FOR TABLE other", []string{"public.outbox is not in publication"}},
		"no inserts":  {"CREATE PUBLICATION outbox_publication FOR TABLE outbox WITH (publish = 'update, delete')", []string{"does not publish inserts"}},
		"filter":      {"CREATE PUBLICATION outbox_publication FOR TABLE outbox WHERE (id > 7) WITH (publish = 'insert')", []string{"leaves out rows"}},
		"columns":     {"CREATE PUBLICATION outbox_publication FOR TABLE outbox (id, topic, key, payload, created_at)", []string{"leaves out column \"headers\""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox, c.create)
			problems := w.streamProblems()
			count(t, problems, 1)
			wantProblem(t, problems, c.words...)
			if _, fix, ok := strings.Cut(problems[0], ": ALTER"); ok {
				fix, _, _ = strings.Cut(fix, " (a generated")
				w.exec("ALTER" + fix)
			} else {
				mustInit(t, w.config())
			}
			st := w.stream()
			st.live()
			w.exec("INSERT INTO outbox (topic, headers) VALUES ('t', '{}')")
			eventually(t, "the row is delivered", func() bool { return st.sink.count() == 1 })
		})
	}
	t.Run("good ones", func(t *testing.T) {
		t.Parallel()
		for _, create := range []string{
			"CREATE PUBLICATION outbox_publication FOR ALL TABLES",
			"CREATE PUBLICATION outbox_publication FOR TABLES IN SCHEMA public",
			"CREATE PUBLICATION outbox_publication FOR TABLE outbox (id, topic, key, payload, headers, created_at) WITH (publish = 'insert')",
		} {
			w := newWorld(t, strings.Replace(outbox, "topic text", "more int, topic text", 1), create)
			tp := w.tap()
			w.exec("INSERT INTO outbox (topic) VALUES ('t')")
			tp.same()
		}
	})
	t.Run("generated", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, strings.Replace(outbox, "key text", "key text GENERATED ALWAYS AS (lower(topic)) STORED", 1))
		w.publish()
		problems := w.streamProblems()
		count(t, problems, 1)
		wantProblem(t, problems, `leaves out column "key"`, "generated")
	})
}

// TestC50Unlogged: what is not logged cannot be streamed, and is told in streaming's words.
func TestC50Unlogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Replace(outbox, "TABLE", "UNLOGGED TABLE", 1))
	mustInit(t, w.config()) // poll mode needs no publication
	problems := w.streamProblems()
	count(t, problems, 1)
	wantProblem(t, problems, "public.outbox is unlogged", `ALTER TABLE "public"."outbox" SET LOGGED`)
	_, fix, _ := strings.Cut(problems[0], "streamed: ")
	w.exec(strings.TrimSuffix(fix, ", or use source.postgres.mode: poll"))
	wantProblem(t, w.streamProblems(), "there is no publication")
}

// pooler answers as one that knows no replication; what is left alone goes to the server.
func pooler(t *testing.T, answer *pgproto3.ErrorResponse) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			backend := pgproto3.NewBackend(conn, conn)
			if _, err := backend.ReceiveStartupMessage(); err == nil {
				backend.Send(answer)
				backend.Flush() //nolint:errcheck // the client sees it
			}
			conn.Close()
		}
	}()
	return listener.Addr().String()
}

// TestC53Pooler: a pooler in front of the server is told as one, and replication may have an
// address of its own.
func TestC53Pooler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	u, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range []*pgproto3.ErrorResponse{
		{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: replication"},
		{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter in options: replication"},
	} {
		u.Host = pooler(t, answer)
		problems := w.streamProblems(func(c *Config) { c.ReplicationURL = u.String() })
		count(t, problems, 1)
		wantProblem(t, problems, "replication needs a direct connection", "source.postgres.replication_url", answer.Message)
	}
	other := emptyWorld(t)
	problems := w.streamProblems(func(c *Config) { c.ReplicationURL = other.url })
	count(t, problems, 1)
	wantProblem(t, problems, "leads to another database")
	problems = w.streamProblems(func(c *Config) { c.ReplicationURL = "postgres://a:geheim@[::" })
	count(t, problems, 1)
	wantProblem(t, problems, "source.postgres.replication_url", "not a PostgreSQL connection string")
	if strings.Contains(problems[0], "geheim") {
		t.Error("the password is shown")
	}

	direct := w.url
	st := w.stream(func(c *Config) { c.ReplicationURL = direct })
	st.live()
	// An address where nobody answers may come back.
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.Host = gone.Addr().String()
	gone.Close()
	s, err := OpenStream(t.Context(), w.config(func(c *Config) { c.ReplicationURL = u.String() }))
	if err != nil {
		t.Fatalf("a server that does not answer is no reason to give up: %v", err)
	}
	s.Close()
}

// TestTwoOutboxesOfOneDatabase do not disturb each other, also where a publication tells of both.
func TestTwoOutboxesOfOneDatabase(t *testing.T) {
	t.Parallel()
	second := func(c *Config) { c.Schema, c.Table, c.Publication = "app", "outbox", "app_all" }
	w := newWorld(t, outbox, "CREATE SCHEMA app", strings.Replace(outbox, "outbox", "app.outbox", 1), "CREATE PUBLICATION app_all FOR ALL TABLES")
	w.beside(w.config(second))
	w.publish()
	one, two := w.stream(), w.stream(second)
	one.live()
	two.live()
	w.exec("INSERT INTO outbox (topic, payload) SELECT 'one', 'x' FROM generate_series(1, 100)")
	w.exec("INSERT INTO app.outbox (topic, payload) SELECT 'two', 'x' FROM generate_series(1, 100)")
	for name, st := range map[string]*streaming{"one": one, "two": two} {
		eventually(t, "all are delivered", func() bool { return st.sink.count() >= 100 })
		st.stop()
		for _, ev := range st.sink.events() {
			if ev.Topic != name {
				t.Errorf("the outbox %s brought an event of %s", name, ev.Topic)
			}
		}
		if n := st.sink.count(); n != 100 {
			t.Errorf("%d events of 100", n)
		}
	}
}

// TestC47Partitions: rows of partitions come in either form of publication, also of one that is
// made while it is streamed.
func TestC47Partitions(t *testing.T) {
	t.Parallel()
	for _, viaRoot := range []bool{true, false} {
		t.Run(fmt.Sprint("via root ", viaRoot), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t,
				strings.Replace(strings.Replace(outbox, " PRIMARY KEY", "", 1), "now())", "now(), PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)", 1),
				"CREATE TABLE old PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2021-01-01')",
				"CREATE TABLE odd (more int, headers jsonb, payload bytea, created_at timestamptz NOT NULL, id bigint NOT NULL, topic text NOT NULL, key text); ALTER TABLE odd DROP COLUMN more",
				"ALTER TABLE outbox ATTACH PARTITION odd FOR VALUES FROM ('2021-01-01') TO ('2022-01-01')",
				fmt.Sprintf("CREATE PUBLICATION outbox_publication FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = %v)", viaRoot))
			insert := func(year, n int) {
				w.exec(fmt.Sprintf("INSERT INTO outbox (topic, key, payload, created_at) SELECT 't', 'k', 'p%[1]d', '%[1]d-02-02' FROM generate_series(1, %[2]d)", year, n))
			}
			tp := w.tap()
			insert(2020, 3)
			insert(2021, 3)
			tp.same()
			w.exec("DELETE FROM outbox")
			st := w.stream()
			st.live()
			insert(2020, 3)
			insert(2021, 3)
			w.exec("CREATE TABLE young PARTITION OF outbox FOR VALUES FROM ('2022-01-01') TO ('2023-01-01')")
			insert(2022, 3)
			eventually(t, "all are delivered and deleted", func() bool { return st.sink.count() >= 9 && w.rows() == 0 })
			w.exec("ALTER TABLE outbox DETACH PARTITION old; DROP TABLE old")
			insert(2022, 1)
			eventually(t, "the next is delivered", func() bool { return st.sink.count() >= 10 })
			if n, begun := st.sink.count(), st.Stats().Begun; n != 10 || begun != 1 {
				t.Errorf("%d events of 10, the log was begun %d times", n, begun)
			}
		})
	}
}

// TestInitMakesThePublication, or says that it could not, where only streaming needs it.
func TestInitMakesThePublication(t *testing.T) {
	t.Parallel()
	t.Run("odd names", func(t *testing.T) {
		t.Parallel()
		w := emptyWorld(t)
		cfg := oddNames
		cfg.URL, cfg.Publication = w.url, `it's a "$init$" \n`
		mustInit(t, cfg)
		mustInit(t, cfg)
		st, err := OpenStream(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		st.Close()
		var inserts, updates, viaRoot bool
		if err := w.conn.QueryRow(t.Context(), "SELECT pubinsert, pubupdate OR pubdelete OR pubtruncate, pubviaroot FROM pg_publication WHERE pubname = $1", cfg.Publication).
			Scan(&inserts, &updates, &viaRoot); err != nil || !inserts || updates || !viaRoot {
			t.Errorf("the publication: %v %v %v %v", inserts, updates, viaRoot, err)
		}
	})
	t.Run("a role that may not", func(t *testing.T) {
		t.Parallel()
		w := emptyWorld(t)
		name, login := w.role("")
		w.exec("GRANT CREATE ON SCHEMA public TO " + name)
		logged := &logText{}
		cfg := w.config(func(c *Config) { c.URL, c.Logger = login, logged.logger() })
		mustInit(t, cfg)
		if !strings.Contains(logged.String(), "the publication was not created") {
			t.Errorf("not told: %s", logged)
		}
		cfg.Stream = true
		err := Init(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), "init --print") {
			t.Errorf("init of a stream: %v", err)
		}
	})
}
