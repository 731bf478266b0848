package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// event is what a payload says about itself.
type event struct {
	// Topic and Key repeat where the row was meant to go.
	Topic string `json:"topic"`
	Key   string `json:"key"`
	// Seq counts the events of (Topic, Key) from 1 in the order of their commits.
	Seq int64 `json:"seq"`
	// N is unique over everything the writer ever tried, so that a rolled-back event, whose
	// Seq is used again, can be told from the one that took its place.
	N int64 `json:"n"`
}

var errNoEvent = errors.New("payload is not an event of the oracle's writer")

const padding = "the quick brown fox jumps over the lazy dog while a forwarder carries it along "

// appendPayload appends the event as one JSON object, padded to about size bytes.
// Topic and key must not need escaping; both are checked where they enter the package.
func (e event) appendPayload(b []byte, size int) []byte {
	start := len(b)
	b = append(b, `{"topic":"`...)
	b = append(b, e.Topic...)
	b = append(b, `","key":"`...)
	b = append(b, e.Key...)
	b = append(b, `","seq":`...)
	b = strconv.AppendInt(b, e.Seq, 10)
	b = append(b, `,"n":`...)
	b = strconv.AppendInt(b, e.N, 10)
	const open, end = `,"pad":"`, `"}`
	if missing := size - (len(b) - start) - len(open) - len(end); missing > 0 {
		b = append(b, open...)
		for missing > 0 {
			// Starting at another place for each event keeps neighbours from being equal.
			at := int(e.N % int64(len(padding)))
			take := min(missing, len(padding)-at)
			b = append(b, padding[at:at+take]...)
			missing -= take
			if missing > 0 {
				take = min(missing, at)
				b = append(b, padding[:take]...)
				missing -= take
			}
		}
		b = append(b, '"')
	}
	return append(b, '}')
}

// row is the event as it stands in the outbox, with a payload of about size bytes.
func (e event) row(size int) row {
	return row{n: e.N, topic: e.Topic, key: e.Key, payload: e.appendPayload(nil, size)}
}

// parseEvent reads a payload that appendPayload wrote.
func parseEvent(payload []byte) (event, error) {
	var e event
	if err := json.Unmarshal(payload, &e); err != nil {
		return event{}, fmt.Errorf("%w: %w", errNoEvent, err)
	}
	if e.Topic == "" || e.Seq < 1 || e.N < 1 {
		return event{}, errNoEvent
	}
	return e, nil
}

// plainName says whether a name can stand in JSON and in SQL text as it is.
func plainName(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// KeyName is the key with the given number, counted from 0.
func KeyName(i int) string { return fmt.Sprintf("key-%06d", i) }
