package postgres

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// TestC39PreviousProcess: a process that died without a word keeps its slot until the server
// notices. The next one does not wait for that, and ends nothing of it.
func TestC39PreviousProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	w.setDatabase("wal_sender_timeout", "5s")
	p, through := w.relayed(t)
	frozen := w.streamTo(&recorder{keep: keepAll}, lanes.Config{}, through)
	frozen.live()
	old := w.slots()[0]
	p.silence(true)
	st := w.stream()
	st.live()
	w.insert(1, 10)
	st.numbered(w, 10)
	if list := w.slots(); len(list) != 2 {
		t.Errorf("slots %q, want that of the previous process and ours", list)
	}
	frozen.sink.release()
	frozen.stop()
	eventually(t, "the server has noticed", func() bool {
		list := w.slots()
		return len(list) == 1 && list[0] != old
	})
	w.insert(11, 20)
	st.numbered(w, 20)
	if n := st.Stats().Begun; n != 1 {
		t.Errorf("the log was begun %d times", n)
	}
}

// TestC40LogLost: whatever was written while there was no slot is in the table, and comes
// before what the next slot brings.
func TestC40LogLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	p, through := w.relayed(t)
	st := w.stream(through)
	st.live()
	last := 0
	for round := range uint64(5) {
		w.insert(last+1, last+10)
		p.silence(true) // the next slot cannot be made at once
		w.cut()
		w.insert(last+11, last+20)
		st.numbered(w, last+20)
		p.silence(false)
		w.insert(last+21, last+30)
		last += 30
		st.again(round + 2)
		st.numbered(w, last)
	}
	st.stop()
	w.insert(last+1, last+10) // no process, no slot
	st = w.stream(through)
	st.live()
	eventually(t, "what was written meanwhile is delivered", func() bool { return st.sink.count() == 10 && w.rows() == 0 })
	wantNumbers(t, "the second process", st.sink.payloads(), last+1, last+10)
}

// TestC44PublicationChanges while it is streamed: what the log does not tell any more comes from
// the table, it is said what mends it, and once it is mended the log is streamed again.
func TestC44PublicationChanges(t *testing.T) {
	t.Parallel()
	const drop, create = "DROP PUBLICATION outbox_publication", "CREATE PUBLICATION outbox_publication FOR TABLE outbox WITH (publish = 'insert')"
	const without, with = "ALTER PUBLICATION outbox_publication DROP TABLE outbox", "ALTER PUBLICATION outbox_publication ADD TABLE outbox"
	for name, c := range map[string]struct{ harm, mend, words string }{
		"dropped":       {drop, create, "there is no publication"},
		"table removed": {without, with, "public.outbox is not in publication"},
		"filtered":      {without + "; " + with + " WHERE (id < 0)", without + "; " + with, "leaves out rows of public.outbox by a filter"},
		"columns":       {without + "; " + with + " (id, topic, key)", without + "; " + with, `payload`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, outbox)
			w.publish()
			st := w.stream()
			st.live()
			w.insert(1, 10)
			st.numbered(w, 10)
			w.exec(c.harm)
			w.insert(11, 20)
			eventually(t, "it is told", func() bool { return strings.Contains(strings.Join(st.Unready(), "\n"), c.words) })
			st.says("level=ERROR", "cannot be streamed until this is mended", "table=public.outbox")
			w.insert(21, 30)
			st.numbered(w, 30)
			if n := st.lines("cannot be streamed until this is mended"); n != 1 {
				t.Errorf("it was said %d times", n)
			}
			w.exec(c.mend)
			st.again(2)
			if unready := st.Unready(); len(unready) > 0 {
				t.Errorf("not ready: %q", unready)
			}
			w.insert(31, 40)
			st.numbered(w, 40)
		})
	}
}

// byMonth is an outbox in partitions by the time of a row, with two of them.
var byMonth = []string{
	strings.Replace(strings.Replace(outbox, " PRIMARY KEY", "", 1), "now())", "now(), PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)", 1),
	"CREATE TABLE january PARTITION OF outbox FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
	"CREATE TABLE february PARTITION OF outbox FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
}

