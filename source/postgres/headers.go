package postgres

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/outbox-forwarder/forwarder/source"
)

// parseHeaders reads record headers from JSON text, in stored order:
//
//	{"name": "text", "n": 1.10, "ok": true, "none": null, "o": {"k": 1}}
//	[["name", "text"], ["name", "again"]]
//
// Text goes out without quotes, null as Kafka's null, numbers and booleans as they are
// written, and objects and arrays as compact JSON. Anything else is an error.
//
// The text is checked as a whole and then cut into its values, since decoding it value by
// value costs several times as much as everything else about a row.
func parseHeaders(text []byte) ([]source.Header, error) {
	if !json.Valid(text) {
		return nil, fmt.Errorf("headers: the text is not JSON: %w", json.Unmarshal(text, new(json.RawMessage)))
	}
	// The driver uses the text's memory again.
	v := values{bytes.TrimLeft(bytes.Clone(text), blanks)}
	start := v.rest[0]
	v.rest = v.rest[1:]
	switch start {
	case '{':
		return objectHeaders(v)
	case '[':
		return pairHeaders(v)
	case 'n':
		return nil, nil // JSON null is no headers, as NULL is
	}
	return nil, errors.New("headers: a JSON object or an array of [name, value] pairs is wanted")
}

func objectHeaders(v values) ([]source.Header, error) {
	var headers []source.Header
	for name := v.next(); name != nil; name = v.next() {
		h, err := newHeader(name, v.next())
		if err != nil {
			return nil, err
		}
		headers = append(headers, h)
	}
	return headers, nil
}

func pairHeaders(v values) ([]source.Header, error) {
	var headers []source.Header
	for element := v.next(); element != nil; element = v.next() {
		if element[0] != '[' {
			return nil, errNoPair
		}
		pair := values{element[1:]}
		name, value := pair.next(), pair.next()
		if name == nil || value == nil || pair.next() != nil {
			return nil, errNoPair
		}
		if name[0] != '"' {
			return nil, errors.New("headers: the name in a [name, value] pair is not a string")
		}
		h, err := newHeader(name, value)
		if err != nil {
			return nil, err
		}
		headers = append(headers, h)
	}
	return headers, nil
}

var errNoPair = errors.New("headers: an element of the array is not a [name, value] pair")

func newHeader(name, value []byte) (source.Header, error) {
	n, err := unquote(name)
	if err != nil {
		return source.Header{}, err
	}
	h := source.Header{Name: string(n)}
	switch value[0] {
	case 'n':
	case '"':
		h.Value, err = unquote(value)
	case '{', '[':
		var b bytes.Buffer
		err = json.Compact(&b, value)
		h.Value = b.Bytes()
	default:
		h.Value = value
	}
	return h, err
}

// unquote returns the text of a JSON string, in the same memory where nothing in it is escaped.
func unquote(quoted []byte) ([]byte, error) {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return inner[:len(inner):len(inner)], nil
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return nil, fmt.Errorf("headers: reading a string: %w", err)
	}
	return []byte(s), nil
}

// values cuts the inside of a valid JSON object or array into its values, names included.
type values struct{ rest []byte }

const (
	blanks     = " \t\r\n"
	separators = blanks + ",:"
)

// next returns the next value as it is written, and nil at the closing bracket. It may be
// called again behind that only where nothing follows.
func (v *values) next() []byte {
	v.rest = bytes.TrimLeft(v.rest, separators)
	if len(v.rest) == 0 || v.rest[0] == '}' || v.rest[0] == ']' {
		v.rest = nil
		return nil
	}
	n := valueLen(v.rest)
	value := v.rest[:n:n]
	v.rest = v.rest[n:]
	return value
}

// valueLen is the length of the valid JSON value at the start of b, which something follows.
func valueLen(b []byte) int {
	switch b[0] {
	case '"':
		return stringLen(b)
	case '{', '[':
		depth := 0
		for i := 0; ; i++ {
			switch b[i] {
			case '"':
				i += stringLen(b[i:]) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
	}
	return bytes.IndexAny(b, separators+"}]")
}

func stringLen(b []byte) int {
	for i := 1; ; i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}
