package sink

import (
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// partitioner hashes keys as the Java client does and spreads records without a key by the
// partitions' backlog. It is the client's own default partitioner, except that a record may
// carry the partition count to hash over: a group of events sets Record.Partition to the
// count that it was admitted with, and so a topic that grows while the group is handed over
// does not scatter its keys.
type partitioner struct {
	inner kgo.Partitioner
	seen  func(topic string) *atomic.Int32
}

// stickyBytes is how many bytes of records without a key go to one partition in a row; it is
// the Java client's batch size for the same purpose.
const stickyBytes = 64 << 10

func newPartitioner(seen func(topic string) *atomic.Int32) *partitioner {
	return &partitioner{kgo.UniformBytesPartitioner(stickyBytes, true, true, nil), seen}
}

func (p *partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	return &topicPartitioner{p.inner.ForTopic(topic).(kgo.TopicBackupPartitioner), p.seen(topic)}
}

type topicPartitioner struct {
	kgo.TopicBackupPartitioner
	seen *atomic.Int32 // the partition count that the client knows
}

func (t *topicPartitioner) PartitionByBackup(r *kgo.Record, n int, backlog kgo.TopicBackupIter) int {
	if t.seen.Load() != int32(n) {
		t.seen.Store(int32(n))
	}
	if pinned := int(r.Partition); r.Key != nil && pinned > 0 && pinned < n {
		n = pinned
	}
	return t.TopicBackupPartitioner.PartitionByBackup(r, n, backlog)
}
