package sink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-forwarder/forwarder/source"
)

func TestC73MissingTopicDelaysNobody(t *testing.T) {
	// The broker would create topics if it were asked to.
	c := fakeCluster(t, kfake.SeedTopics(3, "orders"), kfake.AllowAutoTopicCreation())
	p, _ := newProducer(t, c.ListenAddrs(), nil)

	began := time.Now()
	got := submit(t, p, event(1, "missing-topic", "a", "x"), event(2, "orders", "a", "x"), event(3, "missing-topic", "b", "x"))
	wantClass(t, got, map[int64]source.Class{1: source.Topic, 2: source.Acked, 3: source.Topic})
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the missing topic was reported after %v", took)
	}
	if !errors.Is(got[1].Err, kerr.UnknownTopicOrPartition) || !strings.Contains(got[1].Err.Error(), `"missing-topic"`) {
		t.Errorf("the error %v does not name the topic", got[1].Err)
	}
	if c.TopicInfo("missing-topic") != nil {
		t.Fatal("the topic was created")
	}

	// It is made: events flow without a restart.
	createTopic(t, c.ListenAddrs(), "missing-topic", 1, nil)
	await(t, "the new topic to be seen", func() bool {
		return submit(t, p, event(1, "missing-topic", "a", "x"))[1].Class == source.Acked
	})
	allAcked(t, submit(t, p, event(3, "missing-topic", "b", "x")))
}

// Questions about a missing topic are not asked more often than twice a second, however
// often its events are submitted.
func TestC73MissingTopicIsNotAskedForInALoop(t *testing.T) {
	c := fakeCluster(t)
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	questions := make(chan struct{}, 10000)
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, rt := range req.(*kmsg.MetadataRequest).Topics {
			if rt.Topic != nil && *rt.Topic == "missing" {
				questions <- struct{}{}
			}
		}
		return nil, nil, false
	})
	began := time.Now()
	n := int64(0)
	for ; n < 2000; n++ {
		if o := submit(t, p, event(n, "missing", "a", "x"))[n]; o.Class != source.Topic {
			t.Fatalf("outcome %v (%v)", o.Class, o.Err)
		}
	}
	if most := 1 + int(time.Since(began)/recheckAfter); len(questions) > most {
		t.Errorf("%d questions in %v, want at most %d", len(questions), time.Since(began), most)
	}
}

func TestC73SlowAnswerHoldsOnlyItsTopic(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders", "new"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))

	answer := make(chan struct{})
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, rt := range req.(*kmsg.MetadataRequest).Topics {
			if rt.Topic != nil && *rt.Topic == "new" {
				sleepUntil(c, answer)
			}
		}
		return nil, nil, false
	})
	slow := newReceipts(t)
	p.Submit([][]*source.Event{{event(2, "new", "a", "1"), event(3, "orders", "b", "x"), event(4, "new", "a", "2")}}, slow.report)
	for id := int64(10); id < 30; id++ {
		allAcked(t, submit(t, p, event(id, "orders", "a", "x")))
	}
	await(t, "the known topic's event of the mixed run", func() bool { _, ok := slow.get(3); return ok })
	if slow.len() != 1 {
		t.Fatalf("the new topic's events have outcomes before its answer")
	}
	// Events of the topic that come while it waits queue behind the earlier ones.
	later := newReceipts(t)
	p.Submit([][]*source.Event{{event(5, "new", "a", "3")}}, later.report)
	close(answer)
	allAcked(t, slow.await(3))
	allAcked(t, later.await(1))
	if got := fmt.Sprint(ids(t, consume(t, c.ListenAddrs(), "new", 3), "a")); got != "[2 4 5]" {
		t.Errorf("the new topic holds %s, want [2 4 5]", got)
	}
}

