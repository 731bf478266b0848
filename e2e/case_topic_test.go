package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// trickle writes numbered rows to a topic, one a transaction, over a number of keys in turn.
type trickle struct {
	s    *stage
	keys int
	next int
	conn *pgx.Conn
	stop chan struct{}
	done chan error
}

// trickle begins with the row of the given number.
func (s *stage) trickle(topic string, keys, first int, every time.Duration) *trickle {
	s.t.Helper()
	w := &trickle{s: s, keys: keys, next: first, conn: s.connect(), stop: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				w.done <- nil
				return
			case <-tick.C:
			}
			if _, err := w.conn.Exec(s.t.Context(), insert, topic, fmt.Sprint("k", w.next%keys), []byte(strconv.Itoa(w.next))); err != nil {
				w.done <- err
				return
			}
			w.next++
		}
	}()
	return w
}

// end stops the writer and returns how many rows it has written.
func (w *trickle) end() int {
	w.s.t.Helper()
	close(w.stop)
	if err := <-w.done; err != nil {
		w.s.t.Fatalf("writing: %v", err)
	}
	return w.next
}

// wantTail demands that the records of each key are the last ones that were written of it,
// all of them from the given number on, each once and in order. less orders two records of a
// key that are on different partitions; nil forbids that.
func (w *trickle) wantTail(records []*kgo.Record, from int, less func(a, b *kgo.Record) bool) {
	t := w.s.t
	t.Helper()
	byKey := map[string][]*kgo.Record{}
	for _, r := range records {
		byKey[string(r.Key)] = append(byKey[string(r.Key)], r)
	}
	number := func(r *kgo.Record) int {
		n, err := strconv.Atoi(string(r.Value))
		if err != nil {
			t.Fatalf("the value %q is no number", r.Value)
		}
		return n
	}
	for k := range w.keys {
		list := byKey[fmt.Sprint("k", k)]
		if len(list) == 0 {
			t.Errorf("key k%d has no record", k)
			continue
		}
		first := number(list[0])
		if first >= from+w.keys {
			t.Errorf("key k%d begins with %d, want all from %d on", k, first, from)
		}
		for i, r := range list {
			if n := number(r); n != first+i*w.keys {
				t.Errorf("key k%d has %d as its record %d, want %d", k, n, i, first+i*w.keys)
				break
			}
			if i > 0 && r.Partition != list[i-1].Partition && (less == nil || !less(list[i-1], r)) {
				t.Errorf("key k%d goes on on another partition with %s", k, r.Value)
			}
		}
		if last := number(list[len(list)-1]); last+w.keys < w.next {
			t.Errorf("key k%d ends with %d of %d", k, last, w.next)
		}
	}
}

// sortedByNumber sorts a key's records by their value.
func sortedByNumber(list []*kgo.Record) []*kgo.Record {
	slices.SortStableFunc(list, func(a, b *kgo.Record) int {
		m, _ := strconv.Atoi(string(a.Value)) // wantTail demands numbers
		n, _ := strconv.Atoi(string(b.Value))
		return m - n
	})
	return list
}

// warnings counts the log's warnings with the text.
func (p *process) warnings(text string) int {
	p.t.Helper()
	n := 0
	for _, l := range p.lines() {
		if l.Level == "WARN" && strings.Contains(l.text, text) {
			n++
		}
	}
	return n
}

// TestC73UnknownTopic mixes rows to a topic that does not exist with rows to one that does,
// and creates it later.
func TestC73UnknownTopic(t *testing.T) {
	s := newStage(t, nil, nil)
	good := s.makeTopic("", 3, nil)
	missing := good + "-missing"
	var rows []row
	for i := range 2000 {
		rows = append(rows, row{[]string{missing, good}[i%2], fmt.Sprint("k", i%10), fmt.Sprint(i), nil})
	}
	p := s.start(inJSON)
	s.put(rows...)
	s.arrive(good, 1000, 5*time.Second)
	w := p.awaitParked(1)[0]
	if w.Part != "topic" || w.Topic != missing || !strings.Contains(w.Reason, "does not exist") {
		t.Errorf("what waits is %+v, want the topic with its cause", w)
	}
	// Rows that come meanwhile are not even read, and the good topic goes on.
	for i := range 100 {
		s.put(row{missing, fmt.Sprint("k", i%10), fmt.Sprint(2000 + i), nil}, row{good, fmt.Sprint("k", i%10), fmt.Sprint(i), nil})
	}
	s.arrive(good, 1100, 5*time.Second)
	eventually(t, drainLimit, "only the missing topic's rows are left", func() bool { return s.left() == 1100 })
	if ok, words := p.ready(); !ok {
		t.Errorf("one missing topic makes the forwarder unready: %s", words)
	}
	m := p.metrics()
	if m["parked.topic"] != 1 || m["events_in_memory"] > 500 {
		t.Errorf("%v topics wait with %v events in memory", m["parked.topic"], m["events_in_memory"])
	}
	if n := p.warnings(missing); n != 1 {
		t.Errorf("%d warnings of the topic, want one", n)
	}
	topics, err := s.kafka.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if topics.Has(missing) {
		t.Fatal("the forwarder has created the topic")
	}

	s.createTopic(missing, 3, nil)
	t.Cleanup(func() { s.deleteTopic(missing) })
	s.arrive(missing, 1100, 20*time.Second)
	s.awaitEmpty()
	p.awaitParked(0)
	p.stop()
	for k := range 10 {
		var want []string
		for i := k; i < 2000; i += 10 {
			if i%2 == 0 {
				want = append(want, fmt.Sprint(i))
			}
		}
		for i := k; i < 100; i += 10 {
			want = append(want, fmt.Sprint(2000+i))
		}
		if got := values(s.records(missing), fmt.Sprint("k", k)); got != strings.Join(want, ",") {
			t.Errorf("key k%d has %s, want %s", k, got, strings.Join(want, ","))
		}
	}
}

