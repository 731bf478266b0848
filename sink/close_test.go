package sink

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-forwarder/forwarder/source"
)

func atoi(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCloseSettlesEverything(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders", "new"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))
	held := make(chan struct{}, 100)
	hold := func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		held <- struct{}{}
		return nil, nil, true // no answer
	}
	c.ControlKey(int16(kmsg.Produce), hold)
	c.ControlKey(int16(kmsg.Metadata), hold)
	r := newReceipts(t)
	// One record on the wire, one event whose topic is being asked about.
	p.Submit([][]*source.Event{{event(2, "orders", "a", "x")}, {event(3, "new", "a", "x")}}, r.report)
	<-held
	<-held
	p.Close()
	got := r.await(2)
	wantClass(t, got, map[int64]source.Class{2: source.Broker, 3: source.Broker})
	if !errors.Is(got[2].Err, ErrClosed) || !errors.Is(got[3].Err, ErrClosed) {
		t.Errorf("the errors are %v and %v", got[2].Err, got[3].Err)
	}
	after := submit(t, p, event(4, "orders", "a", "x"), event(5, "another", "a", "x"))
	wantClass(t, after, map[int64]source.Class{4: source.Broker, 5: source.Broker})
	p.Close() // safe twice
}

// Under random faults every event has exactly one outcome for each submission, the
// acknowledged ones are on the broker, and the first occurrences of a key are in order.
func TestRandomFaultsKeepThePromises(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { randomFaults(t, seed) })
	}
}

func randomFaults(t *testing.T, seed uint64) {
	c := fakeCluster(t, kfake.SeedTopics(4, "a", "b"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, seed))
	codes := []*kerr.Error{kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.InvalidRecord, kerr.MessageTooLarge, kerr.TopicAuthorizationFailed, kerr.OutOfOrderSequenceNumber}
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		c.KeepControl()
		switch n := rng.IntN(12); {
		case n < 3:
			return produceAnswer(req.(*kmsg.ProduceRequest), codes[rng.IntN(len(codes))].Code), nil, true
		case n == 3:
			return nil, errors.New("cut"), true
		}
		return nil, nil, false
	})

	const lanes, perLane = 8, 60
	acked := make(map[int64]bool)
	queues := make([][]*source.Event, lanes)
	for lane := range queues {
		for i := range perLane {
			topic := "a"
			if i%5 == 0 {
				topic = "b"
			}
			id := int64(lane*perLane + i + 1)
			queues[lane] = append(queues[lane], event(id, topic, strconv.Itoa(lane)+"-"+strconv.Itoa(i%3), "x"))
		}
	}
	for {
		var runs [][]*source.Event
		want := 0
		for lane, q := range queues {
			var rest []*source.Event
			for _, e := range q {
				if !acked[e.ID] {
					rest = append(rest, e)
				}
			}
			queues[lane] = rest
			if n := min(len(rest), 20); n > 0 {
				runs = append(runs, rest[:n])
				want += n
			}
		}
		if want == 0 {
			break
		}
		r := newReceipts(t)
		p.Submit(runs, r.report)
		for id, o := range r.await(want) {
			switch o.Class {
			case source.Acked:
				acked[id] = true
			case source.Record, source.Broker:
				t.Fatalf("event %d: outcome %v (%v)", id, o.Class, o.Err)
			}
		}
	}
	for _, topic := range []string{"a", "b"} {
		last := make(map[string]int64)
		seen := make(map[int64]bool)
		for _, r := range consume(t, c.ListenAddrs(), topic, end(t, c.ListenAddrs(), topic)) {
			id := recordID(t, r)
			if !seen[id] && id < last[string(r.Key)] {
				t.Errorf("topic %s key %s: event %d comes first behind %d", topic, r.Key, id, last[string(r.Key)])
			}
			seen[id] = true
			last[string(r.Key)] = max(last[string(r.Key)], id)
		}
		for id := int64(1); id <= lanes*perLane; id++ {
			if inTopic := (int(id-1)%perLane)%5 == 0; inTopic == (topic == "b") && !seen[id] {
				t.Errorf("topic %s: event %d is missing", topic, id)
			}
		}
	}
}

// What was submitted before is not sent any more, and what comes later is.
func TestRecallSendsNothingMore(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), func(cfg *Config) { cfg.Linger = time.Second })
	allAcked(t, submit(t, p, event(1, "orders", "a", "first"))) // learns the topic

	answer, seen := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		once.Do(func() { close(seen) })
		sleepUntil(c, answer)
		return nil, nil, false
	})
	onWire, lingering := newReceipts(t), newReceipts(t)
	p.Submit([][]*source.Event{events("orders", 1000, 300, 10)}, onWire.report)
	<-seen
	p.Submit([][]*source.Event{events("orders", 2000, 300, 10)}, lingering.report)
	p.Recall()
	for _, r := range []*receipts{onWire, lingering} {
		for id, o := range r.await(300) {
			if o.Class != source.Broker {
				t.Fatalf("event %d: outcome %v (%v), want the broker's", id, o.Class, o.Err)
			}
		}
	}
	close(answer)
	allAcked(t, submit(t, p, event(3000, "orders", "a", "last")))
	// The request on the wire was answered too late for us, and was written or not.
	if n := end(t, c.ListenAddrs(), "orders"); n != 2 && n != 302 {
		t.Errorf("the topic holds %d records, want 2, or 302 with what was on the wire", n)
	}
}
