package postgres

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// withPayload is an outbox whose payload has another type.
func withPayload(typ string) string {
	return strings.Replace(outbox, "payload bytea", "payload "+typ, 1)
}

// payload is a payload in the table's own words, and the bytes that must leave.
type payload struct {
	sql  string
	want []byte // nil: a tombstone
}

func testPayloads(t *testing.T, typ string, list []payload) {
	w := newWorld(t, withPayload(typ))
	for i, p := range list {
		w.exec(fmt.Sprintf("INSERT INTO outbox (topic, key, payload) VALUES ('t', 'k%d', %s)", i, p.sql))
	}
	got := events(t, w.open(), everything())
	if len(got) != len(list) {
		t.Fatalf("%d events for %d rows", len(got), len(list))
	}
	for i, p := range list {
		ev := got[i]
		if !bytes.Equal(ev.Payload, p.want) || (ev.Payload == nil) != (p.want == nil) {
			t.Errorf("%s: payload %q (nil: %v), want %q", p.sql, ev.Payload, ev.Payload == nil, p.want)
		}
		if string(ev.Key) != fmt.Sprintf("k%d", i) || ev.Defect != nil {
			t.Errorf("%s: key %q, defect %v", p.sql, ev.Key, ev.Defect)
		}
	}
}

// TestC33ByteaBytes: a bytea payload leaves as its bytes and not as hex digits.
func TestC33ByteaBytes(t *testing.T) {
	t.Parallel()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	testPayloads(t, "bytea", []payload{
		{`'\x00ff0a0d22'`, []byte{0, 0xff, 0x0a, 0x0d, 0x22}},
		{`''`, []byte{}},
		{`NULL`, nil},
		{fmt.Sprintf(`'\x%x'`, all), all},
		{`'\\x00'`, []byte(`\x00`)},
	})
}

// TestC35JSONText: JSON leaves as the database prints it: no digit, blank, double key or
// character of it is changed.
func TestC35JSONText(t *testing.T) {
	t.Parallel()
	huge := "1" + strings.Repeat("0", 400)
	t.Run("jsonb", func(t *testing.T) {
		testPayloads(t, "jsonb", []payload{
			{`'{"a":12345678901234567890,"b":1.10,"c":1e400}'`, []byte(`{"a": 12345678901234567890, "b": 1.10, "c": ` + huge + `}`)},
			{`'{"b":1,"a":2,"a":3}'`, []byte(`{"a": 3, "b": 1}`)},
			{`'"<>&\u2028é"'`, []byte("\"<>&\u2028é\"")},
		})
	})
	t.Run("json", func(t *testing.T) {
		var list []payload
		for _, text := range []string{
			`{"a":12345678901234567890,"b":1.10,"c":1e400}`,
			`{"b":1,"a":2,"a":3}`,
			"  {\n\t\"x\" : [ 1 ,2 ],\"h\":\"<>&\"}  ",
			`"\u00e9\/"`,
		} {
			list = append(list, payload{"$$" + text + "$$", []byte(text)})
		}
		testPayloads(t, "json", list)
	})
	t.Run("text", func(t *testing.T) {
		testPayloads(t, "text", []payload{
			{`'{"a": 1e400}'`, []byte(`{"a": 1e400}`)},
			{`E'\\x00ff'`, []byte(`\x00ff`)},
			{`E'<>&\r\n\t'`, []byte("<>&\r\n\t")},
			{`'  '`, []byte("  ")},
		})
	})
}

// TestC37NullAndEmpty is the source's half: NULL, JSON null, empty and {} stay apart.
func TestC37NullAndEmpty(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"bytea", "text", "varchar(10)"} {
		t.Run(typ, func(t *testing.T) {
			testPayloads(t, typ, []payload{{"NULL", nil}, {"'null'", []byte("null")}, {"''", []byte{}}, {"'{}'", []byte("{}")}})
		})
	}
	for _, typ := range []string{"json", "jsonb"} {
		t.Run(typ, func(t *testing.T) {
			testPayloads(t, typ, []payload{{"NULL", nil}, {"'null'", []byte("null")}, {`'""'`, []byte(`""`)}, {"'{}'", []byte("{}")}})
		})
	}
}

// TestC84NullKeys is the source's half: of key and payload, NULL and empty stay apart.
func TestC84NullKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.exec(`INSERT INTO outbox (topic, key, payload) SELECT 't', k, p::bytea
		FROM unnest(ARRAY[NULL, '', 'a']) WITH ORDINALITY ks(k, i), unnest(ARRAY[NULL, '', 'x']) WITH ORDINALITY ps(p, j) ORDER BY i, j`)
	got := events(t, w.open(), everything())
	if len(got) != 9 {
		t.Fatalf("%d events for 9 rows", len(got))
	}
	for i, ev := range got {
		for _, c := range []struct {
			what string
			got  []byte
			want []byte
		}{
			{"key", ev.Key, [][]byte{nil, {}, []byte("a")}[i/3]},
			{"payload", ev.Payload, [][]byte{nil, {}, []byte("x")}[i%3]},
		} {
			if !bytes.Equal(c.got, c.want) || (c.got == nil) != (c.want == nil) {
				t.Errorf("row %d: %s %#v, want %#v", i, c.what, c.got, c.want)
			}
		}
	}
}

