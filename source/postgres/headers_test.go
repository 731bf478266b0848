package postgres

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/source"
)

func header(name, text string) source.Header { return source.Header{Name: name, Value: []byte(text)} }

// sameHeaders tells a null value from an empty one.
func sameHeaders(a, b []source.Header) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || !bytes.Equal(a[i].Value, b[i].Value) || (a[i].Value == nil) != (b[i].Value == nil) {
			return false
		}
	}
	return true
}

// headerCases are header columns in the table's words. Those with a defect cannot become a
// record.
var headerCases = []struct {
	sql    string
	types  []string // all of them where it is nil
	want   []source.Header
	defect string // a part of its text
}{
	{sql: `NULL`},
	{sql: `'null'`},
	{sql: `'{}'`},
	{sql: `'[]'`},
	{
		// jsonb orders by the length of the name, then by its bytes.
		sql: `'{"s":"x","e":"","n":12345678901234567890,"d":1.10,"b":true,"z":null,"o":{"k":1},"ü":"é"}'`, types: []string{"jsonb"},
		want: []source.Header{header("b", "true"), header("d", "1.10"), header("e", ""), header("n", "12345678901234567890"),
			header("o", `{"k":1}`), header("s", "x"), {Name: "z"}, header("ü", "é")},
	},
	{
		sql: `'{"s":"x","e":"","n":12345678901234567890,"d":1.10,"b":true,"z":null,"o":{"k":1},"ü":"é"}'`, types: []string{"json", "text", "varchar"},
		want: []source.Header{header("s", "x"), header("e", ""), header("n", "12345678901234567890"), header("d", "1.10"),
			header("b", "true"), {Name: "z"}, header("o", `{"k":1}`), header("ü", "é")},
	},
	{sql: `'[["a","1"],["a","2"],["b",null],["c",3.0],["d",[1, 2]],["e",false]]'`, want: []source.Header{
		header("a", "1"), header("a", "2"), {Name: "b"}, header("c", "3.0"), header("d", "[1,2]"), header("e", "false")}},
	{sql: `' {"a" : "1" , "a":"2"} '`, types: []string{"json", "text"}, want: []source.Header{header("a", "1"), header("a", "2")}},
	{sql: `'{"big":1e400,"neg":-0.0}'`, types: []string{"json", "text"}, want: []source.Header{header("big", "1e400"), header("neg", "-0.0")}},
	{sql: `'{"o":{"<&>": [ 1e400 , "\u00e9" ]}}'`, types: []string{"json", "text"}, want: []source.Header{header("o", `{"<&>":[1e400,"\u00e9"]}`)}},
	{sql: `'{"q":"say \"<&>\"\n\u00e9"}'`, want: []source.Header{header("q", "say \"<&>\"\né")}},
	{sql: `'{"zero":"a\u0000b"}'`, types: []string{"json", "text"}, want: []source.Header{header("zero", "a\x00b")}},
	{sql: `'{"":"x"}'`, want: []source.Header{header("", "x")}},
	{sql: `'"text"'`, defect: "a JSON object or an array"},
	{sql: `'17'`, defect: "a JSON object or an array"},
	{sql: `'true'`, defect: "a JSON object or an array"},
	{sql: `'["a","b"]'`, defect: "not a [name, value] pair"},
	{sql: `'[["a"]]'`, defect: "not a [name, value] pair"},
	{sql: `'[["a","b","c"]]'`, defect: "not a [name, value] pair"},
	{sql: `'[null]'`, defect: "not a [name, value] pair"},
	{sql: `'[{"a":"b"}]'`, defect: "not a [name, value] pair"},
	{sql: `'[[1,"b"]]'`, defect: "name in a [name, value] pair is not a string"},
	{sql: `'[[null,"b"]]'`, defect: "name in a [name, value] pair is not a string"},
	{sql: `''`, types: []string{"text"}, defect: "not JSON"},
	{sql: `'a=b'`, types: []string{"text"}, defect: "not JSON"},
	{sql: `'{"a":"b"'`, types: []string{"text"}, defect: "not JSON"},
	{sql: `'{"a":}'`, types: []string{"text"}, defect: "not JSON"},
	{sql: `'{"a":"b",}'`, types: []string{"text"}, defect: "not JSON"},
	{sql: `'{"a" "b"}'`, types: []string{"text"}, defect: "not JSON"},
	{sql: `'{"a":"b"} x'`, types: []string{"text"}, defect: "not JSON"},
	{sql: `'{"a":"b"}{"c":"d"}'`, types: []string{"text"}, defect: "not JSON"},
	{sql: `'[["a","b"],]'`, types: []string{"text"}, defect: "not JSON"},
	{sql: `repeat('[', 10001) || repeat(']', 10001)`, types: []string{"text"}, defect: "not JSON"},
	{sql: `'null null'`, types: []string{"text"}, defect: "not JSON"},
}

