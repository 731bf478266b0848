package oracle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// CreateTopic creates a topic with one replica and returns when it can be used.
func CreateTopic(ctx context.Context, brokers []string, topic string, partitions int32, configs map[string]string) error {
	return withAdmin(brokers, func(admin *kadm.Client) error {
		values := map[string]*string{}
		for name, value := range configs {
			values[name] = &value
		}
		if _, err := admin.CreateTopic(ctx, partitions, 1, values, topic); err != nil {
			return fmt.Errorf("creating topic %s: %w", topic, err)
		}
		_, err := listEnds(ctx, admin, topic)
		return err
	})
}

// AwaitTopic returns when every partition of a topic answers. A client that comes before that
// waits for about a second until it tries again, which spoils the first latencies.
func AwaitTopic(ctx context.Context, brokers []string, topic string) error {
	return withAdmin(brokers, func(admin *kadm.Client) error {
		_, err := listEnds(ctx, admin, topic)
		return err
	})
}

// DeleteTopic deletes a topic.
func DeleteTopic(ctx context.Context, brokers []string, topic string) error {
	return withAdmin(brokers, func(admin *kadm.Client) error {
		if _, err := admin.DeleteTopic(ctx, topic); err != nil {
			return fmt.Errorf("deleting topic %s: %w", topic, err)
		}
		return nil
	})
}

func withAdmin(brokers []string, f func(*kadm.Client) error) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return fmt.Errorf("making an admin client: %w", err)
	}
	defer client.Close()
	return f(kadm.NewClient(client))
}

// listEnds returns the end of every partition of the topics. It waits for those that do not
// answer yet: a topic that was just created, a broker that has just come back.
func listEnds(ctx context.Context, admin *kadm.Client, topics ...string) (kadm.ListedOffsets, error) {
	for {
		ends, err := admin.ListEndOffsets(ctx, topics...)
		if err == nil {
			err = ends.Error()
		}
		if err == nil {
			return ends, nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return nil, fmt.Errorf("asking for the end of the topics: %w", errors.Join(err, ctx.Err()))
		}
	}
}
