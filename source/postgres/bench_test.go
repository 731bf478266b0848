package postgres

import (
	"testing"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// BenchmarkRead reads full pages of events with 200 bytes; with headers and without.
func BenchmarkRead(b *testing.B) {
	for name, headers := range map[string]string{"plain": "NULL", "headers": `'{"trace": "0123456789abcdef", "n": 17}'`} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b, outbox, `INSERT INTO outbox (topic, key, payload, headers)
				SELECT 'events', 'key-' || i % 1000, decode(repeat('ab', 200), 'hex'), `+headers+` FROM generate_series(1, 8192) i`)
			s := w.open()
			read := &source.Read{Floor: lanes.Start, Limit: 8192, Bytes: 1 << 30}
			page(b, s, read)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n += len(page(b, s, read).Events)
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
		})
	}
}

// BenchmarkParseHeaders is what a row with headers costs beyond one without.
func BenchmarkParseHeaders(b *testing.B) {
	text := []byte(`{"n": 17, "trace": "0123456789abcdef", "type": "order.created"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseHeaders(text); err != nil {
			b.Fatal(err)
		}
	}
}
