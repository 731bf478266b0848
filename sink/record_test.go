package sink

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-forwarder/forwarder/source"
)

// byID returns the topic's n records by the id in their last header.
func byID(t testing.TB, brokers []string, topic string, n int) map[int64]*kgo.Record {
	t.Helper()
	out := make(map[int64]*kgo.Record)
	for _, r := range consume(t, brokers, topic, n) {
		out[recordID(t, r)] = r
	}
	if len(out) != n {
		t.Fatalf("topic %s holds %d different ids, want %d", topic, len(out), n)
	}
	return out
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func TestC84NullAndEmptyStayApart(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(3, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	var run []*source.Event
	for _, key := range [][]byte{nil, {}, []byte("a")} {
		for _, payload := range [][]byte{nil, {}, []byte("x")} {
			run = append(run, &source.Event{ID: int64(len(run)), Topic: "orders", Key: key, Payload: payload})
		}
	}
	headers := []source.Header{{Name: "null"}, {Name: "empty", Value: []byte{}}, {Name: "twice", Value: []byte("1")}, {Name: "twice", Value: []byte("2")}, {Name: "ü", Value: []byte("é")}}
	run = append(run, &source.Event{ID: int64(len(run)), Topic: "orders", Headers: headers})
	allAcked(t, submit(t, p, run...))

	got := byID(t, c.ListenAddrs(), "orders", len(run))
	partition := int32(-1)
	for _, e := range run {
		r := got[e.ID]
		if !same(r.Key, e.Key) || !same(r.Value, e.Payload) {
			t.Errorf("event %d: key %#v value %#v, want %#v and %#v", e.ID, r.Key, r.Value, e.Key, e.Payload)
		}
		if len(r.Headers) != len(e.Headers)+1 {
			t.Fatalf("event %d: %d headers, want %d", e.ID, len(r.Headers), len(e.Headers)+1)
		}
		for i, h := range e.Headers {
			if r.Headers[i].Key != h.Name || !same(r.Headers[i].Value, h.Value) {
				t.Errorf("event %d: header %d is %s=%#v, want %s=%#v", e.ID, i, r.Headers[i].Key, r.Headers[i].Value, h.Name, h.Value)
			}
		}
		if e.Key != nil && len(e.Key) == 0 {
			if partition >= 0 && r.Partition != partition {
				t.Errorf("the empty key is on the partitions %d and %d", partition, r.Partition)
			}
			partition = r.Partition
		}
	}
}

func TestC35C37PayloadIsUntouched(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	payloads := [][]byte{
		[]byte(`{"a": 12345678901234567890, "b": 1.10, "c": 1` + strings.Repeat("0", 400) + `}`),
		[]byte(`{"b":1,"a":2,  "a":3, "h":"<>&"}`),
		[]byte(`null`), []byte(`{}`), {}, nil, {0, 0xff, 0xfe, '\n'},
	}
	var run []*source.Event
	for i, b := range payloads {
		run = append(run, &source.Event{ID: int64(i), Topic: "orders", Key: []byte{byte(i)}, Payload: b})
	}
	allAcked(t, submit(t, p, run...))
	for id, r := range byID(t, c.ListenAddrs(), "orders", len(run)) {
		if !same(r.Value, payloads[id]) {
			t.Errorf("payload %d arrives as %#v, want %#v", id, r.Value, payloads[id])
		}
	}
}

func TestC85ReservedHeaderWins(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, logs := newProducer(t, c.ListenAddrs(), nil)
	var run []*source.Event
	for id := int64(1); id <= 3; id++ {
		e := event(id, "orders", "a", "x")
		e.Headers = []source.Header{{Name: "s", Value: []byte("x")}, {Name: IDHeader, Value: []byte("theirs")}, {Name: "o", Value: []byte(`{"k":1}`)}}
		run = append(run, e)
	}
	allAcked(t, submit(t, p, run...))
	for id, r := range byID(t, c.ListenAddrs(), "orders", 3) {
		var got []string
		for _, h := range r.Headers {
			got = append(got, h.Key+"="+string(h.Value))
		}
		if want := fmt.Sprintf(`s=x o={"k":1} id=%d`, id); strings.Join(got, " ") != want {
			t.Errorf("headers are %q, want %q", strings.Join(got, " "), want)
		}
	}
	if n := logs.count("reserved"); n != 1 {
		t.Errorf("%d warnings about the reserved name, want 1:\n%s", n, logs)
	}
}

func TestC36UnusableTimestampBecomesSendTime(t *testing.T) {
	c := fakeCluster(t)
	createTopic(t, c.ListenAddrs(), "orders", 1, map[string]string{"message.timestamp.before.max.ms": "3600000"})
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	began := time.Now().Truncate(time.Millisecond)
	recent := began.Add(-10 * time.Minute)
	created := []time.Time{
		{}, // 'infinity'
		time.Date(294276, 12, 31, 0, 0, 0, 0, time.UTC), // PostgreSQL's last year
		time.Date(-4712, 1, 1, 0, 0, 0, 0, time.UTC),    // and its first
		time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC),   // negative
		time.Date(2262, 4, 12, 0, 0, 0, 0, time.UTC),    // past the nanoseconds of an int64
		began.Add(-2 * time.Hour),                       // outside the topic's window
		began.Add(2 * time.Hour),                        // ahead of Kafka's default window
		recent,
	}
	var run []*source.Event
	for i, at := range created {
		e := event(int64(i), "orders", "a", "x")
		e.Created = at
		run = append(run, e)
	}
	allAcked(t, submit(t, p, run...))
	for id, r := range byID(t, c.ListenAddrs(), "orders", len(run)) {
		if created[id].Equal(recent) {
			if !r.Timestamp.Equal(recent) {
				t.Errorf("event %d: timestamp %v, want its own %v", id, r.Timestamp, recent)
			}
		} else if r.Timestamp.Before(began) || r.Timestamp.After(time.Now()) {
			t.Errorf("event %d of %v: timestamp %v, want the time of sending", id, created[id], r.Timestamp)
		}
	}
}

// A timestamp that is refused although nothing is known against it is not sent again.
func TestC36RefusedTimestampBecomesSendTime(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	refuseProduce(c, kerr.InvalidTimestamp, 1)
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	e := event(1, "orders", "a", "x")
	e.Created = time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	if o := submit(t, p, e)[1]; o.Class != source.Suspect {
		t.Fatalf("outcome %v (%v), want suspect", o.Class, o.Err)
	}
	allAcked(t, submit(t, p, e))
	if r := byID(t, c.ListenAddrs(), "orders", 1)[1]; time.Since(r.Timestamp) > 10*time.Minute {
		t.Errorf("the record still has the refused timestamp %v", r.Timestamp)
	}
}

// batchBytes must be what the client puts on the wire for a batch of one record.
func TestBatchBytesIsTheWireSize(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	var wire int
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		wire = len(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records)
		return nil, nil, false
	})
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const seed = 71
	rng := rand.New(rand.NewPCG(seed, seed))
	sizes := []int{0, 1, 50, 63, 64, 65, 127, 128, 8000, 8191, 8192, 8193, 300000}
	size := func() int { return sizes[rng.IntN(len(sizes))] }
	for range 300 {
		r := &kgo.Record{Topic: "orders", Key: make([]byte, size()%500), Value: make([]byte, size())}
		if rng.IntN(4) == 0 {
			r.Key = nil
		}
		if rng.IntN(4) == 0 {
			r.Value = nil
		}
		for range rng.IntN(4) * rng.IntN(40) {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: strings.Repeat("h", size()%200), Value: make([]byte, size()%300)})
		}
		want := batchBytes(r)
		if err := client.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if wire != want {
			t.Fatalf("key %d value %d headers %d: batchBytes says %d, the wire has %d", len(r.Key), len(r.Value), len(r.Headers), want, wire)
		}
	}
}
