package mongo

import (
	"errors"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/source"
)

// parseHeaders reads record headers, in stored order, from a document or from an array of
// pairs, which may have a name twice:
//
//	{name: "text", n: 1, ok: true, none: null, o: {k: 1}}
//	[["name", "text"], ["name", "again"]]
//
// Text and binary values go out as they are, null as Kafka's null, numbers and booleans as
// JSON prints them, an ObjectId in hex, and anything else as Extended JSON.
func parseHeaders(v bson.RawValue, canonical bool) ([]source.Header, error) {
	switch v.Type {
	case 0, bson.TypeNull, bson.TypeUndefined:
		return nil, nil
	case bson.TypeEmbeddedDocument:
		elements, err := bson.Raw(v.Value).Elements()
		if err != nil {
			return nil, fmt.Errorf("headers: %w", err)
		}
		var headers []source.Header
		for _, e := range elements {
			h, err := newHeader(e.Key(), e.Value(), canonical)
			if err != nil {
				return nil, err
			}
			headers = append(headers, h)
		}
		return headers, nil
	case bson.TypeArray:
		return pairHeaders(v, canonical)
	}
	return nil, fmt.Errorf("headers: a document or an array of [name, value] pairs is wanted, and not a %s", typeName(v.Type))
}

func pairHeaders(v bson.RawValue, canonical bool) ([]source.Header, error) {
	pairs, err := bson.RawArray(v.Value).Values()
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	var headers []source.Header
	for _, p := range pairs {
		if p.Type != bson.TypeArray {
			return nil, errNoPair
		}
		pair, err := bson.RawArray(p.Value).Values()
		if err != nil {
			return nil, fmt.Errorf("headers: %w", err)
		}
		if len(pair) != 2 {
			return nil, errNoPair
		}
		name, ok := pair[0].StringValueOK()
		if !ok {
			return nil, errors.New("headers: the name in a [name, value] pair is not a string")
		}
		h, err := newHeader(name, pair[1], canonical)
		if err != nil {
			return nil, err
		}
		headers = append(headers, h)
	}
	return headers, nil
}

var errNoPair = errors.New("headers: an element of the array is not a [name, value] pair")

func newHeader(name string, v bson.RawValue, canonical bool) (h source.Header, err error) {
	h.Name = name
	switch v.Type {
	case bson.TypeNull, bson.TypeUndefined:
	case bson.TypeString, bson.TypeBinary:
		var b []byte
		b, err = plainBytes(v)
		h.Value = append([]byte{}, b...) // the driver's memory
	case bson.TypeInt32, bson.TypeInt64:
		h.Value = strconv.AppendInt(nil, v.AsInt64(), 10)
	case bson.TypeObjectID:
		h.Value = []byte(v.ObjectID().Hex())
	case bson.TypeDouble:
		h.Value, err = extJSON(v, false)
	default:
		h.Value, err = extJSON(v, canonical)
	}
	if err != nil {
		return source.Header{}, fmt.Errorf("headers: the value of %q: %w", name, err)
	}
	return h, nil
}
