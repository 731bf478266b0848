package sink

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-forwarder/forwarder/source"
)

// wantTooLarge checks that the outcome names the topic, the size, the limit and whose it is.
func wantTooLarge(t *testing.T, o source.Outcome, topic, limitName string, limit int) {
	t.Helper()
	var e *RejectedError
	if o.Class != source.Record || !errors.As(o.Err, &e) || e.Reason != TooLarge {
		t.Fatalf("outcome %v (%v), want a record that is too large", o.Class, o.Err)
	}
	if e.Topic != topic || e.Limit != limit || e.Size <= limit {
		t.Errorf("rejected for size %d and limit %d of topic %s", e.Size, e.Limit, e.Topic)
	}
	for _, part := range []string{topic, fmt.Sprint(e.Size), fmt.Sprint(limit), limitName, "raise"} {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("the text %q does not hold %q", e, part)
		}
	}
}

func TestC71RecordAboveTheTopicsLimit(t *testing.T) {
	c := fakeCluster(t)
	createTopic(t, c.ListenAddrs(), "small", 1, map[string]string{"max.message.bytes": "10000"})
	createTopic(t, c.ListenAddrs(), "segment", 1, map[string]string{"segment.bytes": "20000"})
	createTopic(t, c.ListenAddrs(), "plain", 1, nil)
	p, _ := newProducer(t, c.ListenAddrs(), nil)

	got := submit(t, p,
		event(1, "small", "a", strings.Repeat("x", 12000)),
		event(2, "small", "b", "fits"),
		event(3, "segment", "a", strings.Repeat("x", 30000)),
		event(4, "plain", "a", strings.Repeat("x", 1_200_000)),
		event(5, "plain", "b", strings.Repeat("\x00", 3_000_000)), // would compress to little
		event(6, "plain", "c", strings.Repeat("x", 1_000_000)),
	)
	wantTooLarge(t, got[1], "small", "max.message.bytes", 10000)
	wantTooLarge(t, got[3], "segment", "segment.bytes", 20000)
	wantTooLarge(t, got[4], "plain", "max.message.bytes", 1048588)
	wantTooLarge(t, got[5], "plain", "max.message.bytes", 1048588)
	wantClass(t, got, map[int64]source.Class{2: source.Acked, 6: source.Acked})
}

func TestC71RecordAboveTheClientsLimit(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), func(cfg *Config) { cfg.MaxBatchBytes = 50000 })
	wantTooLarge(t, submit(t, p, event(1, "orders", "a", strings.Repeat("x", 60000)))[1], "orders", "client", 50000)
}

// Many small records never exceed a limit together, with compression off so that the
// batches are as large as they get.
func TestC71SmallRecordsMakeSmallerBatches(t *testing.T) {
	c := fakeCluster(t)
	createTopic(t, c.ListenAddrs(), "orders", 1, map[string]string{"max.message.bytes": "10000"})
	p, _ := newProducer(t, c.ListenAddrs(), func(cfg *Config) { cfg.Compression = "none" })
	var run []*source.Event
	for id := int64(1); id <= 400; id++ {
		run = append(run, event(id, "orders", "k", strings.Repeat("x", 3000)))
	}
	allAcked(t, submit(t, p, run...))
	if n := end(t, c.ListenAddrs(), "orders"); n != 400 {
		t.Errorf("the topic holds %d records, want each of 400 once", n)
	}
}