// Rows may name any number of topics that do not exist; their names do not pile up.
func TestC73MissingTopicsAreForgotten(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))
	var run []*source.Event
	for id := int64(2); id < mostTopics+100; id++ {
		run = append(run, event(id, fmt.Sprintf("missing-%d", id), "a", "x"))
	}
	for id, o := range submit(t, p, run...) {
		if o.Class != source.Topic {
			t.Fatalf("event %d: outcome %v (%v)", id, o.Class, o.Err)
		}
	}
	// They were last used long ago, and nobody has looked since.
	for _, topic := range p.allTopics() {
		topic.mu.Lock()
		topic.used = topic.used.Add(-2 * missingKeep)
		topic.mu.Unlock()
	}
	p.serial.Lock()
	p.forgot = time.Time{}
	p.serial.Unlock()
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))
	if left := p.allTopics(); len(left) != 1 || left[0].name != "orders" {
		t.Errorf("%d topics are remembered, want the existing one", len(left))
	}
}

func TestC74TopicDeletedAndMadeAgain(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(6, "orders"))
	p, logs := newProducer(t, c.ListenAddrs(), nil)
	allAcked(t, submit(t, p, events("orders", 1, 100, 20)...))
	withAdmin(t, c.ListenAddrs(), func(ctx context.Context, adm *kadm.Client) error {
		if _, err := adm.DeleteTopic(ctx, "orders"); err != nil {
			return err
		}
		_, err := adm.CreateTopic(ctx, 3, 1, nil, "orders")
		return err
	})
	pending := events("orders", 101, 100, 20)
	await(t, "the new topic to take the events", func() bool {
		var failed []*source.Event
		got := submit(t, p, pending...)
		for _, e := range pending {
			switch o := got[e.ID]; o.Class {
			case source.Acked:
			case source.Topic, source.Broker, source.HeldBack:
				failed = append(failed, e)
			default:
				t.Fatalf("event %d: outcome %v (%v)", e.ID, o.Class, o.Err)
			}
		}
		pending = failed
		return len(pending) == 0
	})
	all := placements(t, consume(t, c.ListenAddrs(), "orders", 100))
	if len(all) != 100 {
		t.Errorf("the new topic holds %d events, want 100", len(all))
	}
	if n := logs.count("made again"); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, logs)
	}
}

func TestC75MorePartitions(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(3, "orders"))
	p, logs := newProducer(t, c.ListenAddrs(), func(cfg *Config) { cfg.TopicMaxAge = time.Second })
	allAcked(t, submit(t, p, events("orders", 1, 100, 50)...))
	withAdmin(t, c.ListenAddrs(), func(ctx context.Context, adm *kadm.Client) error {
		_, err := adm.UpdatePartitions(ctx, 6, "orders")
		return err
	})
	next := int64(101)
	await(t, "the new partitions to be used", func() bool {
		allAcked(t, submit(t, p, events("orders", next, 50, 50)...))
		next += 50
		orders := p.topic("orders")
		orders.mu.Lock()
		defer orders.mu.Unlock()
		return orders.partitionCount() == 6
	})
	allAcked(t, submit(t, p, events("orders", next, 50, 50)...))
	next += 50
	parts := placements(t, consume(t, c.ListenAddrs(), "orders", int(next-1)))
	for id, r := range parts {
		want := partitionFor(t, r.key, 6)
		if id <= 100 {
			want = partitionFor(t, r.key, 3)
		}
		if id <= 100 || id >= next-50 {
			if r.partition != want {
				t.Errorf("event %d is on partition %d, want %d", id, r.partition, want)
			}
		}
	}
	if logs.count("partition count") != 1 || logs.count("from=3 to=6") != 1 {
		t.Errorf("want one warning with both counts:\n%s", logs)
	}
}

type placed struct {
	key       string
	partition int32
}

func partitionFor(t *testing.T, key string, n int) int32 {
	p, _ := testPartitioner()
	return int32(p.PartitionByBackup(&kgoRecord{Key: []byte(key)}, n, nil))
}

