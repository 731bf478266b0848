package mongo

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// published inserts one document and returns its event.
func (w *world) published(s *Source, d bson.D) *source.Event {
	w.t.Helper()
	w.insert(d)
	q := all()
	for {
		page := read(w.t, s, q)
		for _, ev := range page.Events {
			if ev.Ref == refOf(rawValue(w.t, d[0].Value)) {
				return ev
			}
			q.Known = append(q.Known, ev.ID)
		}
		if !page.Full {
			w.t.Fatalf("no event of %v", d[0].Value)
		}
	}
}

func rawValue(t testing.TB, v any) bson.RawValue {
	t.Helper()
	kind, data, err := bson.MarshalValue(v)
	if err != nil {
		t.Fatal(err)
	}
	return bson.RawValue{Type: bson.Type(kind), Value: data}
}

// TestC37NullAndEmptyPayloads: null or nothing is a tombstone, and nothing else is.
func TestC37NullAndEmptyPayloads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	for name, c := range map[string]struct {
		payload any
		want    []byte
	}{
		"null":           {nil, nil},
		"text null":      {"null", []byte("null")},
		"empty string":   {"", []byte{}},
		"empty binary":   {bson.Binary{}, []byte{}},
		"empty document": {bson.D{}, []byte("{}")},
		"empty array":    {bson.A{}, []byte("[]")},
		"false":          {false, []byte("false")},
	} {
		ev := w.published(s, append(doc(name, "k", c.payload), bson.E{Key: "headers", Value: bson.D{{Key: "h", Value: "x"}}}))
		if ev.Defect != nil || !bytes.Equal(ev.Payload, c.want) || (ev.Payload == nil) != (c.want == nil) {
			t.Errorf("%s: %q, defect %v", name, ev.Payload, ev.Defect)
		}
		if string(ev.Key) != "k" || len(ev.Headers) != 1 {
			t.Errorf("%s: key %q, headers %v", name, ev.Key, ev.Headers)
		}
	}
	missing := bson.D{{Key: "_id", Value: "missing"}, {Key: "topic", Value: "t"}, {Key: "key", Value: "k"}}
	if ev := w.published(s, missing); ev.Payload != nil || ev.Defect != nil {
		t.Errorf("missing: %q, defect %v", ev.Payload, ev.Defect)
	}
}

// TestC84NullAndEmptyKeys: a document without a key is not one with an empty key.
func TestC84NullAndEmptyKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	for i, key := range []any{nil, "", "a"} {
		for j, payload := range []any{nil, "", "x"} {
			ev := w.published(s, doc(int32(3*i+j), key, payload))
			if (ev.Key == nil) != (key == nil) || key != nil && string(ev.Key) != key {
				t.Errorf("key %q became %q", key, ev.Key)
			}
			if (ev.Payload == nil) != (payload == nil) || payload != nil && string(ev.Payload) != payload {
				t.Errorf("payload %q became %q", payload, ev.Payload)
			}
			if key != nil && ev.Lane != lanes.LaneOf([]byte(key.(string)), s.Lanes()) {
				t.Errorf("key %q in lane %d", key, ev.Lane)
			}
		}
	}
	without := bson.D{{Key: "_id", Value: "without"}, {Key: "topic", Value: "t"}}
	if ev := w.published(s, without); ev.Key != nil || ev.Defect != nil {
		t.Errorf("no key at all: %q, %v", ev.Key, ev.Defect)
	}
}