// TestC47PartitionsChange: a row that moves to another partition is one event, rows of a
// partition that is taken out are events no more, and those of one that is put in are.
func TestC47PartitionsChange(t *testing.T) {
	t.Parallel()
	for name, published := range map[string]string{
		"via root":    "TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)",
		"by itself":   "TABLE outbox WITH (publish = 'insert')",
		"all by name": "ALL TABLES WITH (publish = 'insert')", // those that are no partition any more, too
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, byMonth...)
			w.exec("CREATE PUBLICATION outbox_publication FOR " + published)
			sink := &recorder{keep: func(ev *source.Event) bool { return string(ev.Key) == "kept" }}
			st := w.streamTo(sink, lanes.Config{RunEvents: 1})
			st.live()
			insert := func(key, payload, at string) {
				w.exec("INSERT INTO outbox (topic, key, payload, created_at) VALUES ('t', $1, convert_to($2, 'UTF8'), $3::timestamptz)", key, payload, at)
			}
			// Two rows of one key: the first is in flight, the second waits in memory.
			insert("kept", "1", "2026-01-02")
			insert("kept", "2", "2026-01-02")
			eventually(t, "a row is in flight", func() bool { return sink.inFlight() == 1 })
			w.exec("UPDATE outbox SET created_at = '2026-02-02'")
			w.exec("UPDATE outbox SET created_at = '2026-01-03'")
			insert("k", "3", "2026-01-02")
			eventually(t, "the log is read up to here", func() bool { return sink.count() == 1 })
			sink.release()
			eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
			if got := fmt.Sprint(sink.payloads()); got != "[3 1 2]" {
				t.Errorf("acknowledged %s", got)
			}

			w.exec("ALTER TABLE outbox DETACH PARTITION january")
			w.exec("INSERT INTO january (id, topic, payload, created_at) VALUES (1001, 't', 'out', '2026-01-04')")
			w.exec("CREATE TABLE march (LIKE outbox INCLUDING ALL)")
			w.exec("INSERT INTO march (id, topic, payload, created_at) OVERRIDING SYSTEM VALUE VALUES (2001, 't', '4', '2026-03-04')")
			w.exec("ALTER TABLE march ALTER id DROP IDENTITY IF EXISTS")
			w.exec("ALTER TABLE outbox ATTACH PARTITION march FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')")
			insert("k", "5", "2026-03-05")
			insert("k", "6", "2026-02-05")
			eventually(t, "the log is read up to here", func() bool { return slices.Contains(sink.payloads(), "6") })
			if slices.Contains(sink.payloads(), "out") {
				t.Error("a row of a table that is no partition any more was delivered")
			}
			w.exec("ALTER TABLE outbox ATTACH PARTITION january FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
			insert("k", "7", "2026-01-06")
			eventually(t, "what the log tells is delivered", func() bool { return sink.count() >= 6 })
			// No log tells what was put in. The table is read at least every 30 s.
			within(t, 2*patience, "what was put in is delivered too", func() bool { return sink.count() == 8 && w.rows() == 0 })
			seen := make(map[string]int)
			for _, payload := range sink.payloads() {
				seen[payload]++
			}
			for _, payload := range []string{"1", "2", "3", "4", "5", "6", "7", "out"} {
				if seen[payload] != 1 {
					t.Errorf("row %s was delivered %d times", payload, seen[payload])
				}
			}
			if n := st.Stats().Begun; n != 1 {
				t.Errorf("the log was begun %d times", n)
			}
		})
	}
}

// TestC44BetweenTwoLooks: a publication that left rows out for a moment, too short to be noticed,
// loses none: the table is read at least every 30 s.
func TestC44BetweenTwoLooks(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for 30 s")
	}
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	st := w.stream()
	st.live()
	w.exec("ALTER PUBLICATION outbox_publication SET TABLE outbox WHERE (id < 0)")
	w.insert(1, 10)
	w.exec("ALTER PUBLICATION outbox_publication SET TABLE outbox")
	within(t, 2*patience, "the rows are delivered", func() bool { return st.sink.count() == 10 })
	st.numbered(w, 10)
	w.insert(11, 20)
	st.numbered(w, 20)
}

