package mongo

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// keyBytes returns the bytes of a document's key as they go to Kafka, nil for a document
// without a key. The lane is computed from them.
func keyBytes(v bson.RawValue) ([]byte, error) {
	switch v.Type {
	case 0, bson.TypeNull, bson.TypeUndefined:
		return nil, nil
	case bson.TypeString, bson.TypeBinary:
		return plainBytes(v)
	case bson.TypeObjectID:
		return []byte(v.ObjectID().Hex()), nil
	case bson.TypeInt32:
		return strconv.AppendInt(nil, int64(v.Int32()), 10), nil
	case bson.TypeInt64:
		return strconv.AppendInt(nil, v.Int64(), 10), nil
	}
	return nil, fmt.Errorf("the key is a %s: a string, binary, ObjectId, int or long is wanted", typeName(v.Type))
}

// plainBytes returns the bytes of a string or a binary value, never nil.
func plainBytes(v bson.RawValue) ([]byte, error) {
	if v.Type == bson.TypeBinary {
		_, data, ok := v.BinaryOK()
		if !ok {
			return nil, errMalformed
		}
		return notNil(data), nil
	}
	// A string is its length, its bytes, whatever they are, and a zero byte.
	if len(v.Value) < 5 {
		return nil, errMalformed
	}
	return notNil(v.Value[4 : len(v.Value)-1]), nil
}

var errMalformed = errors.New("a value of the document is malformed BSON")

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// payloadBytes returns a document's payload as it goes to Kafka: strings and binary values as
// they are, null or nothing as nil, anything else as Extended JSON.
func payloadBytes(v bson.RawValue, canonical bool) ([]byte, error) {
	switch v.Type {
	case 0, bson.TypeNull, bson.TypeUndefined:
		return nil, nil
	case bson.TypeString, bson.TypeBinary:
		return plainBytes(v)
	}
	return extJSON(v, canonical)
}

// extJSON prints a value as Extended JSON v2, with documents in their stored order.
func extJSON(v bson.RawValue, canonical bool) ([]byte, error) {
	if v.Type == bson.TypeEmbeddedDocument {
		return bson.MarshalExtJSON(bson.Raw(v.Value), canonical, false)
	}
	// Only documents can be printed: this one holds the value alone.
	text, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: v}}, canonical, false)
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(bytes.TrimPrefix(text, []byte(`{"v":`)), []byte("}")), nil
}

// refOf is what users call a document: its _id in hex, as text or as Extended JSON.
func refOf(id bson.RawValue) string {
	switch id.Type {
	case bson.TypeObjectID:
		return id.ObjectID().Hex()
	case bson.TypeString:
		return id.StringValue()
	}
	text, err := extJSON(id, false)
	if err != nil {
		return fmt.Sprintf("%x", id.Value)
	}
	return string(text)
}

// typeName is a BSON type in the words of the documentation.
func typeName(t bson.Type) string {
	if t == 0 {
		return "missing value"
	}
	return t.String()
}
