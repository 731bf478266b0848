package oracle

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// DeleteTopic deletes a topic.
func DeleteTopic(ctx context.Context, brokers []string, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return fmt.Errorf("making an admin client: %w", err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).DeleteTopic(ctx, topic); err != nil {
		return fmt.Errorf("deleting topic %s: %w", topic, err)
	}
	return nil
}
