package e2e

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// table makes an outbox of the test's own with the given column types, and has the default
// ones for the rest.
func (s *stage) table(columns map[string]string) {
	s.t.Helper()
	types := map[string]string{"topic": "text NOT NULL", "key": "text", "payload": "bytea", "headers": "jsonb", "created_at": "timestamptz NOT NULL DEFAULT now()"}
	for name, typ := range columns {
		types[name] = typ
	}
	s.sql("DROP TABLE IF EXISTS outbox")
	s.sql(fmt.Sprintf("CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic %s, key %s, payload %s, headers %s, created_at %s)",
		types["topic"], types["key"], types["payload"], types["headers"], types["created_at"]))
	s.initialise()
}

// literals is a row of SQL expressions by column.
type literals map[string]string

// putLiterals inserts rows that are written as SQL, one statement each.
func (s *stage) putLiterals(topic string, rows ...literals) {
	s.t.Helper()
	for _, r := range rows {
		columns, expressions := []string{"topic"}, []string{"'" + topic + "'"}
		for c, e := range r {
			columns, expressions = append(columns, c), append(expressions, e)
		}
		s.sql(fmt.Sprintf("INSERT INTO outbox (%s) VALUES (%s)", strings.Join(columns, ","), strings.Join(expressions, ",")))
	}
}

// deliver forwards what is in the outbox, n rows all in all, and returns the topic's records
// by their key. The forwarder may not have had anything to warn of.
func (s *stage) deliver(topic string, n int) map[string]*kgo.Record {
	s.t.Helper()
	p := s.start(inJSON)
	s.arrive(topic, n, drainLimit)
	s.awaitEmpty()
	p.stop()
	p.quiet()
	byKey := map[string]*kgo.Record{}
	for _, r := range s.records(topic) {
		header(s.t, r, "id")
		if byKey[string(r.Key)] != nil {
			s.t.Errorf("key %q has two records", r.Key)
		}
		byKey[string(r.Key)] = r
	}
	return byKey
}

// wantValue demands these very bytes; nil is a null value and is told from an empty one.
func wantValue(t *testing.T, records map[string]*kgo.Record, key string, want []byte) {
	t.Helper()
	r := records[key]
	if r == nil {
		t.Errorf("key %q has no record", key)
		return
	}
	if !bytes.Equal(r.Value, want) || (r.Value == nil) != (want == nil) {
		t.Errorf("key %q has the value %q (null: %v), want %q (null: %v)", key, r.Value, r.Value == nil, want, want == nil)
	}
}

// TestC33BinaryPayload sends bytes that no text can hold.
func TestC33BinaryPayload(t *testing.T) {
	s := newStage(t, nil, nil)
	topic := s.makeTopic("", 3, nil)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	s.putLiterals(topic,
		literals{"key": "'five'", "payload": `'\x00ff0a0d22'::bytea`},
		literals{"key": "'empty'", "payload": `''::bytea`},
		literals{"key": "'hex'", "payload": `'\xdeadbeef'::bytea`},
		literals{"key": "'all'", "payload": fmt.Sprintf(`'\x%x'::bytea`, all)},
	)
	got := s.deliver(topic, 4)
	wantValue(t, got, "five", []byte{0x00, 0xff, 0x0a, 0x0d, 0x22})
	wantValue(t, got, "empty", []byte{})
	wantValue(t, got, "hex", []byte{0xde, 0xad, 0xbe, 0xef})
	wantValue(t, got, "all", all)
}

