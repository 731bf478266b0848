package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// secondBroker starts a broker that joins the cluster of another one, whose partitions have no
// leader while it is away.
func secondBroker(t *testing.T, first *servers.Kafka) *servers.Kafka {
	t.Helper()
	second, err := servers.StartKafka(t.Context(), servers.KafkaConfig{Join: first})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	return second
}

// leaderless returns the partitions of a topic that have no leader.
func (s *stage) leaderless(topic string) []int32 {
	s.t.Helper()
	topics, err := s.kafka.Metadata(s.t.Context(), topic)
	if err != nil {
		s.t.Fatal(err)
	}
	var without []int32
	for _, p := range topics.Topics[topic].Partitions {
		if p.Leader < 0 {
			without = append(without, p.Partition)
		}
	}
	return without
}

// countIn is the number of records in those partitions that have a leader.
func (s *stage) countIn(topic string) int {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	ends, _ := s.kafka.ListEndOffsets(ctx, topic) // the error is that of the others
	n := 0
	ends.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			n += int(o.Offset)
		}
	})
	return n
}

// TestC96DeadPartition takes the leader of half of the partitions away while every lane has keys of
// them: their keys wait and all others go on; once it is back everything arrives, in order and once.
func TestC96DeadPartition(t *testing.T) {
	first := privateKafka(t)
	second := secondBroker(t, first)
	s := newStage(t, nil, first)
	s.onlyLanes(4)
	const keys, rounds = 60, 10
	topic := s.makeTopic("orders", 6, nil)
	p := s.start(inJSON)
	write := func(round int) {
		t.Helper()
		var rows []row
		for k := range keys {
			rows = append(rows, row{topic, fmt.Sprint("k", k), strconv.Itoa(round), nil})
		}
		s.put(rows...)
	}
	write(0)
	s.arrive(topic, keys, drainLimit)
	partition := map[string]int32{}
	for _, r := range s.records(topic) {
		partition[string(r.Key)] = r.Partition
	}

	if err := second.Kill(); err != nil {
		t.Fatal(err)
	}
	var dead []int32
	eventually(t, 30*time.Second, "partitions have no leader", func() bool {
		dead = s.leaderless(topic)
		return len(dead) > 0
	})
	waiting := 0
	for _, at := range partition {
		if slices.Contains(dead, at) {
			waiting++
		}
	}
	if waiting == 0 || waiting == keys {
		t.Fatalf("%d of %d keys lie in the dead partitions %v", waiting, keys, dead)
	}
	fine := keys - waiting
	for round := 1; round <= rounds; round++ {
		begun := time.Now()
		write(round)
		eventually(t, 20*time.Second, fmt.Sprintf("round %d of the other keys is through", round), func() bool { return s.countIn(topic) >= fine*(round+1) })
		t.Logf("round %d of %d keys took %s while %d wait", round, fine, time.Since(begun).Round(time.Millisecond), waiting)
	}
	list := p.awaitParked(waiting)
	for _, w := range list {
		if w.Part != "key" || w.Topic != topic || w.Key == nil || !slices.Contains(dead, partition[*w.Key]) || !strings.Contains(w.Reason, "does not acknowledge") {
			t.Errorf("what waits has %+v", w)
		}
	}
	if m := p.metrics(); int(m["keys_stalled"]) != waiting || int(m["events_stalled"]) < waiting || m["parked.lane"] != 0 {
		t.Errorf("%v keys wait for %v events, %v lanes", m["keys_stalled"], m["events_stalled"], m["parked.lane"])
	}
	if n := p.warnings("get no answer"); n != 1 {
		t.Errorf("%d warnings of events without an answer, want one", n)
	}
	eventually(t, drainLimit, "only rows of the keys that wait are left", func() bool { return s.left() == int64(waiting*rounds) })

	if err := second.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.awaitEmpty()
	p.awaitParked(0)
	s.arrive(topic, keys*(rounds+1), drainLimit)
	if m := p.metrics(); m["order_violations_total"] != 0 || m["events_repeated_total"] != 0 || m["keys_stalled"] != 0 {
		t.Errorf("in the end %v violations, %v repeats, %v keys wait", m["order_violations_total"], m["events_repeated_total"], m["keys_stalled"])
	}
	p.stop()
	records := s.records(topic)
	byID(t, records)
	for k := range keys {
		if got := values(records, fmt.Sprint("k", k)); got != "0,1,2,3,4,5,6,7,8,9,10" {
			t.Errorf("key k%d has %s", k, got)
		}
	}
}
