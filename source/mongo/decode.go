package mongo

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// decoder turns documents into events. Memory is taken in small pieces, so that one slow event
// does not pin a page.
type decoder struct {
	fields    Fields
	canonical bool
	lanes     int
	topics    map[string]string // interned
	slab      []source.Event
}

// eventSlab is how many events are allocated at once.
const eventSlab = 32

// event returns the event of a document, without its ID.
func (d *decoder) event(doc bson.Raw) *source.Event {
	if len(d.slab) == 0 {
		d.slab = make([]source.Event, eventSlab)
	}
	ev := &d.slab[0]
	d.slab = d.slab[1:]
	id := doc.Lookup("_id")
	ev.Ref = refOf(id)
	var defects []error
	topic := doc.Lookup(d.fields.Topic)
	if topic.Type == bson.TypeString {
		ev.Topic = d.topic(topic)
	} else {
		defects = append(defects, fmt.Errorf("the topic is a %s: a string is wanted", typeName(topic.Type)))
	}
	key, err := keyBytes(d.optional(doc, d.fields.Key))
	if err != nil {
		defects = append(defects, err)
	}
	payload, err := payloadBytes(doc.Lookup(d.fields.Payload), d.canonical)
	if err != nil {
		defects = append(defects, fmt.Errorf("the payload: %w", err))
	}
	data := make([]byte, len(key)+len(payload))
	if key != nil {
		n := copy(data, key)
		ev.Key = data[:n:n]
	}
	ev.Lane = d.lane(id, ev.Key)
	if payload != nil {
		ev.Payload = data[len(key):]
		copy(ev.Payload, payload)
	}
	if ev.Headers, err = parseHeaders(d.optional(doc, d.fields.Headers), d.canonical); err != nil {
		defects = append(defects, err)
	}
	if t, ok := d.optional(doc, d.fields.CreatedAt).TimeOK(); ok {
		ev.Created = t
	}
	ev.Defect = errors.Join(defects...)
	return ev
}

func (d *decoder) optional(doc bson.Raw, field string) bson.RawValue {
	if field == "" {
		return bson.RawValue{}
	}
	return doc.Lookup(field)
}

// lane is that of a key, else one that the _id gives: a document without a key has no order to
// keep.
func (d *decoder) lane(id bson.RawValue, key []byte) source.Lane {
	if key == nil {
		key = id.Value
	}
	return lanes.LaneOf(key, d.lanes)
}

// maxTopics bounds the topic names that are kept to be shared by events.
const maxTopics = 4096

func (d *decoder) topic(v bson.RawValue) string {
	b, err := plainBytes(v)
	if err != nil {
		return ""
	}
	if topic, ok := d.topics[string(b)]; ok {
		return topic
	}
	if len(d.topics) >= maxTopics {
		clear(d.topics)
	}
	topic := strings.Clone(string(b))
	d.topics[topic] = topic
	return topic
}

// createdOf is when a document was created, as far as it tells: by its date, else by the time
// that the server gave it.
func createdOf(doc bson.Raw, f Fields) (created time.Time, ok bool) {
	if f.CreatedAt != "" {
		if t, ok := doc.Lookup(f.CreatedAt).TimeOK(); ok {
			return t, true
		}
	}
	if t, _, ok := doc.Lookup(f.Seq).TimestampOK(); ok && t > 0 {
		return time.Unix(int64(t), 0), true
	}
	return time.Time{}, false
}