// TestC35JSONIsNotRewritten sends documents whose numbers, spacing and doubled names do not
// survive a decoder.
func TestC35JSONIsNotRewritten(t *testing.T) {
	documents := map[string]struct{ written, jsonb string }{
		"numbers": {
			`{"a":12345678901234567890,"b":1.10,"c":1e400}`,
			`{"a": 12345678901234567890, "b": 1.10, "c": 1` + strings.Repeat("0", 400) + `}`,
		},
		"double":   {`{"b":1,"a":2,"a":3}`, `{"a": 3, "b": 1}`},
		"spacing":  {"  { \"x\" :\t[1 ,2],\n\"y\":{} }", `{"x": [1, 2], "y": {}}`},
		"markup":   {`{"m":"<a href='x'>&amp;</a> \u00fc ü"}`, `{"m": "<a href='x'>&amp;</a> ü ü"}`},
		"bare":     {`"text"`, `"text"`},
		"negative": {`-0.000`, `0.000`},
	}
	for _, typ := range []string{"json", "jsonb", "text"} {
		t.Run(typ, func(t *testing.T) {
			s := newBareStage(t, nil, nil)
			s.table(map[string]string{"payload": typ})
			topic := s.makeTopic("", 3, nil)
			stored := map[string]string{}
			for key, doc := range documents {
				s.sql("INSERT INTO outbox (topic, key, payload) VALUES ($1, $2, $3::text::"+typ+")", topic, key, doc.written)
				var text string
				s.value(&text, "SELECT payload::text FROM outbox WHERE key = $1", key)
				stored[key] = text
			}
			got := s.deliver(topic, len(documents))
			for key, doc := range documents {
				want := doc.written
				if typ == "jsonb" {
					want = doc.jsonb
				}
				if stored[key] != want {
					t.Errorf("PostgreSQL stores %q, want %q", stored[key], want)
				}
				wantValue(t, got, key, []byte(want))
			}
		})
	}
}

// TestC36InfiniteTimestamp sends rows whose creation time no record can carry, with ones
// between them whose time can.
func TestC36InfiniteTimestamp(t *testing.T) {
	for _, typ := range []string{"timestamptz", "timestamp", "date"} {
		t.Run(typ, func(t *testing.T) {
			s := newBareStage(t, nil, nil)
			s.table(map[string]string{"created_at": typ})
			s.sql("SET TimeZone = 'UTC'")
			topic := s.makeTopic("", 3, nil)
			// A broker takes times up to an hour ahead.
			ahead := time.Now().UTC().AddDate(0, 0, 2).Format("2006-01-02")
			unusable := map[string]string{
				"forever": "infinity", "never": "-infinity", "far": "294276-12-31",
				"bc": "0044-03-15 BC", "before1970": "1969-12-31", "ahead": ahead,
			}
			if typ == "date" {
				unusable["farthest"] = "5874897-12-31"
			}
			usable := map[string]string{"epoch": "1970-01-02", "leap": "2024-02-29"}
			if typ != "date" {
				usable["exact"] = "2024-02-29 23:59:59.987"
			}
			for _, times := range []map[string]string{unusable, usable} {
				for key, at := range times {
					s.putLiterals(topic, literals{"key": "'" + key + "'", "payload": "'x'", "created_at": "'" + at + "'",
						"headers": fmt.Sprintf("jsonb_build_object('at', '%s'::%s)", at, typ)})
				}
			}
			before := time.Now().Add(-time.Second)
			got := s.deliver(topic, len(unusable)+len(usable))
			after := time.Now().Add(time.Second)
			for key := range unusable {
				if r := got[key]; r == nil || r.Timestamp.Before(before) || r.Timestamp.After(after) {
					t.Errorf("key %s: record %v, want one with the time of sending", key, r)
				}
			}
			for key, at := range usable {
				want, err := time.Parse("2006-01-02", at)
				if err != nil {
					want, err = time.Parse("2006-01-02 15:04:05.999", at)
				}
				if err != nil {
					t.Fatal(err)
				}
				if r := got[key]; r == nil || !r.Timestamp.Equal(want) {
					t.Errorf("key %s: record %v, want the time %s", key, r, want)
				}
			}
			for key, want := range map[string]string{"forever": "infinity", "never": "-infinity"} {
				if r := got[key]; r != nil && header(t, r, "at") != want {
					t.Errorf("the header is %q, want %q", header(t, r, "at"), want)
				}
			}
		})
	}
}

