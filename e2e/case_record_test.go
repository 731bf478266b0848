package e2e

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// shown prints bytes so that null and empty differ.
func shown(b []byte) string {
	if b == nil {
		return "NULL"
	}
	return strconv.Quote(string(b))
}

// headersOf prints a record's headers but the last, which must be the row's id.
func headersOf(t *testing.T, r *kgo.Record) string {
	t.Helper()
	n := len(r.Headers) - 1
	if n < 0 || r.Headers[n].Key != "id" {
		t.Fatalf("the last header of key %q is not the row's id: %v", r.Key, r.Headers)
	}
	var list []string
	for _, h := range r.Headers[:n] {
		list = append(list, h.Key+"="+shown(h.Value))
	}
	return strings.Join(list, " ")
}

// TestC84NullAndEmpty sends each combination of a null, an empty and another key and payload,
// with four kinds of headers, and reads them with our client and with kcat.
func TestC84NullAndEmpty(t *testing.T) {
	s := newStage(t, nil, nil)
	topic := s.makeTopic("", 3, nil)
	headers := []struct {
		json any
		want string
		kcat string
	}{
		{nil, ``, ""},
		{`{"h":null}`, `h=NULL`, "h=NULL,"},
		{`{"h":""}`, `h=""`, "h=,"},
		{`[["h","1"],["h","2"]]`, `h="1" h="2"`, "h=1,h=2,"},
	}
	var rows []row
	var want, wantKcat []string
	for _, h := range headers {
		for _, key := range []any{nil, "", "a"} {
			for _, payload := range []any{nil, []byte{}, []byte("x")} {
				rows = append(rows, row{topic, key, payload, h.json})
				id := len(rows)
				k, kLen := "NULL", "-1"
				if text, ok := key.(string); ok {
					k, kLen = strconv.Quote(text), strconv.Itoa(len(text))
				}
				v, vLen := "NULL", "-1"
				if b, ok := payload.([]byte); ok {
					v, vLen = shown(b), strconv.Itoa(len(b))
				}
				want = append(want, fmt.Sprintf("%d %s %s %s", id, k, v, h.want))
				wantKcat = append(wantKcat, fmt.Sprintf("%sid=%d %s %s", h.kcat, id, kLen, vLen))
			}
		}
	}
	s.put(rows...)
	p := s.start(inJSON)
	s.arrive(topic, len(rows), drainLimit)
	s.awaitEmpty()
	p.stop()
	p.quiet()

	var got []string
	partitions := map[string][]int32{}
	last := map[string]int{}
	for _, r := range s.records(topic) {
		id, _ := strconv.Atoi(header(t, r, "id"))
		got = append(got, fmt.Sprintf("%d %s %s %s", id, shown(r.Key), shown(r.Value), headersOf(t, r)))
		if r.Key == nil {
			continue
		}
		key := shown(r.Key)
		partitions[key] = append(partitions[key], r.Partition)
		if id <= last[key] {
			t.Errorf("key %s has row %d after row %d", key, id, last[key])
		}
		last[key] = id
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the records are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The Java client puts the empty key there, see the table in package sink.
	for key, want := range map[string]int32{`""`: 0, `"a"`: 1} {
		if p := slices.Compact(partitions[key]); len(p) != 1 || p[0] != want {
			t.Errorf("key %s is on the partitions %v, want %d", key, p, want)
		}
	}

	if err := servers.Install(t.Context(), slog.Default(), servers.Kcat); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "kcat", "-b", s.broker, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", `%h %K %S\n`).Output()
	if err != nil {
		t.Fatalf("reading with kcat: %v", err)
	}
	gotKcat := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(gotKcat)
	slices.Sort(wantKcat)
	if !slices.Equal(gotKcat, wantKcat) {
		t.Errorf("kcat reads\n%s\nwant\n%s", strings.Join(gotKcat, "\n"), strings.Join(wantKcat, "\n"))
	}
}

// TestC85HeadersFromJSON sends headers of every kind, from each type of column, and rows whose
// headers cannot be any.
func TestC85HeadersFromJSON(t *testing.T) {
	const written = `{"s":"x","e":"","n":12345678901234567890,"d":1.10,"b":true,"z":null,"o":{"k":1},"ü":"é"}`
	const asWritten = `s="x" e="" n="12345678901234567890" d="1.10" b="true" z=NULL o="{\"k\":1}" ü="é"`
	for typ, object := range map[string]string{
		// jsonb keeps its own order: shorter names first, then by bytes.
		"jsonb": `b="true" d="1.10" e="" n="12345678901234567890" o="{\"k\":1}" s="x" z=NULL ü="é"`,
		"json":  asWritten,
		"text":  asWritten,
	} {
		t.Run(typ, func(t *testing.T) {
			s := newBareStage(t, nil, nil)
			s.table(map[string]string{"headers": typ})
			topic := s.makeTopic("", 3, nil)
			good := map[string]struct{ json, want string }{
				"object": {written, object},
				"none":   {"", ""},
				"array":  {`[["a","1"],["a","2"],["b",null],["n",1.50]]`, `a="1" a="2" b=NULL n="1.50"`},
				"empty":  {`[]`, ""},
				"braces": {`{}`, ""},
				"null":   {`null`, ""},
				"nested": {`{"o": {"b" : [1, 2.0, " <&> "]}}`, `o="{\"b\":[1,2.0,\" <&> \"]}"`},
			}
			if typ != "jsonb" { // which keeps one of two
				good["twice"] = struct{ json, want string }{`{"a":"1","a":"2"}`, `a="1" a="2"`}
			}
			bad := map[string]string{"string": `"text"`, "number": `7`, "triple": `[["a","b","c"]]`, "flat": `["a","b"]`, "numbered": `[[1,"b"]]`}
			if typ == "text" {
				bad["malformed"], bad["blank"], bad["behind"] = `{"a":`, ` `, `{} x`
			}
			insert := func(key, json string) {
				expression := "$3::text::" + typ
				if json == "" {
					expression = "nullif($3, '')::" + typ
				}
				s.sql("INSERT INTO outbox (topic, key, payload, headers) VALUES ($1, $2, 'x', "+expression+")", topic, key, json)
			}
			for key, json := range bad {
				insert(key, json)
			}
			for key, g := range good {
				insert(key, g.json)
			}
			p := s.start(inJSON)
			s.arrive(topic, len(good), drainLimit)
			waiting := p.awaitParked(len(bad))
			for _, w := range waiting {
				if w.Part != "key" || w.Key == nil || bad[*w.Key] == "" || !strings.Contains(w.Reason, "headers") {
					t.Errorf("waits: %+v, want a key with bad headers and the cause", w)
				}
			}
			eventually(t, drainLimit, "only the rows with bad headers are left", func() bool { return s.left() == int64(len(bad)) })
			for _, r := range s.records(topic) {
				if got, want := headersOf(t, r), good[string(r.Key)].want; got != want {
					t.Errorf("%s: the headers are\n%s\nwant\n%s", r.Key, got, want)
				}
			}

			// A row that is corrected goes out like one that was right from the start.
			s.sql("UPDATE outbox SET headers = '{}'")
			p.retry(len(bad))
			s.arrive(topic, len(good)+len(bad), drainLimit)
			s.awaitEmpty()
			p.stop()
		})
	}
}

// TestC85ReservedHeader has the forwarder's own header win over a row's, with one warning.
func TestC85ReservedHeader(t *testing.T) {
	s := newStage(t, nil, nil)
	topic := s.makeTopic("", 1, nil)
	for range 3 {
		s.put(row{topic, "k", "x", `{"a":"1","id":"mine"}`})
	}
	p := s.start(inJSON)
	s.arrive(topic, 3, drainLimit)
	p.stop()
	for i, r := range s.records(topic) {
		if got := headersOf(t, r); got != `a="1"` || header(t, r, "id") != fmt.Sprint(i+1) {
			t.Errorf("the headers are %s and id=%s, want the row's own id %d", got, header(t, r, "id"), i+1)
		}
	}
	warnings := 0
	for _, l := range p.lines() {
		if l.Level == "WARN" && strings.Contains(l.text, "reserved") && strings.Contains(l.text, topic) {
			warnings++
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings of the reserved name, want one:\n%s", warnings, p.output())
	}
}

// TestC76PartitionsOfTheJavaClient sends the keys of the Java client's table and finds each
// where that client would have put it.
func TestC76PartitionsOfTheJavaClient(t *testing.T) {
	data, err := os.ReadFile("../sink/testdata/murmur2.tsv")
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t, nil, nil)
	topics := map[string]int{s.makeTopic("", 3, nil): 2, s.makeTopic("", 12, nil): 3} // to the field
	fields := map[string][]string{}
	var rows []row
	negative, foreign := 0, 0
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		key, err := hex.DecodeString(f[0])
		if err != nil || len(f) != 6 {
			t.Fatalf("the line %q: %v", line, err)
		}
		if !utf8.Valid(key) || slices.Contains(key, 0) {
			continue // no text that PostgreSQL takes
		}
		if strings.HasPrefix(f[1], "-") {
			negative++
		}
		if slices.ContainsFunc(key, func(b byte) bool { return b >= utf8.RuneSelf }) {
			foreign++
		}
		fields[string(key)] = f
		for topic := range topics {
			rows = append(rows, row{topic, string(key), "x", nil})
		}
	}
	if len(fields) < 400 || negative < 100 || foreign < 3 || fields[""] == nil {
		t.Fatalf("%d keys, %d negative hashes, %d with other letters: too few", len(fields), negative, foreign)
	}
	s.put(rows...)
	p := s.start()
	for topic, field := range topics {
		s.arrive(topic, len(fields), drainLimit)
		for _, r := range s.records(topic) {
			if want := fields[string(r.Key)][field]; fmt.Sprint(r.Partition) != want {
				t.Errorf("key %q is on partition %d, the Java client chooses %s", r.Key, r.Partition, want)
			}
		}
	}
	p.stop()
}
