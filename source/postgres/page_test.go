package postgres

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// TestPageEndsAtItsBytes: rows that are much larger than the reader expected do not fill its
// memory. The rest is there for the next read, on a new connection.
func TestPageEndsAtItsBytes(t *testing.T) {
	w := newWorld(t, outbox, "ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL",
		"INSERT INTO outbox (topic, payload) SELECT 't', decode(repeat('ab', 256 * 1024), 'hex') FROM generate_series(1, 256) i") // 64 MiB
	s := w.open()
	read := &source.Read{Floor: lanes.Start, Limit: 1000, Bytes: 1 << 20}
	before := backend(t, s)
	var m0, m1 runtime.MemStats
	runtime.ReadMemStats(&m0)
	first := page(t, s, read)
	runtime.ReadMemStats(&m1)
	if got := m1.TotalAlloc - m0.TotalAlloc; got > 8<<20 {
		t.Errorf("a page of 1 MiB took %d bytes", got)
	}
	if !first.Full || first.Snapshot.Xmax == 0 {
		t.Errorf("full %v, snapshot %+v", first.Full, first.Snapshot)
	}
	wantIDs(t, "first page", first.Events, 1, 2, 3, 4)
	if after := backend(t, s); after == before {
		t.Error("the connection with the rest of the result is still in use")
	}
	// The whole table, page by page, each byte of it.
	want := bytes.Repeat([]byte{0xab}, 256*1024)
	var last int64
	for n := int64(0); n < 256; {
		p := page(t, s, &source.Read{Floor: last, Limit: 64, Bytes: 1 << 20})
		if len(p.Events) == 0 || len(p.Events) > 5 {
			t.Fatalf("a page of %d events at row %d", len(p.Events), n)
		}
		for _, ev := range p.Events {
			n++
			if ev.ID != n || !bytes.Equal(ev.Payload, want) {
				t.Fatalf("row %d comes as %d with %d bytes", n, ev.ID, len(ev.Payload))
			}
			last = ev.ID
		}
		if n < 256 && !p.Full {
			t.Fatalf("the page up to row %d is not full", n)
		}
	}
	if p := page(t, s, &source.Read{Floor: last, Limit: 64, Bytes: 1}); len(p.Events) != 0 || p.Full {
		t.Errorf("behind the end: %d events, full %v", len(p.Events), p.Full)
	}
	// The server's sessions of the abandoned results have ended.
	eventually(t, "at most the pool's sessions are left", func() bool {
		return value[int](w, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1", applicationName) <= maxConns
	})
}

// backend is the server process behind the connection that a read takes next.
func backend(t *testing.T, s *Source) uint32 {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	return conn.Conn().PgConn().PID()
}

// TestFirstEventIsAlwaysReturned: an event that is larger than the page's bound is a page.
func TestFirstEventIsAlwaysReturned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "INSERT INTO outbox (topic, payload) SELECT 't', decode(repeat('ab', 1024 * 1024), 'hex') FROM generate_series(1, 2) i")
	s := w.open()
	p := page(t, s, &source.Read{Floor: lanes.Start, Limit: 10, Bytes: 1})
	wantIDs(t, "page", p.Events, 1)
	if !p.Full {
		t.Error("the page is not full")
	}
	p = page(t, s, &source.Read{Floor: lanes.Start, Limit: 1, Bytes: 1})
	wantIDs(t, "page of one", p.Events, 1)
	if !p.Full {
		t.Error("the page of one is not full")
	}
}

