package sink

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-forwarder/forwarder/source"
)

// ids returns the ids of the records with the key, in order.
func ids(t testing.TB, records []*kgo.Record, key string) []int64 {
	t.Helper()
	var out []int64
	for _, r := range records {
		if string(r.Key) == key {
			out = append(out, recordID(t, r))
		}
	}
	return out
}

func TestC19TooLargeEventHoldsBackItsKey(t *testing.T) {
	c := fakeCluster(t)
	createTopic(t, c.ListenAddrs(), "orders", 3, map[string]string{"max.message.bytes": "2000"})
	p, _ := newProducer(t, c.ListenAddrs(), nil)

	got := submit(t, p,
		event(1, "orders", "k", strings.Repeat("x", 5000)),
		event(2, "orders", "k", "ten bytes!"),
		event(3, "orders", "other", "ten bytes!"),
		event(4, "orders", "k", "ten bytes!"),
	)
	wantClass(t, got, map[int64]source.Class{1: source.Record, 2: source.HeldBack, 3: source.Acked, 4: source.HeldBack})
	if n := end(t, c.ListenAddrs(), "orders"); n != 1 {
		t.Fatalf("the topic holds %d records, want the other key's only", n)
	}

	// The limit is raised; the next attempt sees it without a restart.
	setTopicConfig(t, c.ListenAddrs(), "orders", "max.message.bytes", "20000")
	await(t, "retrying until the raised limit is seen", func() bool {
		return submit(t, p, event(1, "orders", "k", strings.Repeat("x", 5000)))[1].Class == source.Acked
	})
	allAcked(t, submit(t, p, event(2, "orders", "k", "ten bytes!"), event(4, "orders", "k", "ten bytes!")))
	if got := ids(t, consume(t, c.ListenAddrs(), "orders", 4), "k"); !slices.Equal(got, []int64{1, 2, 4}) {
		t.Fatalf("the key's records are %v, want 1 2 4", got)
	}
}

// A batch that the broker refuses fails what the client holds for the partition; none of it
// may be produced behind the failed record's back.
func TestC19RefusedBatchLetsNothingOvertake(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	refuseProduce(c, kerr.InvalidRecord, 1)
	p, _ := newProducer(t, c.ListenAddrs(), nil)

	got := submit(t, p, events("orders", 1, 200, 1)...)
	var failed bool
	for id := int64(1); id <= 200; id++ {
		switch o := got[id]; o.Class {
		case source.Suspect:
			failed = true
			if !errors.Is(o.Err, kerr.InvalidRecord) || !strings.Contains(o.Err.Error(), `"orders"`) {
				t.Fatalf("event %d: error %v names neither the topic nor the cause", id, o.Err)
			}
		case source.HeldBack:
			if !failed {
				t.Fatalf("event %d is held back before any failure", id)
			}
		default:
			t.Fatalf("event %d: outcome %v (%v)", id, o.Class, o.Err)
		}
	}
	if n := end(t, c.ListenAddrs(), "orders"); n != 0 {
		t.Fatalf("%d records were written behind a failed one", n)
	}
	allAcked(t, submit(t, p, events("orders", 1, 200, 1)...))
}

// refuseProduce answers the next n produce requests with a code for each partition.
func refuseProduce(c *kfake.Cluster, code *kerr.Error, n int) {
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if n == 0 {
			c.DropControl()
			return nil, nil, false
		}
		n--
		c.KeepControl()
		return produceAnswer(req.(*kmsg.ProduceRequest), code.Code), nil, true
	})
}

// produceAnswer answers every partition of the request with the code.
func produceAnswer(req *kmsg.ProduceRequest, code int16) *kmsg.ProduceResponse {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, rt := range req.Topics {
		st := kmsg.NewProduceResponseTopic()
		st.Topic, st.TopicID = rt.Topic, rt.TopicID
		for _, rp := range rt.Partitions {
			sp := kmsg.NewProduceResponseTopicPartition()
			sp.Partition, sp.ErrorCode, sp.BaseOffset = rp.Partition, code, -1
			st.Partitions = append(st.Partitions, sp)
		}
		resp.Topics = append(resp.Topics, st)
	}
	return resp
}

func TestC20RejectedEventsDelayNobody(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(3, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	var run []*source.Event
	for id := int64(1); id <= 10; id++ {
		e := event(id, "orders", "bad", "x")
		e.Key = append(e.Key, byte('0'+id))
		e.Defect = errors.New("headers: not an object")
		run = append(run, e)
	}
	got := submit(t, p, append(run, events("orders", 11, 1000, 50)...)...)
	for id, o := range got {
		want := source.Acked
		if id <= 10 {
			want = source.Record
		}
		if o.Class != want {
			t.Fatalf("event %d: outcome %v (%v), want %v", id, o.Class, o.Err, want)
		}
	}
	var rejected *RejectedError
	if !errors.As(got[3].Err, &rejected) || rejected.Reason != Defect || !strings.Contains(rejected.Error(), "headers: not an object") {
		t.Errorf("error of a defect is %v", got[3].Err)
	}
	if n := end(t, c.ListenAddrs(), "orders"); n != 1000 {
		t.Errorf("the topic holds %d records, want 1000", n)
	}
}

// What is no event at all has no topic either, and that is not what must be mended.
func TestC20DefectBeforeTopic(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	e := event(1, "", "k", "x")
	e.Defect = errors.New("message: no object")
	got := submit(t, p, e)
	var rejected *RejectedError
	if !errors.As(got[1].Err, &rejected) || rejected.Reason != Defect || !strings.Contains(rejected.Error(), "message: no object") {
		t.Errorf("error of a defect is %v", got[1].Err)
	}
}

// With little in flight a record does not linger, however long lingering is.
func TestQuietRecordGoesOutAtOnce(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(3, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), func(cfg *Config) { cfg.Linger = time.Second })
	allAcked(t, submit(t, p, event(1, "orders", "a", "first"))) // learns the topic
	for id := int64(2); id < 12; id++ {
		began := time.Now()
		allAcked(t, submit(t, p, event(id, "orders", "a", "next")))
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Fatalf("a quiet record took %v: it lingered", took)
		}
	}
}

// A flight whose last events wait reports the others meanwhile.
func TestWaitingFlightReportsWhatItHas(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "fast", "slow"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	allAcked(t, submit(t, p, event(1, "fast", "a", "x"), event(2, "slow", "a", "x")))

	// One partition is short of replicas until the test lets it go. Its request may carry the
	// other topic's records too; the missing topic's event needs no request.
	slow := topicID(c, "slow")
	let := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		select {
		case <-let:
			return nil, nil, false
		default:
		}
		for _, rt := range req.(*kmsg.ProduceRequest).Topics {
			if rt.TopicID == slow {
				return produceAnswer(req.(*kmsg.ProduceRequest), kerr.NotEnoughReplicas.Code), nil, true
			}
		}
		return nil, nil, false
	})
	r := newReceipts(t)
	p.Submit([][]*source.Event{{event(3, "fast", "a", "x"), event(4, "missing", "a", "x"), event(5, "slow", "a", "x")}}, r.report)
	await(t, "the reports of the others", func() bool {
		_, missing := r.get(4)
		return missing
	})
	if o, ok := r.get(5); ok {
		t.Fatalf("the refused event has outcome %v", o)
	}
	close(let)
	wantClass(t, r.await(3), map[int64]source.Class{3: source.Acked, 4: source.Topic, 5: source.Acked})
}

func topicID(c *kfake.Cluster, topic string) [16]byte { return c.TopicInfo(topic).TopicID }
