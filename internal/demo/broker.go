package demo

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

const (
	topicName  = "forwarder-demo"
	partitions = 12
)

// broker is where the demo's events go.
type broker struct {
	addrs []string
	topic string
	// detail is for the screen.
	detail string
	close  func(context.Context) error
}

// startBroker starts a Kafka-protocol broker in this process. It keeps its log in memory, so
// the log is cut: what is older than about 100 MiB has been checked long before.
func startBroker() (*broker, error) {
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.BrokerConfigs(map[string]string{"log.cleaner.backoff.ms": "1000"}),
	)
	if err != nil {
		return nil, err
	}
	err = cluster.CreateTopic(topicName, partitions, map[string]string{
		"segment.bytes":   strconv.Itoa(1 << 20),
		"retention.bytes": strconv.Itoa(8 << 20),
	})
	if err != nil {
		cluster.Close()
		return nil, fmt.Errorf("creating topic %s: %w", topicName, err)
	}
	addrs := cluster.ListenAddrs()
	return &broker{
		addrs: addrs, topic: topicName,
		detail: fmt.Sprintf("%s  topic %s, %d partitions (kfake, in this process)", addrs[0], topicName, partitions),
		close:  func(context.Context) error { cluster.Close(); return nil },
	}, nil
}

// useBrokers makes a topic on a cluster of the user's. Its name is new for every demo: the
// records of an earlier one must not be judged.
func useBrokers(ctx context.Context, addrs []string, now time.Time) (*broker, error) {
	topic := topicName + "-" + strconv.FormatInt(now.UnixMilli(), 36)
	if err := oracle.CreateTopic(ctx, addrs, topic, partitions, nil); err != nil {
		return nil, err
	}
	return &broker{
		addrs: addrs, topic: topic,
		detail: fmt.Sprintf("%s  topic %s, %d partitions (made for this demo, removed at its end)", addrs[0], topic, partitions),
		close:  func(ctx context.Context) error { return oracle.DeleteTopic(ctx, addrs, topic) },
	}, nil
}
