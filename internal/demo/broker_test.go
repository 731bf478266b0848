package demo

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestEmbeddedBrokerForgets writes more than the broker keeps: a demo that runs for a day must
// not fill the memory.
func TestEmbeddedBrokerForgets(t *testing.T) {
	b, err := startBroker()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const size, count, kept = 256 << 10, 64, 8 << 20
	for range count {
		record := &kgo.Record{Topic: b.topic, Value: make([]byte, size)}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	admin := kadm.NewClient(client)
	for {
		offsets, err := admin.ListStartOffsets(ctx, b.topic)
		if err != nil {
			t.Fatal(err)
		}
		start, found := offsets.Lookup(b.topic, 0)
		if !found || start.Err != nil {
			t.Fatalf("partition 0: found %v, %v", found, start.Err)
		}
		if held := (count - start.Offset) * size; held <= kept {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the log still begins at %d of %d", start.Offset, count)
		}
	}
}