func TestC79IllegalTopicNames(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	names := []string{"", "a b!", strings.Repeat("t", 250), ".", "..", "ü", "a/b", strings.Repeat("t", 100_000)}
	var run []*source.Event
	for i, name := range names {
		run = append(run, event(int64(2*i), name, "k", "x"), event(int64(2*i+1), "orders", "k", "x"))
	}
	run = append(run, event(100, "a b!", "k", "behind the first of its key"))
	got := submit(t, p, run...)
	for i, name := range names {
		bad, good := got[int64(2*i)], got[int64(2*i+1)]
		var e *RejectedError
		if bad.Class != source.Record || !errors.As(bad.Err, &e) || e.Reason != IllegalTopic || len(e.Error()) > 1000 {
			t.Errorf("topic %.20q: outcome %v (%.200v)", name, bad.Class, bad.Err)
		}
		if good.Class != source.Acked {
			t.Errorf("a good event behind topic %.20q: outcome %v (%v)", name, good.Class, good.Err)
		}
	}
	if got[100].Class != source.HeldBack {
		t.Errorf("the next event of an illegal topic's key: outcome %v", got[100].Class)
	}
	for _, name := range []string{strings.Repeat("t", 249), "a.b_c-D9", "..."} {
		if err := checkTopicName(name); err != nil {
			t.Errorf("the legal name %q: %v", name, err)
		}
	}
}

func TestC79NoRightOnOneTopic(t *testing.T) {
	c, user := authorizedCluster(t, []string{"orders", "secret"}, kfake.ACL{
		Resource: kmsg.ACLResourceTypeTopic, Name: "orders", Operation: kmsg.ACLOperationWrite, Allow: true,
	}, kfake.ACL{
		Resource: kmsg.ACLResourceTypeTopic, Name: "secret", Operation: kmsg.ACLOperationDescribe, Allow: true,
	})
	p, _ := newProducer(t, c.ListenAddrs(), user)
	got := submit(t, p, event(1, "secret", "a", "x"), event(2, "orders", "a", "x"))
	wantClass(t, got, map[int64]source.Class{1: source.Topic, 2: source.Acked})
	if !errors.Is(got[1].Err, kerr.TopicAuthorizationFailed) || !strings.Contains(got[1].Err.Error(), `"secret"`) || !strings.Contains(got[1].Err.Error(), "grant Write") {
		t.Errorf("the error is %v", got[1].Err)
	}
	grantWrite(t, c, "secret")
	await(t, "the grant to be seen", func() bool { return submit(t, p, event(1, "secret", "a", "x"))[1].Class == source.Acked })
}

// Without the right to write anything the producer gets no id; with the right it does, and
// no restart is needed.
func TestC79NoRightToProduce(t *testing.T) {
	c, user := authorizedCluster(t, []string{"orders"}, kfake.ACL{
		Resource: kmsg.ACLResourceTypeTopic, Name: "orders", Operation: kmsg.ACLOperationDescribe, Allow: true,
	})
	p, logs := newProducer(t, c.ListenAddrs(), user)
	o := submit(t, p, event(1, "orders", "a", "x"))[1]
	if o.Class != source.Broker || !strings.Contains(o.Err.Error(), "IdempotentWrite") {
		t.Fatalf("outcome %v (%v), want the broker's with the right that is missing", o.Class, o.Err)
	}
	var ce *ConnectError
	if err := p.Check(t.Context()); !errors.As(err, &ce) || !ce.Certain || !strings.Contains(err.Error(), "IdempotentWrite") {
		t.Errorf("the check says %v", err)
	}
	if why := p.Waiting(); len(why) != 1 || !strings.Contains(why[0], "CLUSTER_AUTHORIZATION_FAILED") {
		t.Errorf("waiting for %q", why)
	}
	grantWrite(t, c, "orders")
	await(t, "the grant to be seen", func() bool { return submit(t, p, event(1, "orders", "a", "x"))[1].Class == source.Acked })
	if why := p.Waiting(); len(why) != 0 {
		t.Errorf("still waiting for %q", why)
	}
	if logs.count("refuses all records") != 1 || logs.count("takes records again") != 1 {
		t.Errorf("want one line for each change:\n%s", logs)
	}
}