// TestKeyTypes: the bytes of a key, and what has none to go out.
func TestKeyTypes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	object := bson.NewObjectID()
	for name, c := range map[string]struct {
		key  any
		want string
		bad  bool
	}{
		"string":   {"schlüssel\x00\xf0\x9f\x98\x80", "schlüssel\x00\xf0\x9f\x98\x80", false},
		"binary":   {bson.Binary{Data: []byte{0, 0xff, 1}}, "\x00\xff\x01", false},
		"uuid":     {bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}, "0123456789abcdef", false},
		"objectid": {object, object.Hex(), false},
		"int":      {int32(-7), "-7", false},
		"long":     {int64(math.MaxInt64), "9223372036854775807", false},
		"double":   {1.5, "", true},
		"date":     {bson.DateTime(0), "", true},
		"document": {bson.D{{Key: "a", Value: 1}}, "", true},
		"array":    {bson.A{"a"}, "", true},
		"bool":     {true, "", true},
	} {
		ev := w.published(s, doc(name, c.key, "x"))
		if string(ev.Key) != c.want || (ev.Defect != nil) != c.bad || (ev.Key == nil) != c.bad {
			t.Errorf("%s: %q, defect %v", name, ev.Key, ev.Defect)
		}
		// The lane that the read was filtered by is the event's.
		q := all()
		q.Lanes = []source.Lane{ev.Lane}
		if !strings.Contains(refs(read(t, s, q).Events), name) {
			t.Errorf("%s is not in its lane", name)
		}
	}
	for name, topic := range map[string]any{"topic int": 3, "topic null": bson.Null{}, "topic array": bson.A{"t"}} {
		ev := w.published(s, doc(name, "k", "x", bson.E{Key: "topic", Value: topic}))
		if ev.Defect == nil || !strings.Contains(ev.Defect.Error(), "topic") {
			t.Errorf("%s: defect %v", name, ev.Defect)
		}
	}
}

// TestIds: an _id of any type is a document of its own, by which it is named and deleted.
func TestIds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	object := bson.NewObjectID()
	want := map[string]any{
		object.Hex():               object,
		"text":                     "text",
		"5":                        int32(5),
		"6":                        int64(6),
		"1.5":                      1.5,
		"true":                     true,
		"null":                     nil,
		`{"a":1,"b":"x"}`:          bson.D{{Key: "a", Value: 1}, {Key: "b", Value: "x"}},
		`{"$numberDecimal":"0.1"}`: decimal(t, "0.1"),
		`{"$binary":{"base64":"AQI=","subType":"00"}}`: bson.Binary{Data: []byte{1, 2}},
		`{"$date":"1970-01-01T00:00:00Z"}`:             bson.DateTime(0),
		`{"$timestamp":{"t":1,"i":2}}`:                 bson.Timestamp{T: 1, I: 2},
	}
	for _, id := range want {
		w.insert(doc(id, "k", "x"))
	}
	page := read(t, s, all())
	if len(page.Events) != len(want) {
		t.Fatalf("%d events: %s", len(page.Events), refs(page.Events))
	}
	for i, ev := range page.Events {
		if _, ok := want[ev.Ref]; !ok {
			t.Errorf("an event is named %s", ev.Ref)
		}
		if err := s.Delete(t.Context(), []int64{ev.ID}, nil); err != nil {
			t.Fatal(err)
		}
		if n := w.count(bson.D{}); n != len(want)-i-1 {
			t.Fatalf("%d are left after %s", n, ev.Ref)
		}
	}
}

