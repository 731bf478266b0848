package sourcetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// rows are values that get lost or changed on their way, in every combination that matters
// (C33, C37, C84, C85).
func rows() []Row {
	var list []Row
	for _, key := range [][]byte{nil, {}, []byte("a"), []byte("Kunde-ü-☃-\U0001F600"), []byte(strings.Repeat("long ", 1000)), []byte(` "quoted"\ ` + "\n\t")} {
		for _, payload := range [][]byte{nil, {}, []byte("x"), {0, 0xff, '\n', '\r', '"', '\\'}, []byte(`{"a": 12345678901234567890, "b":1.10}`)} {
			list = append(list, Row{Topic: "values", Key: key, Payload: payload})
		}
	}
	h := func(pairs ...any) (headers []source.Header) {
		for i := 0; i < len(pairs); i += 2 {
			var value []byte
			if s, ok := pairs[i+1].(string); ok {
				value = []byte(s)
			}
			headers = append(headers, source.Header{Name: pairs[i].(string), Value: value})
		}
		return headers
	}
	for _, headers := range [][]source.Header{
		nil, h("a", "1"), h("a", ""), h("a", nil), h("ü", "é\U0001F600"), h("b", "2", "a", "1"), h("a", "1", "a", "2"),
		h("long", strings.Repeat("v", 10_000)),
	} {
		list = append(list, Row{Topic: "headers", Key: []byte("k"), Payload: []byte("x"), Headers: headers})
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	return append(list, Row{Topic: "large", Key: []byte("k"), Payload: large}, Row{Topic: "Topic.with-all_kinds", Payload: []byte("y")})
}

// sameValues inserts the values before the start and after it: what the table is read for and
// what comes through a log are the same bytes.
func sameValues(t *testing.T, o Outbox) {
	b := &broker{}
	want := rows()
	o.put(t, want...)
	f := o.own(t, b)
	for round := range 2 {
		eventually(t, "all values are delivered", func() bool { return b.count() >= (round+1)*len(want) && o.Left(t) == 0 })
		compare(t, b.events()[round*len(want):], want)
		if round == 0 {
			o.put(t, want...)
		}
	}
	f.stop()
}

// compare matches events with rows regardless of the order between keys.
func compare(t *testing.T, got []*source.Event, want []Row) {
	t.Helper()
	describe := func(topic string, key, payload []byte, headers []source.Header) string {
		var s strings.Builder
		fmt.Fprintf(&s, "%s %s %s", topic, shown(key), shown(payload))
		for _, h := range headers {
			fmt.Fprintf(&s, " %q=%s", h.Name, shown(h.Value))
		}
		return s.String()
	}
	var have, wish []string
	for _, ev := range got {
		have = append(have, describe(ev.Topic, ev.Key, ev.Payload, ev.Headers))
		if ev.Defect != nil {
			t.Errorf("%s: %v", ev.Name(), ev.Defect)
		}
		if age := time.Since(ev.Created); age < -time.Minute || age > time.Hour {
			t.Errorf("%s was created at %v", ev.Name(), ev.Created)
		}
		if ev.Name() == "" || ev.Name() == "0" {
			t.Errorf("an event has the name %q", ev.Name())
		}
	}
	for _, r := range want {
		wish = append(wish, describe(r.Topic, r.Key, r.Payload, r.Headers))
	}
	slices.Sort(have)
	slices.Sort(wish)
	for i := range max(len(have), len(wish)) {
		switch {
		case i >= len(have):
			t.Fatalf("missing: %s", wish[i])
		case i >= len(wish):
			t.Fatalf("too much: %s", have[i])
		case have[i] != wish[i]:
			t.Fatalf("got\n%s, want\n%s", have[i], wish[i])
		}
	}
}

// shown tells nil from empty, and keeps long values short.
func shown(b []byte) string {
	switch {
	case b == nil:
		return "nil"
	case len(b) > 100:
		return fmt.Sprintf("%d bytes, %x", len(b), sha256.Sum256(b))
	}
	return fmt.Sprintf("%q", b)
}
