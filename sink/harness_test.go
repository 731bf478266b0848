package sink

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/source"
)

func TestMain(m *testing.M) { serverstest.Main(m) }

// deadline bounds every wait of a test.
const deadline = time.Minute

// await polls until the condition holds.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	over := time.After(deadline)
	for !cond() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("%s: not within %v", what, deadline)
		}
	}
}

// fakeCluster starts an in-process broker.
func fakeCluster(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatalf("starting kfake: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// sleepUntil, in a control function, makes its request wait for the channel to be closed. A
// request must not sleep when the cluster is closed, so it does not where there is no need.
func sleepUntil(c *kfake.Cluster, closed <-chan struct{}) {
	select {
	case <-closed:
	default:
		c.SleepControl(func() { <-closed })
	}
}

// newProducer makes a Producer that is closed when the test ends.
func newProducer(t testing.TB, brokers []string, change func(*Config)) (*Producer, *logBuffer) {
	t.Helper()
	logs := new(logBuffer)
	cfg := Config{Brokers: brokers, Logger: slog.New(slog.NewTextHandler(logs, nil))}
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatalf("making the producer: %v", err)
	}
	t.Cleanup(p.Close)
	return p, logs
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// receipts collects outcomes and fails the test on a second one for an event.
type receipts struct {
	t  testing.TB
	mu sync.Mutex
	by map[int64]source.Outcome
}

func newReceipts(t testing.TB) *receipts {
	return &receipts{t: t, by: make(map[int64]source.Outcome)}
}

func (r *receipts) report(out []source.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range out {
		if old, twice := r.by[o.ID]; twice {
			r.t.Errorf("event %d got two outcomes: %v and %v", o.ID, old, o)
		}
		if (o.Class == source.Acked) != (o.Err == nil) {
			r.t.Errorf("event %d: class %v with error %v", o.ID, o.Class, o.Err)
		}
		r.by[o.ID] = o
	}
}

func (r *receipts) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.by)
}

func (r *receipts) get(id int64) (source.Outcome, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.by[id]
	return o, ok
}

// await waits for n outcomes and returns them by id.
func (r *receipts) await(n int) map[int64]source.Outcome {
	r.t.Helper()
	await(r.t, fmt.Sprintf("waiting for %d outcomes", n), func() bool { return r.len() >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[int64]source.Outcome, len(r.by))
	for id, o := range r.by {
		out[id] = o
	}
	return out
}

// submit sends one run and waits for its outcomes.
func submit(t testing.TB, p *Producer, run ...*source.Event) map[int64]source.Outcome {
	t.Helper()
	r := newReceipts(t)
	p.Submit([][]*source.Event{run}, r.report)
	return r.await(len(run))
}

// wantClass fails the test unless the outcomes have the class, id by id.
func wantClass(t testing.TB, got map[int64]source.Outcome, want map[int64]source.Class) {
	t.Helper()
	for id, class := range want {
		if o, ok := got[id]; !ok || o.Class != class {
			t.Errorf("event %d: outcome %v (%v), want %v", id, o.Class, o.Err, class)
		}
	}
}

// allAcked fails the test unless every outcome is Acked.
func allAcked(t testing.TB, got map[int64]source.Outcome) {
	t.Helper()
	for id, o := range got {
		if o.Class != source.Acked {
			t.Fatalf("event %d: outcome %v (%v), want acked", id, o.Class, o.Err)
		}
	}
}

func event(id int64, topic, key, payload string) *source.Event {
	return &source.Event{ID: id, Topic: topic, Key: []byte(key), Payload: []byte(payload)}
}

// events returns n events with the ids from first on, and keys that repeat after keys of them.
func events(topic string, first int64, n, keys int) []*source.Event {
	out := make([]*source.Event, n)
	for i := range out {
		id := first + int64(i)
		out[i] = event(id, topic, "key-"+strconv.Itoa(i%keys), "payload of "+strconv.FormatInt(id, 10))
	}
	return out
}

// consume reads n records of a topic from its start, with all partitions, as the broker has them.
func consume(t testing.TB, brokers []string, topic string, n int) []*kgo.Record {
	t.Helper()
	c, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(10*time.Millisecond),
		kgo.FetchMaxWait(50*time.Millisecond),
	)
	if err != nil {
		t.Fatalf("making a consumer: %v", err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("consuming topic %s: %d records of %d within %v", topic, len(out), n, deadline)
		}
		out = append(out, fetches.Records()...)
	}
	return out
}

// end returns how many records the topic holds, by its end offsets.
func end(t testing.TB, brokers []string, topic string) int {
	t.Helper()
	total := 0
	withAdmin(t, brokers, func(ctx context.Context, adm *kadm.Client) error {
		offsets, err := adm.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		offsets.Each(func(o kadm.ListedOffset) { total += int(o.Offset) })
		return offsets.Error()
	})
	return total
}

func recordID(t testing.TB, r *kgo.Record) int64 {
	t.Helper()
	h := r.Headers[len(r.Headers)-1]
	id, err := strconv.ParseInt(string(h.Value), 10, 64)
	if h.Key != IDHeader || err != nil {
		t.Fatalf("the last header of a record is %s=%q, want an id", h.Key, h.Value)
	}
	return id
}

func withAdmin(t testing.TB, brokers []string, do func(context.Context, *kadm.Client) error) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatalf("making an admin client: %v", err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := do(ctx, kadm.NewClient(c)); err != nil {
		t.Fatalf("administering: %v", err)
	}
}

func createTopic(t testing.TB, brokers []string, topic string, partitions int32, configs map[string]string) {
	t.Helper()
	withAdmin(t, brokers, func(ctx context.Context, adm *kadm.Client) error {
		values := make(map[string]*string)
		for k, v := range configs {
			values[k] = &v
		}
		_, err := adm.CreateTopic(ctx, partitions, 1, values, topic)
		return err
	})
}

func setTopicConfig(t testing.TB, brokers []string, topic, name, value string) {
	t.Helper()
	withAdmin(t, brokers, func(ctx context.Context, adm *kadm.Client) error {
		_, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
		return err
	})
}