// TestC37NullIsNotEmpty sends the four kinds of nothing.
func TestC37NullIsNotEmpty(t *testing.T) {
	for typ, rows := range map[string]map[string]string{
		"jsonb": {"k1": "NULL", "k2": "'null'", "k4": "'{}'"},
		"json":  {"k1": "NULL", "k2": "'null'", "k4": "'{}'"},
		"text":  {"k1": "NULL", "k2": "'null'", "k3": "''", "k4": "'{}'"},
		"bytea": {"k1": "NULL", "k2": "'null'", "k3": "''", "k4": "'{}'"},
	} {
		t.Run(typ, func(t *testing.T) {
			s := newBareStage(t, nil, nil)
			s.table(map[string]string{"payload": typ})
			topic := s.makeTopic("", 3, nil)
			for key, payload := range rows {
				s.putLiterals(topic, literals{"key": "'" + key + "'", "payload": payload, "headers": `'{"h":"v"}'`})
			}
			got := s.deliver(topic, len(rows))
			want := map[string][]byte{"k1": nil, "k2": []byte("null"), "k3": {}, "k4": []byte("{}")}
			for key := range rows {
				wantValue(t, got, key, want[key])
				if r := got[key]; r != nil && header(t, r, "h") != "v" {
					t.Errorf("key %s has the header %q", key, header(t, r, "h"))
				}
			}
		})
	}
}

// TestC38KeyTypes sends keys of every supported type. A first row that is too large shows
// that the rows of a key are found again by the same bytes that became the record's key.
func TestC38KeyTypes(t *testing.T) {
	for _, c := range []struct {
		typ         string
		key, second string // two literals of one key
		want        string
		other, text string // another key
	}{
		{"uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000"},
		{"bigint", "-9223372036854775808", "-9223372036854775808", "-9223372036854775808", "7", "7"},
		{"int", "+42", "42", "42", "-1", "-1"},
		{"smallint", "7", "07", "7", "8", "8"},
		{"numeric", "1.00", "1.00", "1.00", "1.0", "1.0"},
		{"numeric(10,3)", "1", "1.0", "1.000", "NaN", "NaN"},
		{"char(8)", "abc", "abc   ", "abc     ", "abcdefgh", "abcdefgh"},
		{"varchar(20)", "Zürich", "Zürich", "Zürich", "Zürich ", "Zürich "},
		{"text", "", "", "", " ", " "},
	} {
		t.Run(c.typ, func(t *testing.T) {
			s := newBareStage(t, nil, nil)
			s.table(map[string]string{"key": c.typ})
			topic := s.makeTopic("", 1, map[string]string{"max.message.bytes": lowLimit})
			p := s.start()
			quoted := func(text string) string { return "'" + text + "'::text::" + c.typ }
			s.putLiterals(topic, literals{"key": quoted(c.key), "payload": fmt.Sprintf("repeat('x', %d)::bytea", bigPayload)})
			p.awaitParked(1)
			s.putLiterals(topic, literals{"key": quoted(c.second), "payload": "'second'"}, literals{"key": quoted(c.other), "payload": "'other'"})
			s.arrive(topic, 1, drainLimit)
			if list := p.parked(); len(list) != 1 || list[0].Key == nil || *list[0].Key != c.want {
				t.Errorf("what waits is %+v, want key %q", list, c.want)
			}
			s.configure(topic, "max.message.bytes", highLimit)
			p.retry(1)
			s.arrive(topic, 3, drainLimit)
			s.awaitEmpty()
			p.stop()
			records := s.records(topic)
			if got := shortValues(records, c.want); got != "big,second" {
				t.Errorf("key %q has %q, want big and then second", c.want, got)
			}
			if got := values(records, c.text); got != "other" {
				keys := []string{}
				for _, r := range records {
					keys = append(keys, string(r.Key))
				}
				t.Errorf("key %q has %q; the keys are %q", c.text, got, slices.Compact(keys))
			}
		})
	}
}

// TestC38UnsupportedKeyType is a mistake in the configuration, found before anything is read.
func TestC38UnsupportedKeyType(t *testing.T) {
	s := newBareStage(t, nil, nil)
	s.sql("CREATE TABLE outbox (id bigint PRIMARY KEY, topic text, key jsonb, payload bytea, headers jsonb, created_at timestamptz)")
	_, stderr, code := forwarder(t, nil, "run", "--source-url", s.url, "--brokers", s.broker, "--admin-listen", serverstest.FreeAddress(t))
	if code != 2 || !strings.Contains(stderr, "jsonb") || !strings.Contains(stderr, `"key"`) {
		t.Errorf("exit code %d, want 2 and the column with its type:\n%s", code, stderr)
	}
}