// TestC31DeletedAtOnce: rows that their own transaction deletes are in the log alone. While it is
// streamed they are events like others, and leave nothing behind.
func TestC31DeletedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	st := w.stream()
	st.live()
	for i := range 100 {
		w.exec("BEGIN")
		w.insert(1+2*i, 1+2*i)
		w.exec("DELETE FROM outbox")
		w.exec("COMMIT")
		w.exec("WITH gone AS (DELETE FROM outbox) SELECT 1")
		w.insert(2+2*i, 2+2*i)
	}
	st.numbered(w, 200)
	eventually(t, "nothing is left in memory", func() bool {
		s := st.Stats()
		return s.Complete && s.Waiting == 0 && s.Out == 0
	})
	if n := st.Stats().Begun; n != 1 {
		t.Errorf("the log was begun %d times", n)
	}
}

// TestC48Rewrites: rows that the server writes anew to other files are no new rows.
func TestC48Rewrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	sink := &recorder{keep: func(ev *source.Event) bool { return len(ev.Payload) == 1 }}
	st := w.streamTo(sink, lanes.Config{RunEvents: 5})
	st.live()
	w.insert(1, 20)
	eventually(t, "rows are in flight", func() bool { return sink.inFlight() > 0 })
	for _, sql := range []string{
		"VACUUM FULL outbox",
		"CLUSTER outbox USING outbox_pkey",
		"ALTER TABLE outbox ALTER key TYPE varchar(40)",
		"ALTER TABLE outbox ADD random float DEFAULT random()",
		"REINDEX TABLE outbox",
		"ALTER TABLE outbox SET UNLOGGED",
		"ALTER TABLE outbox SET LOGGED",
	} {
		if _, err := w.conn.Exec(t.Context(), sql); err != nil && !strings.Contains(sql, "LOGGED") { // not all versions let a published table be unlogged
			t.Fatal(err)
		}
	}
	w.insert(21, 30)
	sink.release()
	st.numbered(w, 30)
}

// TestStreamOfOtherEncoding: texts are in UTF-8 whatever the database has, in both modes.
func TestStreamOfOtherEncoding(t *testing.T) {
	t.Parallel()
	home := newWorld(t)
	name := value[string](home, "SELECT 'latin_' || current_database()")
	home.exec("CREATE DATABASE " + name + " ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	defer home.exec("DROP DATABASE " + name + " WITH (FORCE)")
	t.Run("latin1", func(t *testing.T) {
		w := worldAt(t, home.path(name), "SET client_encoding = 'UTF8'", strings.Replace(outbox, "payload bytea", "payload jsonb", 1))
		w.beside(Config{})
		w.publish()
		tp := w.tap()
		w.exec(`INSERT INTO outbox (topic, key, payload, headers) VALUES ('Zürich', 'Öl', '"Straße"', '{"é": "ñ"}')`)
		tp.same()
		st := w.stream()
		st.live()
		eventually(t, "it is delivered", func() bool { return st.sink.count() == 1 })
		if ev := st.sink.events()[0]; ev.Topic != "Zürich" || string(ev.Key) != "Öl" || string(ev.Payload) != `"Straße"` {
			t.Errorf("%s %s %s", ev.Topic, ev.Key, ev.Payload)
		}
		st.stop()
	})
}

// TestC53PgBouncer: replication does not go through a real pooler either, and everything else
// does.
func TestC53PgBouncer(t *testing.T) {
	t.Parallel()
	if err := servers.Install(t.Context(), slog.Default(), servers.PgBouncerProgram); err != nil {
		t.Fatal(err)
	}
	server := ownServer(t, nil)
	w := worldAt(t, server.URL("postgres"))
	mustInit(t, w.config(func(c *Config) { c.Stream = true }))
	pooler, err := server.StartPgBouncer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pooler.Close(); err != nil {
			t.Error(err)
		}
	})
	through := func(c *Config) { c.URL = pooler.URL("postgres") }
	problems := w.streamProblems(through)
	count(t, problems, 1)
	wantProblem(t, problems, "replication needs a direct connection", "source.postgres.replication_url")
	st := w.stream(through, func(c *Config) { c.ReplicationURL = w.url })
	st.live()
	w.insert(1, 10)
	st.numbered(w, 10)
	w.cut()
	st.again(2)
	w.insert(11, 20)
	st.numbered(w, 20)
	st.stop() // before the pooler ends
}
