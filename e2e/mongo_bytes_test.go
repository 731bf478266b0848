package e2e

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// mongoValues are documents, and what their records must be, byte for byte.
type mongoValue struct {
	doc     bson.D // without _id: the driver gives an ObjectId
	id      string // the header, where the document has an _id of its own
	key     []byte
	value   []byte
	headers []kgo.RecordHeader
}

func decimal(t *testing.T, text string) bson.Decimal128 {
	t.Helper()
	d, err := bson.ParseDecimal128(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mongoValues(t *testing.T, canonical bool) []mongoValue {
	flavour := func(relaxed, other string) []byte {
		if canonical {
			return []byte(other)
		}
		return []byte(relaxed)
	}
	payload := func(v any) bson.D { return bson.D{{Key: "key", Value: "k"}, {Key: "payload", Value: v}} }
	k := []byte("k")
	deep := any(int32(1))
	text := "1"
	if canonical {
		text = `{"$numberInt":"1"}`
	}
	for range 60 {
		deep, text = bson.D{{Key: "a", Value: deep}}, `{"a":`+text+`}`
	}
	values := []mongoValue{
		// C37, C84: null, missing and empty.
		{doc: payload(nil), key: k},
		{doc: bson.D{{Key: "key", Value: "k"}}, key: k},
		{doc: payload(""), key: k, value: []byte{}},
		{doc: payload("null"), key: k, value: []byte("null")},
		{doc: payload(bson.Binary{}), key: k, value: []byte{}},
		{doc: payload(bson.D{}), key: k, value: []byte("{}")},
		{doc: payload(bson.A{}), key: k, value: []byte("[]")},
		// C67: bytes as they are, and what JSON has no form for.
		{doc: payload("ü\x00\u2028 {\"a\": 1.10}\n"), key: k, value: []byte("ü\x00\u2028 {\"a\": 1.10}\n")},
		{doc: payload(bson.Binary{Data: []byte{0, 0xff, 0x0a}}), key: k, value: []byte{0, 0xff, 0x0a}},
		{doc: payload(bson.Binary{Subtype: 4, Data: make([]byte, 16)}), key: k, value: make([]byte, 16)},
		{doc: payload(bson.D{{Key: "z", Value: int32(1)}, {Key: "a", Value: int64(math.MaxInt64)}}), key: k,
			value: flavour(`{"z":1,"a":9223372036854775807}`, `{"z":{"$numberInt":"1"},"a":{"$numberLong":"9223372036854775807"}}`)},
		{doc: payload(bson.D{{Key: "d", Value: decimal(t, "0.10")}, {Key: "n", Value: decimal(t, "NaN")}}), key: k,
			value: []byte(`{"d":{"$numberDecimal":"0.10"},"n":{"$numberDecimal":"NaN"}}`)},
		{doc: payload(bson.D{{Key: "n", Value: math.NaN()}, {Key: "i", Value: math.Inf(-1)}, {Key: "f", Value: 1.5}}), key: k,
			value: flavour(`{"n":{"$numberDouble":"NaN"},"i":{"$numberDouble":"-Infinity"},"f":1.5}`,
				`{"n":{"$numberDouble":"NaN"},"i":{"$numberDouble":"-Infinity"},"f":{"$numberDouble":"1.5"}}`)},
		{doc: payload(bson.D{{Key: "old", Value: time.Date(1969, 7, 20, 20, 17, 40, 0, time.UTC)}, {Key: "now", Value: time.Date(2024, 2, 29, 1, 2, 3, 4e6, time.UTC)}}), key: k,
			value: flavour(`{"old":{"$date":{"$numberLong":"-14182940000"}},"now":{"$date":"2024-02-29T01:02:03.004Z"}}`,
				`{"old":{"$date":{"$numberLong":"-14182940000"}},"now":{"$date":{"$numberLong":"1709168523004"}}}`)},
		{doc: payload(bson.D{{Key: "t", Value: bson.Timestamp{T: 1, I: 2}}, {Key: "r", Value: bson.Regex{Pattern: "^a", Options: "i"}}, {Key: "b", Value: bson.Binary{Data: []byte{1}}}}), key: k,
			value: []byte(`{"t":{"$timestamp":{"t":1,"i":2}},"r":{"$regularExpression":{"pattern":"^a","options":"i"}},"b":{"$binary":{"base64":"AQ==","subType":"00"}}}`)},
		{doc: payload(bson.D{{Key: "u", Value: "a\x00<ü>&\u2028"}}), key: k, value: []byte(`{"u":"a\u0000<ü>&\u2028"}`)},
		{doc: payload(deep), key: k, value: []byte(text)},
		{doc: payload(true), key: k, value: []byte("true")},
		{doc: payload(strings.Repeat("long", 200_000)), key: k, value: []byte(strings.Repeat("long", 200_000))},
		// C84: keys.
		{doc: bson.D{{Key: "payload", Value: "no key"}}, value: []byte("no key")},
		{doc: bson.D{{Key: "key", Value: nil}, {Key: "payload", Value: ""}}, value: []byte{}},
		{doc: bson.D{{Key: "key", Value: ""}, {Key: "payload", Value: "x"}}, key: []byte{}, value: []byte("x")},
		{doc: bson.D{{Key: "key", Value: ""}}, key: []byte{}},
		{doc: bson.D{{Key: "key", Value: int64(-7)}, {Key: "payload", Value: "x"}}, key: []byte("-7"), value: []byte("x")},
		{doc: bson.D{{Key: "key", Value: bson.Binary{Data: []byte{0, 1}}}, {Key: "payload", Value: "x"}}, key: []byte{0, 1}, value: []byte("x")},
		// C85: headers.
		{doc: append(payload("h1"), bson.E{Key: "headers", Value: bson.D{
			{Key: "s", Value: "x"}, {Key: "e", Value: ""}, {Key: "n", Value: int64(1234567890123456789)}, {Key: "d", Value: 1.1}, {Key: "b", Value: true},
			{Key: "z", Value: nil}, {Key: "o", Value: bson.D{{Key: "k", Value: "v"}}}, {Key: "ü", Value: "é"}, {Key: "y", Value: bson.Binary{Data: []byte{0xff}}},
		}}), key: k, value: []byte("h1"), headers: []kgo.RecordHeader{
			{Key: "s", Value: []byte("x")}, {Key: "e", Value: []byte{}}, {Key: "n", Value: []byte("1234567890123456789")}, {Key: "d", Value: []byte("1.1")},
			{Key: "b", Value: []byte("true")}, {Key: "z"}, {Key: "o", Value: []byte(`{"k":"v"}`)}, {Key: "ü", Value: []byte("é")}, {Key: "y", Value: []byte{0xff}},
		}},
		{doc: append(payload("h2"), bson.E{Key: "headers", Value: bson.A{bson.A{"a", "1"}, bson.A{"a", "2"}}}), key: k, value: []byte("h2"),
			headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")}}},
		{doc: append(payload("h3"), bson.E{Key: "headers", Value: bson.D{}}), key: k, value: []byte("h3")},
	}
	// The id as users know it.
	for id, want := range map[any]string{
		"order-17": "order-17", int32(7): "7", int64(math.MaxInt64): "9223372036854775807", 1.5: "1.5", true: "true",
	} {
		values = append(values, mongoValue{doc: append(bson.D{{Key: "_id", Value: id}}, payload("id "+want)...), id: want, key: k, value: []byte("id " + want)})
	}
	pair := bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: "x"}}
	return append(values, mongoValue{doc: append(bson.D{{Key: "_id", Value: pair}}, payload("id pair")...), id: `{"a":1,"b":"x"}`, key: k, value: []byte("id pair")})
}

// inFull is a record without its position, with null and empty told apart.
func inFull(key, value []byte, headers []kgo.RecordHeader) string {
	var b strings.Builder
	for _, v := range [][]byte{key, value} {
		fmt.Fprintf(&b, "%t %q ", v == nil, v)
	}
	for _, h := range headers {
		fmt.Fprintf(&b, "%s=%t %q ", h.Key, h.Value == nil, h.Value)
	}
	return b.String()
}

// TestMongoBytes delivers documents of all kinds in every mode, half of them before the start and
// half of them after it, so that they come from the collection and from the change stream.
func TestMongoBytes(t *testing.T) {
	inModes(t, func(t *testing.T, m mode) {
		for _, canonical := range []bool{false, true} {
			t.Run(fmt.Sprintf("canonical %t", canonical), func(t *testing.T) {
				t.Parallel()
				s := newCollection(t, m)
				topic := s.makeTopic("", 3, nil)
				settings := []string{inJSON}
				if canonical {
					settings = append(settings, "FORWARDER_SOURCE_MONGO_JSON=canonical")
				}
				values := mongoValues(t, canonical)
				want := map[string]string{} // by id
				put := func() {
					for _, v := range values {
						id := v.id
						if id == "" {
							oid := bson.NewObjectID()
							id = oid.Hex()
							v.doc = append(bson.D{{Key: "_id", Value: oid}}, v.doc...)
						}
						if want[id] != "" {
							continue // it was put the first time
						}
						want[id] = inFull(v.key, v.value, v.headers)
						s.collection.put(topic, v.doc)
					}
				}
				put()
				p := s.start(settings...)
				s.arrive(topic, len(want), drainLimit)
				put()
				s.arrive(topic, len(want), drainLimit)
				s.awaitEmpty()
				p.stop()
				p.quiet()
				for _, r := range s.records(topic) {
					id := header(t, r, "id")
					var headers []kgo.RecordHeader
					for _, h := range r.Headers {
						if h.Key != "id" {
							headers = append(headers, h)
						}
					}
					if got := inFull(r.Key, r.Value, headers); got != want[id] {
						t.Errorf("document %s is\n%.300s, want\n%.300s", id, got, want[id])
					}
					delete(want, id)
				}
				if len(want) > 0 {
					t.Errorf("%d documents have no record, or two of an id", len(want))
				}
			})
		}
	}, mongoModes...)
}
