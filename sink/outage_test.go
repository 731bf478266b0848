package sink

import (
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/source"
)

func TestC18NoOutcomeBeforeTheAcknowledgement(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(3, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))

	answer := make(chan struct{})
	held := make(chan struct{}, 1000)
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		held <- struct{}{}
		sleepUntil(c, answer)
		return nil, nil, false
	})
	r := newReceipts(t)
	p.Submit([][]*source.Event{events("orders", 2, 100, 10)}, r.report)
	<-held // the broker has records and does not answer
	// A second question to the same broker is answered, so time has passed for the first.
	if _, err := p.askBrokers(t.Context(), []string{"orders"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if n := r.len(); n != 0 {
		t.Fatalf("%d outcomes without an acknowledgement", n)
	}
	close(answer)
	allAcked(t, r.await(100))
	if n := end(t, c.ListenAddrs(), "orders"); n != 101 {
		t.Errorf("the topic holds %d records, want 101", n)
	}
}

// A broker that cannot be reached, or takes connections and never answers, leads to outcomes
// of class Broker for topics that are not known yet, within the time for a question.
func TestC18NoBroker(t *testing.T) {
	silent := silentListener(t)
	for name, addr := range map[string]string{"refused": serverstest.FreeAddress(t), "silent": silent} {
		t.Run(name, func(t *testing.T) {
			p, _ := newProducer(t, []string{addr}, func(cfg *Config) { cfg.AskTimeout = 300 * time.Millisecond })
			for id, o := range submit(t, p, events("orders", 1, 100, 10)...) {
				if o.Class != source.Broker || !strings.Contains(o.Err.Error(), addr) {
					t.Fatalf("event %d: outcome %v (%v), want the broker's with its address", id, o.Class, o.Err)
				}
			}
			if name == "refused" {
				if why := p.Waiting(); len(why) != 1 || !strings.Contains(why[0], addr) || !strings.Contains(why[0], "connection refused") {
					t.Errorf("waiting for %q", why)
				}
			}
		})
	}
}

// silentListener takes connections and never answers.
func silentListener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	})
	return l.Addr().String()
}

// Troubles of the brokers never end a record: it stays in flight and is written once.
func TestC21C82BrokerTroubleEndsNoRecord(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(3, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))
	troubles := []*kerr.Error{
		kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.NotLeaderForPartition,
		kerr.RequestTimedOut, kerr.LeaderNotAvailable, kerr.KafkaStorageError, kerr.UnknownTopicOrPartition,
	}
	var n atomic.Int32
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		i := int(n.Add(1)) - 1
		switch {
		case i < len(troubles):
			c.KeepControl()
			return produceAnswer(req.(*kmsg.ProduceRequest), troubles[i].Code), nil, true
		case i == len(troubles):
			return nil, errors.New("the connection is cut"), true
		}
		return nil, nil, false
	})
	allAcked(t, submit(t, p, events("orders", 2, 100, 1)...))
	if got := ids(t, consume(t, c.ListenAddrs(), "orders", 101), "key-0"); len(got) != 100 || got[0] != 2 || got[99] != 101 {
		t.Errorf("the key's records are %v", got)
	}
	if n.Load() <= int32(len(troubles)) {
		t.Errorf("only %d troubles happened", n.Load())
	}
}

// A lost answer is not a second record: the batch is sent again under its sequence number.
func TestC21LostAnswerIsNoRepeat(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))
	// The broker appends, and answers that it timed out; then the connection is cut.
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		return nil, errors.New("cut"), true
	})
	allAcked(t, submit(t, p, events("orders", 2, 50, 5)...))
	if n := end(t, c.ListenAddrs(), "orders"); n != 51 {
		t.Errorf("the topic holds %d records, want 51", n)
	}
}

func TestC82EveryRequestIsSafe(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(3, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), nil)
	var requests atomic.Int32
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		requests.Add(1)
		r := req.(*kmsg.ProduceRequest)
		if r.Acks != -1 {
			t.Errorf("a request asks for %d acks, want -1", r.Acks)
		}
		for _, rt := range r.Topics {
			for _, rp := range rt.Partitions {
				// The producer id stands at byte 43 of a batch.
				if pid := int64(binary.BigEndian.Uint64(rp.Records[43:])); pid < 0 {
					t.Errorf("a batch has no producer id")
				}
			}
		}
		return nil, nil, false
	})
	allAcked(t, submit(t, p, events("orders", 1, 500, 50)...))
	if requests.Load() == 0 {
		t.Error("no request was seen")
	}
}

