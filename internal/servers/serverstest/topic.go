package serverstest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Topic makes a topic for the test on the shared broker and returns its name. configs are
// topic settings (max.message.bytes ...). It is deleted when the test ends.
func Topic(t testing.TB, partitions int, configs map[string]string) string {
	t.Helper()
	addr := Kafka(t)
	name := uniqueName("test-")
	admin(t, addr, func(ctx context.Context, client *kadm.Client) error {
		settings := make(map[string]*string, len(configs))
		for k, v := range configs {
			settings[k] = &v
		}
		if _, err := client.CreateTopic(ctx, int32(partitions), 1, settings, name); err != nil {
			return err
		}
		return awaitLeaders(ctx, client, name, partitions)
	})
	t.Cleanup(func() {
		admin(t, addr, func(ctx context.Context, client *kadm.Client) error {
			_, err := client.DeleteTopic(ctx, name)
			if errors.Is(err, kerr.UnknownTopicOrPartition) { // the test deleted it
				return nil
			}
			return err
		})
	})
	return name
}

func admin(t testing.TB, addr string, do func(context.Context, *kadm.Client) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	client, err := kadm.NewOptClient(kgo.SeedBrokers(addr), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatalf("making a Kafka client: %v", err)
	}
	defer client.Close()
	if err := do(ctx, client); err != nil {
		t.Fatalf("administering the test's topic: %v", err)
	}
}

// awaitLeaders waits until metadata shows a leader for every partition: the answer to a
// creation does not wait for that.
func awaitLeaders(ctx context.Context, client *kadm.Client, topic string, partitions int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		metadata, err := client.Metadata(ctx, topic)
		if err != nil {
			return err
		}
		led := 0
		for _, p := range metadata.Topics[topic].Partitions {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		}
		if led == partitions {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
