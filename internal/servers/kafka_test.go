package servers

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func startKafka(t *testing.T, ctx context.Context, cfg KafkaConfig) *Kafka {
	t.Helper()
	k, err := StartKafka(ctx, cfg)
	check(t, err)
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func produce(t *testing.T, ctx context.Context, k *Kafka, values ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr()))
	check(t, err)
	defer client.Close()
	for _, v := range values {
		check(t, client.ProduceSync(ctx, &kgo.Record{Topic: "kept", Value: []byte(v)}).FirstErr())
	}
}

// expect reads the topic from its start until it has seen as many records as there should be.
func expect(t *testing.T, ctx context.Context, k *Kafka, values ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr()), kgo.ConsumeTopics("kept"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(t, err)
	defer client.Close()
	for i := 0; i < len(values); {
		fetches := client.PollFetches(ctx)
		check(t, fetches.Err())
		for _, r := range fetches.Records() {
			if i >= len(values) || string(r.Value) != values[i] {
				t.Fatalf("record %d of the topic is %q, want them to be %q", i, r.Value, values)
			}
			i++
		}
	}
}

func TestKafkaStopsIsKilledAndStartsOnTheSamePortAndData(t *testing.T) {
	ctx := within(t, 15*time.Minute)
	k := startKafka(t, ctx, KafkaConfig{Properties: map[string]string{"message.max.bytes": "2000000"}})
	addr := k.Addr()
	admin, err := kadm.NewOptClient(kgo.SeedBrokers(addr))
	check(t, err)
	defer admin.Close()
	_, err = admin.CreateTopic(ctx, 1, 1, nil, "kept")
	check(t, err)

	configs, err := admin.DescribeBrokerConfigs(ctx, 1)
	check(t, err)
	described, err := configs.On("1", nil)
	check(t, err)
	settings := make(map[string]string)
	for _, c := range described.Configs {
		settings[c.Key] = c.MaybeValue()
	}
	if got := settings["message.max.bytes"]; got != "2000000" {
		t.Errorf("message.max.bytes is %q, want what was asked for", got)
	}
	if got := settings["auto.create.topics.enable"]; got != "false" {
		t.Errorf("auto.create.topics.enable is %q, want false", got)
	}

	produce(t, ctx, k, "before")
	check(t, k.Stop())
	check(t, k.Stop()) // a second time does nothing
	if !isFree(k.port) || k.PID() != 0 {
		t.Errorf("the node still listens, or has process id %d, after Stop", k.PID())
	}

	check(t, k.Start(ctx))
	if k.Addr() != addr {
		t.Errorf("%s became %s", addr, k.Addr())
	}
	produce(t, ctx, k, "between")
	check(t, k.Kill())

	check(t, k.Start(ctx))
	check(t, k.Start(ctx)) // a second time does nothing
	produce(t, ctx, k, "after")
	expect(t, ctx, k, "before", "between", "after")
}