// Every size around the limit either is turned away before or reaches the broker: a record
// that the client alone refuses would let later ones of its key pass.
func TestC71NoSizeFallsBetweenTheLimits(t *testing.T) {
	const limit = 2000
	c := fakeCluster(t)
	createTopic(t, c.ListenAddrs(), "orders", 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
	p, _ := newProducer(t, c.ListenAddrs(), func(cfg *Config) { cfg.Compression = "none" })
	var acked, rejected int
	for n := limit - 120; n < limit+10; n++ {
		switch o := submit(t, p, event(int64(n), "orders", "k", strings.Repeat("x", n)))[int64(n)]; o.Class {
		case source.Acked:
			acked++
			if rejected > 0 {
				t.Fatalf("%d bytes pass and fewer did not", n)
			}
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

// A limit that changes while records flow is followed by the batches: nothing is refused by
// the broker, nothing lost or doubled, and order is kept.
func TestC71LimitChangesUnderLoad(t *testing.T) {
	c := fakeCluster(t)
	createTopic(t, c.ListenAddrs(), "orders", 2, map[string]string{"max.message.bytes": "4000"})
	p, _ := newProducer(t, c.ListenAddrs(), func(cfg *Config) { cfg.Compression = "none" })
	next := int64(1)
	push := func(n int) {
		allAcked(t, submit(t, p, events("orders", next, n, 7)...))
		next += int64(n)
	}
	push(300)
	setTopicConfig(t, c.ListenAddrs(), "orders", "max.message.bytes", "100000")
	big := event(next, "orders", "key-0", strings.Repeat("x", 50000))
	next++
	r := newReceipts(t)
	p.Submit([][]*source.Event{events("orders", next, 100, 7)}, r.report)
	next += 100
	await(t, "the large record to pass", func() bool { return submit(t, p, big)[big.ID].Class == source.Acked })
	allAcked(t, r.await(100))
	push(300)
	setTopicConfig(t, c.ListenAddrs(), "orders", "max.message.bytes", "1500")
	p.topic("orders").doubt(false) // as a refused batch does
	await(t, "the lowered limit to be seen", func() bool {
		e := event(next, "orders", "key-0", strings.Repeat("x", 2000))
		next++
		p.topic("orders").doubt(false)
		o := submit(t, p, e)[e.ID]
		if o.Class == source.Acked {
			t.Errorf("event %d is above the lowered limit and was taken", e.ID)
		}
		return o.Class == source.Record
	})
	push(300)
	want := 300 + 1 + 100 + 300 + 300
	if n := end(t, c.ListenAddrs(), "orders"); n != want {
		t.Errorf("the topic holds %d records, want %d", n, want)
	}
	byID(t, c.ListenAddrs(), "orders", want)
	await(t, "the outdated clients to be closed", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.clients) == 1
	})
}

// Without the right to read a topic's configuration, Kafka's defaults are taken.
func TestConfigurationMayBeUnreadable(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	c.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, rr := range req.(*kmsg.DescribeConfigsRequest).Resources {
			sr := kmsg.NewDescribeConfigsResponseResource()
			sr.ResourceName, sr.ResourceType, sr.ErrorCode = rr.ResourceName, rr.ResourceType, kerr.TopicAuthorizationFailed.Code
			resp.Resources = append(resp.Resources, sr)
		}
		return resp, nil, true
	})
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	got := submit(t, p, event(1, "orders", "a", "x"), event(2, "orders", "b", strings.Repeat("x", 1<<20)))
	wantClass(t, got, map[int64]source.Class{1: source.Acked})
	wantTooLarge(t, got[2], "orders", "DescribeConfigs", 1048588)
}

func TestKeyMissingOnCompactedTopic(t *testing.T) {
	c := fakeCluster(t)
	createTopic(t, c.ListenAddrs(), "state", 1, map[string]string{"cleanup.policy": "compact"})
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	got := submit(t, p, &source.Event{ID: 1, Topic: "state"}, event(2, "state", "a", "x"), event(3, "state", "", "x"))
	wantClass(t, got, map[int64]source.Class{1: source.Record, 2: source.Acked, 3: source.Acked})
	var e *RejectedError
	if !errors.As(got[1].Err, &e) || e.Reason != KeyMissing || !strings.Contains(e.Error(), "compacted") {
		t.Errorf("the error is %v", got[1].Err)
	}
}
