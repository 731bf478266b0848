package sink

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/source"
)

type vector struct {
	key       []byte
	partition map[int]int
}

// vectors reads what the Java client chooses; see testdata/Murmur2Vectors.java.
func vectors(t *testing.T) []vector {
	t.Helper()
	data, err := os.ReadFile("testdata/murmur2.tsv")
	if err != nil {
		t.Fatalf("reading the vectors: %v", err)
	}
	var out []vector
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 6 {
			t.Fatalf("the line %q has %d fields", line, len(f))
		}
		key, err := hex.DecodeString(f[0])
		if err != nil {
			t.Fatalf("the line %q: %v", line, err)
		}
		v := vector{key, make(map[int]int)}
		for i, n := range []int{3, 12, 100, 1<<31 - 1} {
			if v.partition[n], err = strconv.Atoi(f[2+i]); err != nil {
				t.Fatalf("the line %q: %v", line, err)
			}
		}
		out = append(out, v)
	}
	if len(out) != 1000 {
		t.Fatalf("there are %d vectors, want 1000", len(out))
	}
	return out
}

func testPartitioner() (kgo.TopicBackupPartitioner, *atomic.Int32) {
	var seen atomic.Int32
	p := newPartitioner(func(string) *atomic.Int32 { return &seen }).ForTopic("t")
	return p.(kgo.TopicBackupPartitioner), &seen
}

func TestC76Murmur2Vectors(t *testing.T) {
	p, _ := testPartitioner()
	var long, empty int
	for _, v := range vectors(t) {
		r := &kgo.Record{Key: v.key}
		if !p.RequiresConsistency(r) {
			t.Fatalf("key %x may go anywhere", v.key)
		}
		for n, want := range v.partition {
			if got := p.PartitionByBackup(r, n, nil); got != want {
				t.Errorf("key %x: partition %d of %d, the Java client chooses %d", v.key, got, n, want)
			}
		}
		if len(v.key) == 0 {
			empty++
		}
		if len(v.key) > 255 {
			long++
		}
	}
	if long == 0 || empty != 1 {
		t.Errorf("the vectors have %d long keys and %d empty ones", long, empty)
	}
}

// The records on the broker are where the Java client would have put them.
func TestC76PartitionsOnTheBroker(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(12, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	all := vectors(t)
	run := make([]*source.Event, len(all))
	for i, v := range all {
		run[i] = &source.Event{ID: int64(i), Topic: "orders", Key: v.key, Payload: []byte("x")}
	}
	allAcked(t, submit(t, p, run...))
	for _, r := range consume(t, c.ListenAddrs(), "orders", len(all)) {
		id := recordID(t, r)
		if want := all[id].partition[12]; int(r.Partition) != want {
			t.Errorf("key %x is on partition %d, the Java client chooses %d", r.Key, r.Partition, want)
		}
	}
}

func TestC75GroupKeepsItsPartitionCount(t *testing.T) {
	p, seen := testPartitioner()
	for _, v := range vectors(t) {
		// The client has learnt of 12 partitions, and the group was admitted with 3.
		if got := p.PartitionByBackup(&kgo.Record{Key: v.key, Partition: 3}, 12, nil); got != v.partition[3] {
			t.Fatalf("key %x: partition %d, want %d of the pinned 3", v.key, got, v.partition[3])
		}
		// A count above the client's cannot be used.
		if got := p.PartitionByBackup(&kgo.Record{Key: v.key, Partition: 100}, 12, nil); got != v.partition[12] {
			t.Fatalf("key %x: partition %d, want %d of the client's 12", v.key, got, v.partition[12])
		}
	}
	if seen.Load() != 12 {
		t.Errorf("the count seen is %d, want 12", seen.Load())
	}
}