// deleteTopic deletes a topic, and returns when the broker does not know it any more.
func (s *stage) deleteTopic(topic string) {
	s.t.Helper()
	// Not the test's own context, which has ended when its clean-up runs.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := s.kafka.DeleteTopic(ctx, topic); err != nil {
		s.t.Fatalf("deleting topic %s: %v", topic, err)
	}
	eventually(s.t, 10*time.Second, "the topic is gone", func() bool {
		topics, err := s.kafka.ListTopics(ctx)
		return err == nil && !topics.Has(topic)
	})
}

// TestC74TopicMadeAgain deletes a topic under load and makes it again with fewer partitions.
func TestC74TopicMadeAgain(t *testing.T) {
	s := newStage(t, nil, nil)
	topic := s.makeTopic("", 6, nil)
	p := s.start(inJSON)
	writer := s.trickle(topic, 50, 0, 2*time.Millisecond)
	eventually(t, drainLimit, "records flow", func() bool { return s.count(topic) > 500 })
	s.deleteTopic(topic)
	var gone int64
	s.value(&gone, "SELECT last_value FROM outbox_id_seq")
	eventually(t, drainLimit, "rows wait for the topic", func() bool { return s.left() > 200 })
	s.createTopic(topic, 3, nil)
	eventually(t, drainLimit, "records flow again", func() bool { return s.count(topic) > 500 })
	total := writer.end()
	s.awaitEmpty()
	p.awaitParked(0)
	p.stop()
	records := s.records(topic)
	byID(t, records)
	// A row's number is its id less one.
	writer.wantTail(records, int(gone), nil)
	hash := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	used := map[int32]bool{}
	for _, r := range records {
		used[r.Partition] = true
		if want := hash.Partition(r, 3); int(r.Partition) != want {
			t.Fatalf("key %s is on partition %d, want %d", r.Key, r.Partition, want)
		}
	}
	t.Logf("%d of %d rows are in the new topic", len(records), total)
	if len(used) != 3 {
		t.Errorf("%d of 3 partitions are used", len(used))
	}
	if n := p.warnings(`"msg":"the topic was deleted and made again"`); n != 1 {
		t.Errorf("%d warnings of the new topic, want one:\n%s", n, p.output())
	}
}

// TestC75PartitionsRaised doubles a topic's partitions under load. Records carry the time at
// which the broker has appended them, so that those of one key compare across partitions.
func TestC75PartitionsRaised(t *testing.T) {
	s := newStage(t, nil, nil)
	topic := s.makeTopic("", 3, map[string]string{"message.timestamp.type": "LogAppendTime"})
	p := s.start(inJSON)
	writer := s.trickle(topic, 50, 0, 5*time.Millisecond)
	eventually(t, drainLimit, "records flow", func() bool { return s.count(topic) > 200 })
	if _, err := s.kafka.UpdatePartitions(t.Context(), 6, topic); err != nil {
		t.Fatal(err)
	}
	p.retry(0) // by which it looks at its topics at once, else twice a minute
	eventually(t, drainLimit, "a warning", func() bool { return p.warnings("partition count") > 0 })
	before := writer.end()
	s.awaitEmpty()
	again := s.trickle(topic, 50, before, 2*time.Millisecond)
	eventually(t, drainLimit, "records flow on", func() bool { return s.count(topic) > before+500 })
	again.end()
	s.awaitEmpty()
	p.stop()
	records := s.records(topic)
	byID(t, records)
	used := map[int32]bool{}
	perKey := map[string][]*kgo.Record{}
	for _, r := range records {
		used[r.Partition] = true
		perKey[string(r.Key)] = append(perKey[string(r.Key)], r)
	}
	if len(used) != 6 {
		t.Errorf("%d of 6 partitions are used", len(used))
	}
	// In the order of partitions a moved key may come with its new records first.
	var ordered []*kgo.Record
	for _, list := range perKey {
		ordered = append(ordered, sortedByNumber(list)...)
	}
	moved := 0
	again.wantTail(ordered, 0, func(a, b *kgo.Record) bool { moved++; return !b.Timestamp.Before(a.Timestamp) })
	t.Logf("%d records, %d of 50 keys moved", len(records), moved)
	if moved == 0 || moved > 50 {
		t.Errorf("%d keys have moved, want some, each once", moved)
	}
	if p.warnings(`"from":3,"to":6`) != 1 {
		t.Errorf("the log does not tell of 3 and 6 partitions once:\n%s", p.output())
	}
}