// TestBigPageIsSorted: 20,000 rows whose order on disk is not that of their ids.
func TestBigPageIsSorted(t *testing.T) {
	t.Parallel()
	for _, table := range partitioned {
		t.Run(table.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, table.ddl...)
			w.exec("INSERT INTO outbox (id, topic, key) SELECT i, 't' || i % 3, 'k' || i % 10 FROM generate_series(-10000, 9999) i ORDER BY md5(i::text)")
			s := w.open()
			all := events(t, s, everything())
			if len(all) != 20000 {
				t.Fatalf("%d events", len(all))
			}
			for i, ev := range all {
				if ev.ID != int64(i-10000) {
					t.Fatalf("event %d has id %d", i, ev.ID)
				}
			}
			p := page(t, s, &source.Read{Floor: -5000, Limit: 8192, Bytes: 1 << 30})
			if len(p.Events) != 8192 || !p.Full || p.Events[0].ID != -4999 || p.Events[8191].ID != 3192 {
				t.Errorf("a page of %d events, full %v", len(p.Events), p.Full)
			}
			if err := s.Delete(t.Context(), ids(p.Events), func(uint64) {}); err != nil {
				t.Fatal(err)
			}
			if n := w.rows(); n != 20000-8192 {
				t.Errorf("%d rows are left", n)
			}
			if err := s.Delete(t.Context(), ids(p.Events), func(uint64) {}); err != nil {
				t.Errorf("deleting rows that are gone: %v", err)
			}
		})
	}
}

// partitioned are outboxes of one and of several parts.
var partitioned = []struct {
	name string
	ddl  []string
}{
	{"one table", []string{strings.Replace(outbox, "GENERATED ALWAYS AS IDENTITY", "", 1)}},
	{"by id", []string{
		"CREATE TABLE outbox (id bigint PRIMARY KEY, topic text, key text, payload bytea, headers jsonb, created_at timestamptz) PARTITION BY RANGE (id)",
		"CREATE TABLE low PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO (0)",
		"CREATE TABLE high PARTITION OF outbox FOR VALUES FROM (0) TO (MAXVALUE)",
	}},
	{"by topic", []string{
		"CREATE TABLE outbox (id bigint, topic text, key text, payload bytea, headers jsonb, created_at timestamptz, PRIMARY KEY (id, topic)) PARTITION BY LIST (topic)",
		"CREATE TABLE first PARTITION OF outbox FOR VALUES IN ('t0', 't1')",
		"CREATE TABLE rest PARTITION OF outbox DEFAULT",
	}},
}

// TestDoubleIDsAreAnError: two partitions can hold one id, and deleting one row would then
// delete the other.
func TestDoubleIDsAreAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, partitioned[2].ddl...)
	w.exec("INSERT INTO outbox (id, topic) VALUES (1, 't0'), (2, 't0'), (2, 't2')")
	_, err := w.open().Read(t.Context(), everything())
	if err == nil || !strings.Contains(err.Error(), "two rows have the id 2") {
		t.Errorf("the error is %v", err)
	}
}

// TestEventsKeepTheirOwnMemory: what is done to one event's bytes shows in no other.
func TestEventsKeepTheirOwnMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, `INSERT INTO outbox (topic, key, payload, headers) SELECT 't', 'k' || i, convert_to('p' || i, 'UTF8'), jsonb_build_object('h', i, 's', 'v' || i) FROM generate_series(1, 500) i`)
	s := w.open()
	got := events(t, s, everything())
	for _, ev := range got[:250] {
		for _, b := range [][]byte{ev.Key, ev.Payload, ev.Headers[0].Value, ev.Headers[1].Value} {
			_ = append(b, "xxxx"...)
			for i := range b {
				b[i] = '!'
			}
		}
	}
	page(t, s, everything()) // reuses what the driver reuses
	for _, ev := range got[250:] {
		n := fmt.Sprint(ev.ID)
		if string(ev.Key) != "k"+n || string(ev.Payload) != "p"+n || string(ev.Headers[0].Value) != n || string(ev.Headers[1].Value) != "v"+n {
			t.Fatalf("row %s: %q %q %q", n, ev.Key, ev.Payload, ev.Headers)
		}
	}
}

// TestTopicNamesAreBounded: names that are shared between events do not pile up.
func TestTopicNamesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, fmt.Sprintf("INSERT INTO outbox (topic) SELECT 't' || i FROM generate_series(1, %d) i", 2*maxTopics+10))
	s := w.open()
	got := events(t, s, everything())
	if i := slices.IndexFunc(got, func(ev *source.Event) bool { return ev.Topic != fmt.Sprint("t", ev.ID) }); i >= 0 {
		t.Errorf("row %d has topic %q", got[i].ID, got[i].Topic)
	}
	if len(s.topics) > maxTopics {
		t.Errorf("%d names are kept", len(s.topics))
	}
}