// TestC85Headers: headers come from a JSON column by one set of rules, and a row whose headers
// make no sense says so instead of stopping the page.
func TestC85Headers(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"jsonb", "json", "text", "varchar"} {
		t.Run(typ, func(t *testing.T) {
			w := newWorld(t, strings.Replace(outbox, "headers jsonb", "headers "+typ, 1))
			s := w.open()
			used := 0
			for _, c := range headerCases {
				if c.types != nil && !slices.Contains(c.types, typ) {
					continue
				}
				used++
				w.exec("INSERT INTO outbox (topic, key, payload, headers) VALUES ('t', 'k', 'p', " + c.sql + ")")
				got := events(t, s, everything())
				ev := got[len(got)-1]
				if len(got) != used || string(ev.Payload) != "p" {
					t.Fatalf("%s: %d events for %d rows", c.sql, len(got), used)
				}
				if c.defect != "" {
					if ev.Defect == nil || !strings.Contains(ev.Defect.Error(), c.defect) {
						t.Errorf("%s: defect %v, want one with %q", c.sql, ev.Defect, c.defect)
					}
					continue
				}
				if ev.Defect != nil || !sameHeaders(ev.Headers, c.want) {
					t.Errorf("%s: headers %q (%v), want %q", c.sql, ev.Headers, ev.Defect, c.want)
				}
			}
		})
	}
}

// FuzzParseHeaders compares with a naive model: encoding/json's own idea of the value, which
// knows neither order nor doubles, with numbers as they are written.
func FuzzParseHeaders(f *testing.F) {
	for _, c := range headerCases {
		f.Add([]byte(strings.TrimSuffix(strings.TrimPrefix(c.sql, "'"), "'")))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		headers, err := parseHeaders(text)
		var model any
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		if !json.Valid(text) || dec.Decode(&model) != nil {
			if err == nil {
				t.Fatalf("%q is not JSON, and gives %q", text, headers)
			}
			return
		}
		want, ok := modelHeaders(model)
		if ok != (err == nil) {
			t.Fatalf("%q: error %v, the model says good: %v", text, err, ok)
		}
		if err != nil {
			return
		}
		if list, isList := model.([]any); isList {
			if len(list) != len(headers) {
				t.Fatalf("%q: %d headers, want %d", text, len(headers), len(list))
			}
			for i, h := range headers {
				if !sameValue(h.Value, list[i].([]any)[1]) || h.Name != list[i].([]any)[0] {
					t.Fatalf("%q: header %d is %q", text, i, h)
				}
			}
			return
		}
		// In an object, the last of equal names is the one that the model knows.
		last := make(map[string][]byte)
		for _, h := range headers {
			last[h.Name] = h.Value
		}
		if len(last) != len(want) {
			t.Fatalf("%q: names %q, want %q", text, last, want)
		}
		for name, value := range want {
			if got, ok := last[name]; !ok || !sameValue(got, value) {
				t.Fatalf("%q: header %q is %q, want %v", text, name, got, value)
			}
		}
	})
}

// modelHeaders returns the values by name, and whether the value has the shape of headers.
func modelHeaders(model any) (map[string]any, bool) {
	switch v := model.(type) {
	case nil:
		return nil, true
	case map[string]any:
		return v, true
	case []any:
		for _, element := range v {
			pair, ok := element.([]any)
			if !ok || len(pair) != 2 {
				return nil, false
			}
			if _, ok := pair[0].(string); !ok {
				return nil, false
			}
		}
		return nil, true
	}
	return nil, false
}

// sameValue compares a header's bytes with a decoded value.
func sameValue(got []byte, value any) bool {
	switch v := value.(type) {
	case nil:
		return got == nil
	case string:
		return got != nil && string(got) == v
	case json.Number:
		return string(got) == v.String()
	case bool:
		return string(got) == map[bool]string{true: "true", false: "false"}[v]
	}
	var back any
	dec := json.NewDecoder(bytes.NewReader(got))
	dec.UseNumber()
	var compact bytes.Buffer
	return dec.Decode(&back) == nil && reflect.DeepEqual(back, value) &&
		json.Compact(&compact, got) == nil && bytes.Equal(compact.Bytes(), got)
}
