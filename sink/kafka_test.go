package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/source"
)

// The tests of this file need Apache Kafka: they are about what it does.

func TestC19C71KafkaLimitIsRaised(t *testing.T) {
	brokers := []string{serverstest.Kafka(t)}
	topic := serverstest.Topic(t, 3, map[string]string{"max.message.bytes": "2000"})
	p, _ := newProducer(t, brokers, nil)
	got := submit(t, p,
		event(1, topic, "k", strings.Repeat("x", 5000)),
		event(2, topic, "k", "ten bytes!"),
		event(3, topic, "other", "ten bytes!"),
	)
	wantTooLarge(t, got[1], topic, "max.message.bytes", 2000)
	wantClass(t, got, map[int64]source.Class{2: source.HeldBack, 3: source.Acked})
	setTopicConfig(t, brokers, topic, "max.message.bytes", "20000")
	await(t, "the raised limit to be seen", func() bool {
		return submit(t, p, event(1, topic, "k", strings.Repeat("x", 5000)))[1].Class == source.Acked
	})
	allAcked(t, submit(t, p, event(2, topic, "k", "ten bytes!")))
	if got := ids(t, consume(t, brokers, topic, 3), "k"); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("the key's records are %v, want 1 2", got)
	}
}

// Around the limit no size is taken by us and refused by Kafka.
func TestC71KafkaNoSizeFallsBetweenTheLimits(t *testing.T) {
	const limit = 2000
	topic := serverstest.Topic(t, 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
	p, _ := newProducer(t, []string{serverstest.Kafka(t)}, func(cfg *Config) { cfg.Compression = "none" })
	var acked, rejected int
	for n := limit - 100; n < limit; n++ {
		switch o := submit(t, p, event(int64(n), topic, "k", strings.Repeat("x", n)))[int64(n)]; o.Class {
		case source.Acked:
			acked++
		case source.Record:
			rejected++
		default:
			t.Fatalf("payload of %d bytes: outcome %v (%v)", n, o.Class, o.Err)
		}
	}
	if acked == 0 || rejected == 0 {
		t.Fatalf("%d sizes pass and %d do not: the test misses the limit", acked, rejected)
	}
}

// Kafka refuses a whole batch for one timestamp; events outside the window do not get there.
func TestC36KafkaTimestampWindow(t *testing.T) {
	brokers := []string{serverstest.Kafka(t)}
	topic := serverstest.Topic(t, 1, map[string]string{"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "60000"})
	p, _ := newProducer(t, brokers, nil)
	began := time.Now().Truncate(time.Millisecond)
	created := []time.Time{{}, began.Add(-2 * time.Hour), began.Add(2 * time.Hour), began.Add(-30 * time.Minute), began.Add(10 * time.Second)}
	var run []*source.Event
	for i, at := range created {
		e := event(int64(i), topic, "k", "x")
		e.Created = at
		run = append(run, e)
	}
	allAcked(t, submit(t, p, run...))
	for id, r := range byID(t, brokers, topic, len(run)) {
		if own := id >= 3; own != r.Timestamp.Equal(created[id]) {
			t.Errorf("event %d of %v has timestamp %v", id, created[id], r.Timestamp)
		}
	}
}

func TestC73C74KafkaTopicComesGoesAndComes(t *testing.T) {
	brokers := []string{serverstest.Kafka(t)}
	topic := serverstest.Topic(t, 6, nil)
	missing := topic + "-missing"
	p, _ := newProducer(t, brokers, nil)
	got := submit(t, p, append(events(topic, 1, 100, 20), event(1000, missing, "a", "x"))...)
	if o := got[1000]; o.Class != source.Topic || !errors.Is(o.Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("the missing topic: outcome %v (%v)", o.Class, o.Err)
	}
	delete(got, 1000)
	allAcked(t, got)

	withAdmin(t, brokers, func(ctx context.Context, adm *kadm.Client) error {
		_, err := adm.DeleteTopic(ctx, topic)
		return err
	})
	await(t, "the deletion to be noticed", func() bool {
		return submit(t, p, event(101, topic, "key-0", "x"))[101].Class == source.Topic
	})
	createTopic(t, brokers, topic, 3, nil)
	var pending []*source.Event = events(topic, 101, 100, 20)
	await(t, "the new topic to take the events", func() bool {
		got := submit(t, p, pending...)
		pending = slices.DeleteFunc(pending, func(e *source.Event) bool { return got[e.ID].Class == source.Acked })
		return len(pending) == 0
	})
	seen := make(map[int64]bool)
	for _, r := range consume(t, brokers, topic, end(t, brokers, topic)) {
		seen[recordID(t, r)] = true
	}
	for id := int64(101); id <= 200; id++ {
		if !seen[id] {
			t.Errorf("event %d is not in the new topic", id)
		}
	}
}

// A broker that is killed and comes back finds each record of the flight once.
func TestC21KafkaKilledInFlight(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	k, err := servers.StartKafka(ctx, servers.KafkaConfig{})
	if err != nil {
		t.Fatalf("starting a broker: %v", err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Errorf("closing the broker: %v", err)
		}
	})
	brokers := []string{k.Addr()}
	createTopic(t, brokers, "orders", 3, nil)
	p, logs := newProducer(t, brokers, nil)
	await(t, "the new topic", func() bool { return submit(t, p, event(1, "orders", "a", "x"))[1].Class == source.Acked })

	// Runs go out one after the other; the broker is killed among them.
	r := newReceipts(t)
	const runs, size = 40, 250
	for i := range runs {
		p.Submit([][]*source.Event{events("orders", int64(2+i*size), size, 25)}, r.report)
		if i == runs/2 {
			if err := k.Kill(); err != nil {
				t.Fatalf("killing the broker: %v", err)
			}
		}
	}
	await(t, "the absence to be noticed", func() bool { return len(p.Waiting()) > 0 })
	if err := k.Start(ctx); err != nil {
		t.Fatalf("starting the broker again: %v", err)
	}
	allAcked(t, r.await(runs*size))
	await(t, "all to be well", func() bool { return len(p.Waiting()) == 0 })

	last := make(map[string]int64)
	records := consume(t, brokers, "orders", end(t, brokers, "orders"))
	for _, rec := range records {
		id := recordID(t, rec)
		if id <= last[string(rec.Key)] {
			t.Errorf("key %s: event %d comes after %d", rec.Key, id, last[string(rec.Key)])
		}
		last[string(rec.Key)] = id
	}
	if len(records) != runs*size+1 {
		t.Errorf("the topic holds %d records, want %d", len(records), runs*size+1)
	}
	if logs.count("no kafka broker is reachable") != 1 {
		t.Errorf("want one line for the outage:\n%s", logs)
	}
}