// TestC36Infinity: whatever stands in created_at, the row goes out; what no time can say is
// the zero time.
func TestC36Infinity(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"timestamptz", "timestamp", "date"} {
		t.Run(typ, func(t *testing.T) {
			w := newWorld(t, strings.Replace(outbox, "timestamptz NOT NULL DEFAULT now()", typ, 1))
			// Far from Greenwich a value at the end of its range is no instant any more.
			w.exec("ALTER DATABASE " + value[string](w, "SELECT current_database()") + " SET TimeZone = 'Etc/GMT+12'")
			list := []struct{ text, want string }{
				{"infinity", ""},
				{"-infinity", ""},
				{"2024-02-29 00:00:00", "2024-02-29"},
				{"0044-03-15 00:00:00 BC", "-0043-03-15"},
				{"4713-01-02 00:00:00 BC", "-4712-01-02"},
				{"294276-12-30 00:00:00", "294276-12-30"},
			}
			var extreme int
			switch typ {
			case "date":
				extreme = 2
				w.exec("INSERT INTO outbox (topic, created_at) VALUES ('t', '5874897-12-31'), ('t', '4713-01-01 BC')")
			default:
				extreme = 1
				w.exec("INSERT INTO outbox (topic, created_at) VALUES ('t', '294276-12-31 23:59:59.999999')")
			}
			for _, c := range list {
				w.exec("INSERT INTO outbox (topic, created_at) VALUES ('t', '" + c.text + "')")
			}
			w.exec("INSERT INTO outbox (topic, created_at) VALUES ('t', NULL)")
			got := events(t, w.open(), everything())
			if len(got) != extreme+len(list)+1 {
				t.Fatalf("%d events for %d rows", len(got), extreme+len(list)+1)
			}
			if last := got[len(got)-1].Created; !last.IsZero() {
				t.Errorf("NULL: created %v", last)
			}
			got = got[extreme:]
			for i, c := range list {
				created := got[i].Created
				if c.want == "" {
					if !created.IsZero() {
						t.Errorf("%s: created %v, want the zero time", c.text, created)
					}
					continue
				}
				if day := created.UTC().Format("2006-01-02"); day != c.want {
					t.Errorf("%s: created on %s, want %s", c.text, day, c.want)
				}
			}
		})
	}
}

// TestCreatedIsExact compares with the server's own microseconds.
func TestCreatedIsExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.exec(`INSERT INTO outbox (topic, created_at) SELECT 't', timestamptz '0044-03-15 BC' + i * interval '31 days 1.000001 s' FROM generate_series(0, 30000, 37) i`)
	rows, err := w.conn.Query(t.Context(), "SELECT (extract(epoch FROM created_at) * 1000000)::bigint FROM outbox ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	var want []int64
	for rows.Next() {
		var micros int64
		if err := rows.Scan(&micros); err != nil {
			t.Fatal(err)
		}
		want = append(want, micros)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, ev := range events(t, w.open(), everything()) {
		got = append(got, ev.Created.UnixMicro())
	}
	if !slices.Equal(got, want) {
		t.Error("created times differ from the server's")
	}
}

// TestOldest: the metric's source says when the first undelivered row was created, and
// nothing where there is none or where it cannot be told.
func TestOldest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	s := w.open()
	ask := func() (time.Time, bool) {
		t.Helper()
		created, ok, err := s.Oldest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return created, ok
	}
	if created, ok := ask(); ok {
		t.Errorf("an empty outbox has an oldest row of %v", created)
	}
	w.exec("INSERT INTO outbox (topic, created_at) VALUES ('t', '2024-05-06 07:08:09.123456Z'), ('t', '2020-01-01Z')")
	if created, ok := ask(); !ok || !created.Equal(time.Date(2024, 5, 6, 7, 8, 9, 123456000, time.UTC)) {
		t.Errorf("oldest %v, %v", created.UTC(), ok)
	}
	for _, odd := range []string{"infinity", "-infinity"} {
		w.exec("UPDATE outbox SET created_at = $1::text::timestamptz", odd)
		if created, ok := ask(); ok {
			t.Errorf("%s: oldest %v", odd, created)
		}
	}
	for text, year := range map[string]int{"294276-12-31 23:59:59.999999Z": 294276, "4713-01-02Z BC": -4712} {
		w.exec("UPDATE outbox SET created_at = $1::text::timestamptz", text)
		if created, ok := ask(); !ok || created.UTC().Year() != year {
			t.Errorf("%s: oldest %v, %v", text, created.UTC(), ok)
		}
	}
	w.exec("ALTER TABLE outbox DROP COLUMN created_at")
	columns := DefaultColumns
	columns.CreatedAt = ""
	s = w.open(func(c *Config) { c.Columns = columns })
	if created, ok := ask(); ok {
		t.Errorf("without created_at: oldest %v", created)
	}
}
