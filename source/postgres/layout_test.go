package postgres

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// tap receives the log of a test's outbox, without a mirror.
type tap struct {
	t      testing.TB
	src    *Source
	chunks chan chunk
	ended  chan error
	reader *logReader
}

// tap begins to receive; everything that commits from then on comes.
func (w *world) tap(change ...func(*Config)) *tap {
	w.t.Helper()
	return w.tapTuned(func(*logReader) {}, change...)
}

// tapLanes receives the rows of some lanes.
func (w *world) tapLanes(wants func(source.Lane) bool, change ...func(*Config)) *tap {
	w.t.Helper()
	return w.tapTuned(func(r *logReader) { r.wants = wants }, change...)
}

// tapTuned is tap with a reader that is changed before it runs.
func (w *world) tapTuned(tune func(*logReader), change ...func(*Config)) *tap {
	w.t.Helper()
	src := w.open(change...)
	l := newLink(src)
	repl, err := l.dial(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	slot := src.cfg.temporarySlot("tap")
	point, err := repl.createSlot(w.t.Context(), slot, slotKind{temporary: true})
	if err != nil {
		w.t.Fatal(err)
	}
	near, err := repl.xid(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := repl.start(w.t.Context(), slot, src.cfg.Publication, point, true); err != nil {
		w.t.Fatal(err)
	}
	tp := &tap{t: w.t, src: src, chunks: make(chan chunk, 1000), ended: make(chan error, 1)}
	tp.reader = l.newReader(repl, point, near, func(ctx context.Context, c chunk) error {
		select {
		case tp.chunks <- c:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	tune(tp.reader)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { tp.ended <- tp.reader.run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-tp.ended; err == nil {
			w.t.Error("the reader ended without a word")
		}
		repl.close()
	})
	return tp
}

// next returns the next chunk.
func (tp *tap) next() chunk {
	tp.t.Helper()
	select {
	case c := <-tp.chunks:
		return c
	case err := <-tp.ended:
		tp.ended <- err
		tp.t.Fatalf("the log ended with: %v", err)
	case <-time.After(patience):
		tp.t.Fatal("nothing comes through the log")
	}
	return chunk{}
}

// events waits for n events.
func (tp *tap) events(n int) []*source.Event {
	tp.t.Helper()
	var list []*source.Event
	for len(list) < n {
		list = append(list, tp.next().events...)
	}
	return list
}

// same asserts that the log brought what a read returns.
func (tp *tap) same() {
	tp.t.Helper()
	read := events(tp.t, tp.src, everything())
	streamed := tp.events(len(read))
	slices.SortFunc(streamed, func(a, b *source.Event) int { return cmp.Compare(a.ID, b.ID) })
	if len(streamed) != len(read) {
		tp.t.Fatalf("%d events in the log, %d in the table", len(streamed), len(read))
	}
	for i, want := range read {
		got := streamed[i]
		if !got.Created.Equal(want.Created) {
			tp.t.Errorf("row %d: created %v in the log, %v in the table", want.ID, got.Created, want.Created)
		}
		if fmt.Sprint(got.Defect) != fmt.Sprint(want.Defect) {
			tp.t.Errorf("row %d: defect %v in the log, %v in the table", want.ID, got.Defect, want.Defect)
		}
		g, w := *got, *want
		g.Created, w.Created, g.Defect, w.Defect = time.Time{}, time.Time{}, nil, nil
		if !reflect.DeepEqual(g, w) {
			tp.t.Errorf("row %d:\nin the log   %+v\nin the table %+v", want.ID, g, w)
		}
	}
}

// TestStreamedRowsAreReadRows: whatever types the columns have, the log's events are those of a
// read, byte for byte (C33, C35 to C38, C84, C85).
func TestStreamedRowsAreReadRows(t *testing.T) {
	t.Parallel()
	column := func(name, typ string) string {
		defaults := map[string]string{"id": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "topic": "text NOT NULL",
			"key": "text", "payload": "bytea", "headers": "jsonb", "created_at": "timestamptz DEFAULT now()"}
		defaults[name] = typ
		var list []string
		for _, col := range DefaultColumns.list() {
			list = append(list, col.name+" "+defaults[col.name])
		}
		return "CREATE TABLE outbox (unused mood DEFAULT 'glad', " + strings.Join(list, ", ") + ", more mood[])"
	}
	const mood = "CREATE TYPE mood AS ENUM ('sad', 'glad')"
	texts := []string{"NULL", "''", "'null'", "'{}'", "'\"x\"'", "'[]'"}
	jsons := []string{"NULL", "'null'", "'{}'", "'\"x\"'", "'[]'", `'{"a":12345678901234567890,"b":1.10,"c":1e400}'`, `'{"b":1,"a":2,"a":3}'`,
		`'{"s":"x","e":"","n":12345678901234567890,"d":1.10,"b":true,"z":null,"o":{"k":1},"ü":"é"}'`, `'[["a","1"],["a","2"]]'`, `'"<>&\u2028é"'`}
	times := []string{"NULL", "'infinity'", "'-infinity'", "'2024-02-29 12:34:56.789012'", "'1900-01-01'", "'0044-03-15 BC'", "'294276-12-30'", "'4713-01-01 BC'", "'1969-12-31 23:59:59.999999'"}
	type column_ struct {
		name, typ string
		setup     []string
		values    []string
		many      string
	}
	cases := []column_{
		{"id", "integer PRIMARY KEY", nil, []string{"1", "2147483647", "-5"}, ""},
		{"id", "smallint PRIMARY KEY", nil, []string{"1", "32767", "-32768"}, ""},
		{"id", "bigint PRIMARY KEY", nil, []string{"1", "9223372036854775807", "-9223372036854775807"}, ""},
		{"topic", "varchar(20)", nil, []string{"'t'", "'ü '"}, ""},
		{"topic", "char(8)", nil, []string{"'t'", "''", "'  x'"}, ""},
		{"topic", "name", nil, []string{"'t'", "''"}, ""},
		{"payload", "bytea", nil, []string{"NULL", "''", `'\x00ff0a0d22'`, `decode(repeat('00ff0a27', 30000), 'hex')`}, ""},
		{"payload", "text", nil, append(texts, "repeat('ü', 100000)"), ""},
		{"payload", "varchar(10)", nil, texts, ""},
		{"payload", "json", nil, jsons, ""},
		{"payload", "jsonb", nil, append(jsons, "jsonb_build_object('large', repeat('x', 100000))"), ""},
		{"payload", "doc", []string{"CREATE DOMAIN doc AS jsonb"}, jsons, ""},
		{"headers", "json", nil, jsons, ""},
		{"headers", "text", nil, append(texts, "'{'"), ""},
		{"headers", "jsonb", nil, jsons, ""},
		{"created_at", "timestamptz", nil, append(times, "'294276-12-31 23:59:59+00'"), "'2020-01-01'::timestamptz + i * interval '131 hours'"},
		{"created_at", "timestamp", nil, append(times, "'294276-12-31'"), "'2020-01-01'::timestamp + i * interval '4613 minutes'"},
		{"created_at", "date", nil, append(times, "'5874897-12-31'"), "'1970-01-01'::date + i * 3"},
	}
	for _, k := range keyTypes {
		keys := []string{"NULL"}
		for sql := range k.keys {
			keys = append(keys, sql)
		}
		cases = append(cases, column_{"key", k.typ, k.setup, keys, k.many})
	}
	for i, c := range cases {
		t.Run(fmt.Sprintf("%s %s %d", c.name, c.typ, i), func(t *testing.T) {
			t.Parallel()
			statements := []string{mood}
			var after []string
			for _, sql := range c.setup {
				if strings.HasPrefix(sql, "ALTER") {
					after = append(after, sql)
				} else {
					statements = append(statements, sql)
				}
			}
			w := newWorld(t, slices.Concat(statements, []string{column(c.name, c.typ)}, after)...)
			w.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET TimeZone = ''Europe/Berlin''', current_database()); END $$")
			w.publish()
			w.conn = w.session() // in the new time zone
			tp := w.tap()
			columns, prefix := "topic, "+c.name, "'t', "
			switch c.name {
			case "topic":
				columns, prefix = "topic", ""
			case "id":
				columns, prefix = "topic, id", "'t', "
			}
			for _, v := range c.values {
				w.exec(fmt.Sprintf("INSERT INTO outbox (%s) VALUES (%s%s)", columns, prefix, v))
			}
			if c.many != "" {
				w.exec(fmt.Sprintf("INSERT INTO outbox (%s) SELECT %s%s FROM generate_series(1, 200) i", columns, prefix, c.many))
			}
			tp.same()
		})
	}
}

// TestRowsOfOtherLanes become no events, and it is told that they were left out, also where
// nothing else is left of their transaction.
func TestRowsOfOtherLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	wanted := lanes.LaneOf([]byte("ours"), 256)
	tp := w.tapLanes(func(lane source.Lane) bool { return lane == wanted })
	for _, c := range []struct {
		values  string
		events  int
		skipped bool
	}{
		{"('t', 'ours')", 1, false},
		{"('t', 'theirs'), ('t', 'ours')", 1, true},
		{"('t', 'theirs')", 0, true},
		{"('t', 'ours'), ('t', 'ours')", 2, false},
	} {
		xid := value[string](w, "WITH i AS (INSERT INTO outbox (topic, key) VALUES "+c.values+" RETURNING 1) SELECT pg_current_xact_id()::text FROM i LIMIT 1")
		got := tp.next()
		if len(got.events) != c.events || got.skipped != c.skipped || fmt.Sprint(got.xid) != xid || !got.end {
			t.Errorf("%s: %d events, skipped %v, transaction %d (%s), end %v", c.values, len(got.events), got.skipped, got.xid, xid, got.end)
		}
	}
}

// TestC38NumericsArePrintedAsTheServerDoes compares many numerics of all sizes.
func TestC38NumericsArePrintedAsTheServerDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withKey("numeric"))
	w.publish()
	tp := w.tap()
	random := rand.New(rand.NewPCG(1, 2))
	var list []string
	for range 3000 {
		digits := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte('0' + random.IntN(10)*random.IntN(2))
			}
			return string(b)
		}
		text := digits(1 + random.IntN(30))
		if random.IntN(2) == 0 {
			text += "." + digits(1+random.IntN(30))
		}
		if random.IntN(2) == 0 {
			text = "-" + text
		}
		list = append(list, fmt.Sprintf("('t', %s)", text))
	}
	list = append(list, "('t', 1e1000)", "('t', 1e-1000)", "('t', 0)", "('t', 0.000)", "('t', 'Infinity')", "('t', -1e131000)")
	w.exec("INSERT INTO outbox (topic, key) VALUES " + strings.Join(list, ", "))
	tp.same()
}

// TestC50GeneratedColumn: a generated column that is not ours changes nothing, and the lane
// is computed from the key.
func TestC50GeneratedColumn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Replace(outbox, "payload", "lane int GENERATED ALWAYS AS (abs(hashtext(key)) % 16) STORED, payload", 1))
	w.publish()
	tp := w.tap()
	w.exec("INSERT INTO outbox (topic, key, payload) SELECT 't', 'k' || i, 'p' FROM generate_series(1, 100) i")
	tp.same()
}

// TestInZone compares with the server around every kind of change of the clocks.
func TestInZone(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata", "UTC"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		w.exec("SET TimeZone = '" + name + "'")
		rows, err := w.conn.Query(t.Context(), `
			SELECT (extract(epoch FROM l) * 1000000)::bigint - 946684800000000, (extract(epoch FROM l::timestamptz) * 1000000)::bigint - 946684800000000
			FROM generate_series(timestamp '2011-01-01 00:00:00.000001', '2012-03-01', interval '10 minutes') l`)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var local, want int64
			if err := rows.Scan(&local, &want); err != nil {
				t.Fatal(err)
			}
			if got := inZone(local, zone); got != want {
				t.Errorf("%s: %v is %v, want %v", name, timestamp(local).UTC(), timestamp(got).UTC(), timestamp(want).UTC())
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestExtendXid goes over the turn of the counter, both ways.
func TestExtendXid(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for range 10000 {
		near := random.Uint64N(1<<40) + 1<<33
		want := near + random.Uint64N(1<<31)
		if random.IntN(2) == 0 {
			want = near - random.Uint64N(1<<31)
		}
		if got := extendXid(uint32(want), near); got != want {
			t.Fatalf("%d near %d is %d", want, near, got)
		}
	}
}

// FuzzLog feeds the decoder with anything: it returns an error or an event, and does not fall over.
func FuzzLog(f *testing.F) {
	rel := relationMessage{id: 1, name: name{"public", "outbox"}}
	oids := []uint32{pgtype.Int8OID, pgtype.TextOID, pgtype.NumericOID, pgtype.JSONBOID, pgtype.JSONBOID, pgtype.TimestampOID}
	for i, col := range DefaultColumns.list() {
		rel.columns = append(rel.columns, relationColumn{col.name, oids[i]})
	}
	row := []byte{'I', 0, 0, 0, 1, 'N', 0, 6}
	for _, v := range [][]byte{{0, 0, 0, 0, 0, 0, 0, 9}, []byte("t"), {0, 1, 0, 0, 0, 0, 0, 1, 0, 7}, []byte("\x01{}"), []byte("\x01{}"), {0, 0, 0, 0, 0, 0, 0, 0}} {
		row = append(row, tupleBinary)
		row = append(binary.BigEndian.AppendUint32(row, uint32(len(v))), v...)
	}
	f.Add(row)
	f.Add([]byte("B\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07"))
	f.Add([]byte("C\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("R\x00\x00\x00\x01public\x00outbox\x00d\x00\x01\x01id\x00\x00\x00\x00\x14\xff\xff\xff\xff"))
	f.Add([]byte("M\x01\x00\x00\x00\x00\x00\x00\x00\x01outbox\x00\x00\x00\x00\x01x"))
	f.Add([]byte("T\x00\x00\x00\x01\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := newLayout(DefaultColumns, rel, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := decoder{table: &table{lanes: 256}, topics: make(map[string]string)}
		var p parser
		message, err := p.parse(data)
		if err != nil {
			return
		}
		if insert, ok := message.(*insertMessage); ok {
			if row, err := l.read(insert.values); err == nil {
				d.event(row)
			}
		}
	})
}
