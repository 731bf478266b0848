package postgres

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/outbox-forwarder/forwarder/source"
)

// parseHeaders reads record headers from JSON text, in stored order:
//
//	{"name": "text", "n": 1.10, "ok": true, "none": null, "o": {"k": 1}}
//	[["name", "text"], ["name", "again"]]
//
// Text goes out without quotes, null as Kafka's null, numbers and booleans as they are
// written, and objects and arrays as compact JSON. Anything else is an error.
func parseHeaders(text []byte) ([]source.Header, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	start, err := dec.Token()
	if err != nil {
		return nil, headersError(err)
	}
	var headers []source.Header
	switch start {
	case json.Delim('{'):
		headers, err = objectHeaders(dec)
	case json.Delim('['):
		headers, err = pairHeaders(dec)
	case nil:
		// JSON null is no headers, as NULL is.
	default:
		return nil, errors.New("headers: a JSON object or an array of [name, value] pairs is wanted")
	}
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("headers: something follows the JSON value")
	}
	return headers, nil
}

func headersError(err error) error {
	return fmt.Errorf("headers: the text is not JSON: %w", err)
}

func objectHeaders(dec *json.Decoder) ([]source.Header, error) {
	var headers []source.Header
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, headersError(err)
		}
		name, _ := token.(string) // a key of an object is a string
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, headersError(err)
		}
		value, err := headerValue(raw)
		if err != nil {
			return nil, err
		}
		headers = append(headers, source.Header{Name: name, Value: value})
	}
	if _, err := dec.Token(); err != nil {
		return nil, headersError(err)
	}
	return headers, nil
}

func pairHeaders(dec *json.Decoder) ([]source.Header, error) {
	var headers []source.Header
	for dec.More() {
		var pair []json.RawMessage
		if err := dec.Decode(&pair); err != nil || len(pair) != 2 {
			return nil, errors.New("headers: an element of the array is not a [name, value] pair")
		}
		var name *string
		if err := json.Unmarshal(pair[0], &name); err != nil || name == nil {
			return nil, errors.New("headers: the name in a [name, value] pair is not a string")
		}
		value, err := headerValue(pair[1])
		if err != nil {
			return nil, err
		}
		headers = append(headers, source.Header{Name: *name, Value: value})
	}
	if _, err := dec.Token(); err != nil {
		return nil, headersError(err)
	}
	return headers, nil
}

func headerValue(raw json.RawMessage) ([]byte, error) {
	switch raw[0] {
	case 'n':
		return nil, nil
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, headersError(err)
		}
		return []byte(s), nil
	case '{', '[':
		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return nil, headersError(err)
		}
		return b.Bytes(), nil
	default:
		return raw, nil
	}
}
