package postgres

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// MessagePrefix marks the logical messages that are events.
const MessagePrefix = "outbox"

// messages turns logical messages into events: those that pg_logical_emit_message wrote with our
// prefix, as part of a transaction. The content is JSON:
//
//	{"topic": "orders", "key": "42", "headers": {"type": "paid"}, "payload": {"amount": 7}}
//
// A payload that is a string goes out as its text, null or none as a tombstone, and anything else
// as it is written. Bytes go into payload_base64 in its place. Headers are those of a row.
type messages struct {
	lanes   int // the store's lane count
	note    func(what string, args ...any)
	ignored atomic.Uint64
}

// event returns nil for a message that is none of ours.
func (ms *messages) event(m logicalMessage, committed time.Time) *source.Event {
	if m.prefix != MessagePrefix {
		return nil
	}
	if !m.transactional {
		ms.note("messages outside of a transaction are no events: write them with pg_logical_emit_message(true, ...)",
			"lsn", m.lsn.String(), "count", ms.ignored.Add(1))
		return nil
	}
	ev := &source.Event{ID: int64(m.lsn), Ref: m.lsn.String(), Created: committed}
	if err := parseMessage(ev, m.content); err != nil {
		ev.Defect = fmt.Errorf("message: %w", err)
	}
	ev.Lane = lanes.LaneOfRow(int64(m.lsn/8), ms.lanes)
	if ev.Key != nil {
		ev.Lane = lanes.LaneOf(ev.Key, ms.lanes)
	}
	return ev
}

// messageContent is the JSON of a message.
type messageContent struct {
	Topic   *string         `json:"topic"`
	Key     *string         `json:"key"`
	Headers json.RawMessage `json:"headers"`
	Payload json.RawMessage `json:"payload"`
	Base64  *[]byte         `json:"payload_base64"`
}

func parseMessage(ev *source.Event, content []byte) error {
	var c messageContent
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return fmt.Errorf("an object with topic, key, headers and payload is wanted: %w", err)
	}
	if decoder.More() {
		return errors.New("something follows the object")
	}
	if c.Key != nil {
		ev.Key = []byte(*c.Key)
	}
	if c.Topic != nil {
		ev.Topic = *c.Topic
	}
	var err error
	if len(c.Headers) > 0 {
		if ev.Headers, err = parseHeaders(c.Headers); err != nil {
			return err
		}
	}
	hasPayload := len(c.Payload) > 0 && string(c.Payload) != "null"
	switch {
	case c.Topic == nil:
		return errors.New("it has no topic")
	case hasPayload && c.Base64 != nil:
		return errors.New("it has both payload and payload_base64")
	case c.Base64 != nil:
		ev.Payload = *c.Base64
	case hasPayload && c.Payload[0] == '"':
		if ev.Payload, err = unquote(c.Payload); err != nil {
			return err
		}
	case hasPayload:
		ev.Payload = c.Payload
	}
	return nil
}
