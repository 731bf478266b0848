package sink

import (
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/source"
)

// IDHeader is the name of the header that carries the row's id, source.Event.Name. The name is
// reserved: an event's own header of this name does not reach the record.
const IDHeader = "id"

// maxIDDigits is the length of the longest int64. A longer source.Event.Ref costs an allocation.
const maxIDDigits = 20

// builder makes records of the events of one group out of two allocations.
type builder struct {
	headers []kgo.RecordHeader
	digits  []byte
	// reserved counts headers that were left out.
	reserved int
}

func newBuilder(slots []slot) *builder {
	n := len(slots)
	for i := range slots {
		n += len(slots[i].event.Headers)
	}
	return &builder{
		headers: make([]kgo.RecordHeader, 0, n),
		digits:  make([]byte, 0, maxIDDigits*len(slots)),
	}
}

// build fills r for the event. Key, payload and header values are shared with the event.
func (b *builder) build(r *kgo.Record, e *source.Event, timestamp time.Time) {
	first := len(b.headers)
	for _, h := range e.Headers {
		if h.Name == IDHeader {
			b.reserved++
			continue
		}
		b.headers = append(b.headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
	}
	start := len(b.digits)
	if e.Ref != "" {
		b.digits = append(b.digits, e.Ref...)
	} else {
		b.digits = strconv.AppendInt(b.digits, e.ID, 10)
	}
	b.headers = append(b.headers, kgo.RecordHeader{Key: IDHeader, Value: b.digits[start:len(b.digits):len(b.digits)]})

	r.Topic = e.Topic
	r.Key = e.Key
	r.Value = e.Payload
	r.Timestamp = timestamp
	r.Headers = b.headers[first:len(b.headers):len(b.headers)]
}

// batchHeader is the size of a version 2 record batch without records: base offset 8, length
// 4, leader epoch 4, magic 1, checksum 4, attributes 2, last offset delta 4, two timestamps
// of 8, producer id 8, producer epoch 2, base sequence 4, record count 4.
const batchHeader = 61

// batchBytes is the size of a record batch that holds only r, before compression. This is
// what a broker compares with max.message.bytes where the batch is not compressed.
func batchBytes(r *kgo.Record) int {
	body := 1 + // attributes
		1 + // timestamp delta: 0 for the first record
		1 + // offset delta: 0
		bytesSize(len(r.Key)) +
		bytesSize(len(r.Value)) +
		varintSize(len(r.Headers))
	for _, h := range r.Headers {
		body += bytesSize(len(h.Key)) + bytesSize(len(h.Value))
	}
	return batchHeader + varintSize(body) + body
}

// bytesSize is the size of a byte string with its length; nil takes one byte, as empty does.
func bytesSize(n int) int { return varintSize(n) + n }

// varintSize is the size of n >= 0 in the zigzag encoding.
func varintSize(n int) int {
	size := 1
	for u := uint64(n) << 1; u >= 0x80; u >>= 7 {
		size++
	}
	return size
}
