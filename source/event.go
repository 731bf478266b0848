package source

import (
	"strconv"
	"time"
)

// Lane is a share of the key space, 0 <= Lane < the store's lane count. One replica
// owns it, and it is the unit of order and of "one batch in flight".
type Lane uint16

// Event is one outbox row on its way to the broker. It is immutable once it has been read.
type Event struct {
	// ID is the row's id. Within one source it is unique.
	ID int64
	// Ref is what users call the row where that is not ID in decimal: a document's _id, a
	// message's LSN. Empty otherwise.
	Ref string
	// Lane is computed from the same bytes as Key.
	Lane Lane
	// Topic is the Kafka topic, as it stands in the row.
	Topic string
	// Key holds the ordering key's bytes; nil is a row without a key, empty is a key of
	// no bytes. A row without a key has no order to keep.
	Key []byte
	// Payload holds the value's bytes as the database prints them; nil is a tombstone.
	Payload []byte
	// Headers are in stored order; a name may occur twice.
	Headers []Header
	// Created is when the event was created; the zero time where the row's value cannot be
	// a record's timestamp ('infinity').
	Created time.Time
	// Defect says why the row cannot become a record (malformed headers); nil for a good row.
	Defect error
}

// Header is one record header. A nil Value is Kafka's null header value.
type Header struct {
	Name  string
	Value []byte
}

// Name is what users call the row: the id as it stands in the database. It goes out as the
// record's "id" header.
func (e *Event) Name() string {
	if e.Ref != "" {
		return e.Ref
	}
	return strconv.FormatInt(e.ID, 10)
}

// Size is the number of bytes that the event holds in memory, with a flat share for the
// structures around it.
func (e *Event) Size() int {
	n := eventOverhead + len(e.Ref) + len(e.Topic) + len(e.Key) + len(e.Payload)
	for _, h := range e.Headers {
		n += headerOverhead + len(h.Name) + len(h.Value)
	}
	return n
}

// The flat shares in Event.Size: the Event and its bookkeeping, and a header's two slices.
const (
	eventOverhead  = 256
	headerOverhead = 64
)

// TopicKey names an ordered sequence of events: within one topic the events of one key.
type TopicKey struct {
	Topic string
	Key   string
}

// TopicKey returns the sequence that the event belongs to. It is only meaningful for an
// event with a key.
func (e *Event) TopicKey() TopicKey { return TopicKey{e.Topic, string(e.Key)} }
