package serverstest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

func TestMain(m *testing.M) { serverstest.Main(m) }

func TestDatabaseIsTheTestsOwnAndDroppedAtItsEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var first string
	t.Run("first", func(inner *testing.T) {
		first = serverstest.Database(inner)
		query(ctx, inner, first, "CREATE TABLE outbox (id bigint)")
		// A session that outlives its test must not keep the database.
		forgotten, err := pgx.Connect(ctx, first)
		if err != nil {
			inner.Fatal(err)
		}
		t.Cleanup(func() { _ = forgotten.Close(context.Background()) })
	})
	if conn, err := pgx.Connect(ctx, first); err == nil {
		_ = conn.Close(ctx)
		t.Fatal("the first test's database is still there")
	}
	second := serverstest.Database(t)
	if second == first {
		t.Fatalf("both tests got %s", first)
	}
	query(ctx, t, second, "CREATE TABLE outbox (id bigint)")
}

func query(ctx context.Context, t *testing.T, target, statement string) {
	t.Helper()
	conn, err := pgx.Connect(ctx, target)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatal(err)
	}
}

func TestTopicHasItsPartitionsAndSettings(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	topic := serverstest.Topic(t, 3, map[string]string{"max.message.bytes": "1000"})
	client, err := kgo.NewClient(
		kgo.SeedBrokers(serverstest.Kafka(t)),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for partition := range int32(3) {
		small := &kgo.Record{Topic: topic, Partition: partition, Value: make([]byte, 100)}
		if err := client.ProduceSync(ctx, small).FirstErr(); err != nil {
			t.Errorf("partition %d: %v", partition, err)
		}
	}
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: make([]byte, 2000)}).FirstErr(); err == nil {
		t.Error("a record past the topic's max.message.bytes was taken")
	}
}