func decimal(t testing.TB, s string) bson.Decimal128 {
	t.Helper()
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestC67ExtendedJSON: a payload that is a document keeps its values and its order.
func TestC67ExtendedJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deep := bson.D{{Key: "end", Value: 1}}
	for range 90 {
		deep = bson.D{{Key: "d", Value: deep}}
	}
	payload := bson.D{
		{Key: "z", Value: decimal(t, "0.10")}, {Key: "nan", Value: decimal(t, "NaN")},
		{Key: "f", Value: math.NaN()}, {Key: "inf", Value: math.Inf(-1)}, {Key: "half", Value: 0.5}, {Key: "one", Value: 1.0},
		{Key: "long", Value: int64(math.MaxInt64)}, {Key: "int", Value: int32(1)},
		{Key: "old", Value: bson.NewDateTimeFromTime(time.Date(1950, 1, 1, 0, 0, 0, 0, time.UTC))},
		{Key: "new", Value: bson.NewDateTimeFromTime(time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC))},
		{Key: "at", Value: bson.NewDateTimeFromTime(time.Date(2024, 5, 6, 7, 8, 9, 10_000_000, time.UTC))},
		{Key: "bin", Value: bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}},
		{Key: "ts", Value: bson.Timestamp{T: 1, I: 2}}, {Key: "re", Value: bson.Regex{Pattern: "a/b", Options: "i"}},
		{Key: "text", Value: "<a&b>\x00\"\u2028ü"}, {Key: "a", Value: bson.A{1, nil, bson.D{}}},
	}
	relaxed := `{"z":{"$numberDecimal":"0.10"},"nan":{"$numberDecimal":"NaN"},"f":{"$numberDouble":"NaN"},"inf":{"$numberDouble":"-Infinity"},"half":0.5,"one":1.0,` +
		`"long":9223372036854775807,"int":1,"old":{"$date":{"$numberLong":"-631152000000"}},"new":{"$date":{"$numberLong":"568971820800000"}},"at":{"$date":"2024-05-06T07:08:09.01Z"},` +
		`"bin":{"$binary":{"base64":"MDEyMzQ1Njc4OWFiY2RlZg==","subType":"04"}},"ts":{"$timestamp":{"t":1,"i":2}},"re":{"$regularExpression":{"pattern":"a/b","options":"i"}},` +
		`"text":"<a&b>\u0000\"\u2028ü","a":[1,null,{}]}`
	canonical := `{"z":{"$numberDecimal":"0.10"},"nan":{"$numberDecimal":"NaN"},"f":{"$numberDouble":"NaN"},"inf":{"$numberDouble":"-Infinity"},"half":{"$numberDouble":"0.5"},"one":{"$numberDouble":"1.0"},` +
		`"long":{"$numberLong":"9223372036854775807"},"int":{"$numberInt":"1"},"old":{"$date":{"$numberLong":"-631152000000"}},"new":{"$date":{"$numberLong":"568971820800000"}},"at":{"$date":{"$numberLong":"1714979289010"}},` +
		`"bin":{"$binary":{"base64":"MDEyMzQ1Njc4OWFiY2RlZg==","subType":"04"}},"ts":{"$timestamp":{"t":1,"i":2}},"re":{"$regularExpression":{"pattern":"a/b","options":"i"}},` +
		`"text":"<a&b>\u0000\"\u2028ü","a":[{"$numberInt":"1"},null,{}]}`
	w.insert(doc("a", "k", payload), doc("b", "k", bson.A{1, "x"}), doc("c", "k", int64(7)), doc("d", "k", deep),
		doc("e", "k", "\x00 as it is \xff"), doc("f", "k", bson.Binary{Data: []byte{0, 0xff}}))
	for flag, want := range map[bool][]string{
		false: {relaxed, `[1,"x"]`, "7"},
		true:  {canonical, `[{"$numberInt":"1"},"x"]`, `{"$numberLong":"7"}`},
	} {
		s := w.open(func(c *Config) { c.Canonical = flag })
		events := read(t, s, all()).Events
		for i, ev := range events {
			if ev.Defect != nil {
				t.Errorf("%s: %v", ev.Ref, ev.Defect)
			}
			if i < len(want) && string(ev.Payload) != want[i] {
				t.Errorf("canonical %v: %s is\n%s\nand not\n%s", flag, ev.Ref, ev.Payload, want[i])
			}
			if i < 4 && !json.Valid(ev.Payload) {
				t.Errorf("%s is not JSON: %s", ev.Ref, ev.Payload)
			}
		}
		if strings.Count(string(events[3].Payload), `{"d":`) != 90 {
			t.Errorf("nested: %s", events[3].Payload)
		}
		if string(events[4].Payload) != "\x00 as it is \xff" || string(events[5].Payload) != "\x00\xff" {
			t.Errorf("bytes: %q and %q", events[4].Payload, events[5].Payload)
		}
	}
}