// What the client holds is bounded: Submit waits beyond the bound and goes on after it.
func TestC80InFlightIsBounded(t *testing.T) {
	const bound = 100
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, _ := newProducer(t, c.ListenAddrs(), func(cfg *Config) { cfg.MaxInFlight = bound })
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))
	answer := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		sleepUntil(c, answer)
		return nil, nil, false
	})
	r := newReceipts(t)
	var wg sync.WaitGroup
	var returned atomic.Bool
	wg.Go(func() {
		p.Submit([][]*source.Event{events("orders", 2, 5*bound, 10)}, r.report)
		returned.Store(true)
	})
	client := p.links.current.Load().client
	// The client counts the record that Submit is blocked with.
	await(t, "the bound to be reached", func() bool { return client.BufferedProduceRecords() > bound })
	if returned.Load() || r.len() > 0 {
		t.Fatal("Submit returned beyond the bound")
	}
	close(answer)
	allAcked(t, r.await(5*bound))
	wg.Wait()
}

func TestWaitingTellsWhatDelays(t *testing.T) {
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"))
	p, logs := newProducer(t, c.ListenAddrs(), nil)
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))
	if why := p.Waiting(); len(why) != 0 {
		t.Fatalf("waiting for %q although all is fine", why)
	}
	var stop atomic.Bool
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if stop.Load() {
			return nil, nil, false
		}
		c.KeepControl()
		return produceAnswer(req.(*kmsg.ProduceRequest), kerr.NotEnoughReplicas.Code), nil, true
	})
	c.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, rr := range req.(*kmsg.DescribeConfigsRequest).Resources {
			sr := kmsg.NewDescribeConfigsResponseResource()
			sr.ResourceName, sr.ResourceType = rr.ResourceName, rr.ResourceType
			config := kmsg.NewDescribeConfigsResponseResourceConfig()
			config.Name, config.Value = "min.insync.replicas", kmsg.StringPtr("2")
			sr.Configs = append(sr.Configs, config)
			resp.Resources = append(resp.Resources, sr)
		}
		return resp, nil, true
	})
	r := newReceipts(t)
	p.Submit([][]*source.Event{{event(2, "orders", "a", "x")}}, r.report)
	await(t, "the reason to be found", func() bool {
		why := strings.Join(p.Waiting(), "; ")
		return strings.Contains(why, `"orders"`) && strings.Contains(why, "min.insync.replicas asks for 2")
	})
	stop.Store(true)
	allAcked(t, r.await(1))
	await(t, "the reason to go", func() bool { return len(p.Waiting()) == 0 })
	if logs.count("does not acknowledge") != 1 || logs.count("acknowledges again") != 1 {
		t.Errorf("want one line for each change:\n%s", logs)
	}
}

// A broker that goes away and comes back is one line each, and what was in flight is there once.
func TestBrokerRestartIsOneLineEach(t *testing.T) {
	dir := t.TempDir()
	c := fakeCluster(t, kfake.SeedTopics(1, "orders"), kfake.DataDir(dir))
	addr := c.ListenAddrs()[0]
	port := c.ListenAddrs()[0][strings.LastIndex(addr, ":")+1:]
	p, logs := newProducer(t, []string{addr}, nil)
	allAcked(t, submit(t, p, event(1, "orders", "a", "x")))
	c.Close()
	r := newReceipts(t)
	p.Submit([][]*source.Event{events("orders", 2, 100, 10)}, r.report)
	await(t, "the broker's absence to be noticed", func() bool {
		why := strings.Join(p.Waiting(), "; ")
		return strings.Contains(why, "no broker reachable at "+addr) && strings.Contains(why, "refused")
	})
	if r.len() != 0 {
		t.Fatalf("%d outcomes while the broker is away", r.len())
	}
	fakeCluster(t, kfake.DataDir(dir), kfake.Ports(atoi(t, port)))
	allAcked(t, r.await(100))
	await(t, "the reason to go", func() bool { return len(p.Waiting()) == 0 })
	if n := end(t, []string{addr}, "orders"); n != 101 {
		t.Errorf("the topic holds %d records, want 101", n)
	}
	if logs.count("no kafka broker is reachable") != 1 || logs.count("reachable again") != 1 {
		t.Errorf("want one line for each change:\n%s", logs)
	}
}
