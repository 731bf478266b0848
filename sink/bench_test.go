package sink

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/source"
)

// benchRuns makes a run of 500 events with 200-byte values for each lane, over many keys.
func benchRuns(topic string, lanes, keys int) [][]*source.Event {
	value := make([]byte, 200)
	for i := range value {
		value[i] = byte('a' + i*7%26)
	}
	runs := make([][]*source.Event, lanes)
	id := int64(0)
	for lane := range runs {
		for range 500 {
			id++
			runs[lane] = append(runs[lane], &source.Event{
				ID: id, Lane: source.Lane(lane), Topic: topic, Created: time.Now(), Payload: value,
				Key: []byte("key-" + strconv.Itoa(lane*1000000+int(id)%max(keys/lanes, 1))),
			})
		}
	}
	return runs
}

// BenchmarkSubmit measures acknowledged records from Submit to a real broker, driven as the
// engine drives it: one run in flight for each of 64 lanes, and each Submit takes the lanes
// that have come home.
func BenchmarkSubmit(b *testing.B) {
	for _, codec := range []string{"none", "lz4", "snappy"} {
		for _, keys := range []int{100_000, 64} {
			b.Run(fmt.Sprintf("%s/%d-keys", codec, keys), func(b *testing.B) { benchSubmit(b, codec, keys) })
		}
	}
}

func benchSubmit(b *testing.B, codec string, keys int) {
	const lanes = 64
	topic := serverstest.Topic(b, 12, nil)
	p, err := New(Config{Brokers: []string{serverstest.Kafka(b)}, Compression: codec, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	runs := benchRuns(topic, lanes, keys)

	var mu sync.Mutex
	home := make([]int, 0, lanes) // lanes that may submit
	left := make([]int, lanes)    // outcomes that a lane waits for
	for lane := range lanes {
		home = append(home, lane)
	}
	wake := make(chan struct{}, 1)
	acked := 0
	report := func(out []source.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		for _, o := range out {
			if o.Class != source.Acked {
				b.Errorf("event %d: %v (%v)", o.ID, o.Class, o.Err)
			}
			lane := int(o.ID-1) / 500
			if left[lane]--; left[lane] == 0 {
				home = append(home, lane)
			}
		}
		acked += len(out)
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for sent := 0; ; {
		mu.Lock()
		ready := home
		home = make([]int, 0, lanes)
		done := acked
		if sent < b.N {
			for _, lane := range ready {
				left[lane] = len(runs[lane])
			}
		}
		mu.Unlock()
		if sent >= b.N {
			if done >= sent {
				break
			}
			<-wake
			continue
		}
		if len(ready) == 0 {
			<-wake
			continue
		}
		batch := make([][]*source.Event, 0, len(ready))
		for _, lane := range ready {
			batch = append(batch, runs[lane])
			sent += len(runs[lane])
		}
		p.Submit(batch, report)
	}
	b.StopTimer()
	b.ReportMetric(float64(acked)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkBareClient is the client without the sink around it, for comparison.
func BenchmarkBareClient(b *testing.B) {
	topic := serverstest.Topic(b, 12, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(serverstest.Kafka(b)), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(32000), kgo.ProducerLinger(2*time.Millisecond))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	runs := benchRuns(topic, 64, 100_000)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			b.Error(err)
		}
		wg.Done()
	}
	wg.Add(b.N)
	for n := range b.N {
		e := runs[n/500%64][n%500]
		client.Produce(context.Background(), &kgo.Record{Topic: e.Topic, Key: e.Key, Value: e.Payload}, promise)
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