// TestC85Headers: both forms, every kind of value, and what cannot be headers.
func TestC85Headers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	object := bson.NewObjectID()
	h := func(name, value string) source.Header { return source.Header{Name: name, Value: []byte(value)} }
	for name, c := range map[string]struct {
		headers any
		want    []source.Header
		bad     bool
	}{
		"none":  {nil, nil, false},
		"empty": {bson.D{}, nil, false},
		"every kind": {bson.D{
			{Key: "s", Value: "x"}, {Key: "e", Value: ""}, {Key: "n", Value: int64(1234567890123456789)}, {Key: "i", Value: int32(-1)}, {Key: "d", Value: 1.25},
			{Key: "b", Value: true}, {Key: "z", Value: nil}, {Key: "o", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "l", Value: bson.A{1, "a"}}, {Key: "ü", Value: "é"},
			{Key: "bin", Value: bson.Binary{Data: []byte{0, 1}}}, {Key: "id", Value: object}, {Key: "dec", Value: decimal(t, "1.10")},
		}, []source.Header{
			h("s", "x"), h("e", ""), h("n", "1234567890123456789"), h("i", "-1"), h("d", "1.25"), h("b", "true"), {Name: "z"}, h("o", `{"k":1}`), h("l", `[1,"a"]`), h("ü", "é"),
			h("bin", "\x00\x01"), h("id", object.Hex()), h("dec", `{"$numberDecimal":"1.10"}`),
		}, false},
		"pairs":         {bson.A{bson.A{"a", "1"}, bson.A{"a", nil}, bson.A{"a", ""}}, []source.Header{h("a", "1"), {Name: "a"}, h("a", "")}, false},
		"no pairs":      {bson.A{}, nil, false},
		"text":          {"text", nil, true},
		"number":        {1, nil, true},
		"a pair short":  {bson.A{bson.A{"a"}}, nil, true},
		"a pair long":   {bson.A{bson.A{"a", "1", "2"}}, nil, true},
		"no pair":       {bson.A{"a"}, nil, true},
		"name a number": {bson.A{bson.A{1, "1"}}, nil, true},
	} {
		ev := w.published(s, append(doc(name, "k", "x"), bson.E{Key: "headers", Value: c.headers}))
		same := slices.EqualFunc(ev.Headers, c.want, func(a, b source.Header) bool {
			return a.Name == b.Name && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
		})
		if !same || (ev.Defect != nil) != c.bad {
			t.Errorf("%s: %q, defect %v", name, ev.Headers, ev.Defect)
		}
	}
}

// TestCreated: only a date says when an event was created.
func TestCreated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	at := time.Date(1969, 5, 6, 7, 8, 9, 10e6, time.UTC)
	for name, c := range map[string]struct {
		value any
		want  time.Time
	}{
		"date": {at, at}, "text": {"2024-01-01", time.Time{}}, "null": {bson.Null{}, time.Time{}},
	} {
		if ev := w.published(s, doc(name, "k", "x", bson.E{Key: "createdAt", Value: c.value})); !ev.Created.Equal(c.want) || ev.Defect != nil {
			t.Errorf("%s: %v, defect %v", name, ev.Created, ev.Defect)
		}
	}
}

// TestOwnFields: an outbox whose fields have other names, some of which it lacks.
func TestOwnFields(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	own := func(c *Config) {
		c.Collection = "Aus gang"
		c.Fields = Fields{Topic: "to", Payload: "body", Seq: "when it came"}
	}
	w.init(own)
	s := w.open(own)
	for i := range 3 {
		d := bson.D{{Key: "_id", Value: 3 - i}, {Key: "to", Value: "t"}, {Key: "key", Value: "no key"}, {Key: "headers", Value: 1}, {Key: "body", Value: "x"}, {Key: "when it came", Value: bson.Timestamp{}}}
		if _, err := w.db.Collection("Aus gang").InsertOne(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	events := read(t, s, all()).Events
	if refs(events) != "3 2 1" || events[0].Key != nil || events[0].Headers != nil || events[0].Defect != nil || string(events[0].Payload) != "x" {
		t.Errorf("%s: %+v", refs(events), events[0])
	}
	if at, ok, err := s.Oldest(t.Context()); err != nil || !ok || time.Since(at) > time.Hour {
		t.Errorf("the oldest is of %v: %v, %v", at, ok, err)
	}
}
