package mongo

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// TestPageAgainstModel: over many random outboxes and reads, a page is what a filter of the whole
// outbox in its order says.
func TestPageAgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t)
			s := w.open()
			type row struct {
				ref, topic string
				key        []byte
				lane       source.Lane
			}
			var model []row
			for i := range 200 {
				id := fmt.Sprintf("%03d-%d", r.IntN(1000), i)
				topic := fmt.Sprintf("t%d", r.IntN(3))
				var key any
				var bytes []byte
				if r.IntN(4) > 0 {
					key = fmt.Sprintf("k%d", r.IntN(8))
					bytes = []byte(key.(string))
				}
				w.insert(doc(id, key, id, bson.E{Key: "topic", Value: topic}))
				model = append(model, row{ref: id, topic: topic, key: bytes})
			}
			// The lanes and numbers are Read's to say; that they fit is checked below.
			numbers := make(map[string]int64)
			for i, ev := range read(t, s, all()).Events {
				m := &model[i]
				if ev.Ref != m.ref || ev.Topic != m.topic || string(ev.Key) != string(m.key) || string(ev.Payload) != m.ref {
					t.Fatalf("event %d is %s of %s/%q, and not %+v", i, ev.Ref, ev.Topic, ev.Key, *m)
				}
				if ev.Key != nil && ev.Lane != lanes.LaneOf(ev.Key, s.Lanes()) {
					t.Errorf("key %q in lane %d", ev.Key, ev.Lane)
				}
				m.lane = ev.Lane
				numbers[ev.Ref] = ev.ID
			}
			for range 30 {
				q := all()
				q.Limit = 1 + r.IntN(60)
				var known []string
				for ref, id := range numbers { // of what the last read returned or knew
					if r.IntN(3) == 0 {
						q.Known = append(q.Known, id)
						known = append(known, ref)
					}
				}
				if r.IntN(2) == 0 {
					for lane := range source.Lane(s.Lanes()) {
						if r.IntN(2) == 0 {
							q.Lanes = append(q.Lanes, lane)
						}
					}
				}
				if r.IntN(2) == 0 {
					q.Topics = []string{"t1", "absent"}
				}
				if r.IntN(2) == 0 {
					q.Keys = []source.TopicKey{{Topic: "t0", Key: "k1"}, {Topic: "t2", Key: "k3"}}
				}
				var want []string
				more := false
				for _, m := range model {
					if slices.Contains(known, m.ref) || q.Lanes != nil && !slices.Contains(q.Lanes, m.lane) ||
						slices.Contains(q.Topics, m.topic) || m.key != nil && slices.Contains(q.Keys, source.TopicKey{Topic: m.topic, Key: string(m.key)}) {
						continue
					}
					if len(want) == q.Limit {
						more = true
						break
					}
					want = append(want, m.ref)
				}
				page := read(t, s, q)
				// Rows without a key may come in another order.
				keyed := func(list []string) (kept []string) {
					for _, ref := range list {
						i := slices.IndexFunc(model, func(m row) bool { return m.ref == ref })
						if model[i].key != nil {
							kept = append(kept, ref)
						}
					}
					return kept
				}
				got := strings.Fields(refs(page.Events))
				if !slices.Equal(keyed(got), keyed(want)) || !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
					t.Fatalf("%+v:\ngot  %v\nwant %v", q, got, want)
				}
				if more && !page.Full || page.Full != (len(want) == q.Limit) {
					t.Errorf("full %v, with %d events of %d", page.Full, len(got), q.Limit)
				}
				next := make(map[string]int64)
				for _, ref := range known {
					next[ref] = numbers[ref]
				}
				for _, ev := range page.Events {
					next[ev.Ref] = ev.ID
				}
				numbers = next
			}
		})
	}
}

// TestPageBytes: a page ends with the event that passes its bytes, however large the documents
// are, and never without one.
func TestPageBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	sizes := []int{10, 10, 15 << 20, 10, 3 << 20, 15 << 20, 15 << 20, 10, 15 << 20, 20, 15 << 20}
	for i, n := range sizes {
		// The _ids are not in the order of the inserts.
		w.insert(doc(fmt.Sprintf("%02d", len(sizes)-i), "k", strings.Repeat("x", n)))
	}
	// A step that meets larger documents than it may hold is cut off, and says how large they are.
	var large []string
	for i := range sizes {
		large = append(large, docKey(rawValue(t, fmt.Sprintf("%02d", i+1))))
	}
	if events, complete, err := s.step(t.Context(), large, 20<<20); err != nil || complete || events != nil || s.avg < 4<<20 {
		t.Errorf("a step of 78 MiB: complete %v, on average %d bytes: %v", complete, s.avg, err)
	}
	s.avg = firstSize
	q := all()
	q.Bytes = 4 << 20
	var lengths []int
	for pages := 0; len(lengths) < len(sizes); pages++ {
		page := read(t, s, q)
		size := 0
		for i, ev := range page.Events {
			if size >= q.Bytes {
				t.Errorf("event %d of the page comes after %d bytes", i, size)
			}
			size += ev.Size()
			lengths = append(lengths, len(ev.Payload))
		}
		if len(page.Events) == 0 {
			t.Fatal("a page without events")
		}
		if last := len(lengths) == len(sizes); page.Full == last && size < q.Bytes {
			t.Errorf("page %d: full %v after %d events", pages, page.Full, len(lengths))
		}
		q.Known = append(q.Known, ids(page.Events)...)
	}
	if !slices.Equal(lengths, sizes) {
		t.Errorf("payloads of %v bytes", lengths)
	}
	if page := read(t, s, q); len(page.Events) > 0 || page.Full {
		t.Errorf("%d events more", len(page.Events))
	}
}

// TestC64ClientMadeIds: neither a smaller _id nor an equal date makes a document be passed over,
// and the order is that of the inserts.
func TestC64ClientMadeIds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	q := all()
	q.Limit = 10
	date := bson.E{Key: "createdAt", Value: bson.DateTime(1_700_000_000_000)}
	var got []string
	next := func() {
		page := read(t, s, q)
		for _, ev := range page.Events {
			got = append(got, string(ev.Payload))
			q.Known = append(q.Known, ev.ID)
		}
	}
	var want []string
	for i := range 100 {
		id := bson.NewObjectIDFromTimestamp(date.Value.(bson.DateTime).Time().AddDate(0, 0, -i%2)) // one clock is a day behind
		want = append(want, fmt.Sprint(i))
		w.insert(doc(id, "k", want[i], date))
		if i%7 == 0 {
			next()
		}
	}
	for range 20 {
		next()
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// TestUnordered: documents without a timestamp of the server's come too, by _id and first, and the log says so
// once.
func TestUnordered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	none := bson.E{Key: "seq"}
	w.insert(doc("c", "k", "3"), doc("b", "k", "2", none), doc("a", "k", "1", none), doc("d", "k", "4", bson.E{Key: "seq", Value: "x"}))
	for range 2 {
		if got := refs(read(t, s, all()).Events); got != "a b d c" {
			t.Errorf("got %s", got)
		}
	}
	if n := strings.Count(w.logged.String(), "has no timestamp"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, w.logged)
	}
}

// TestC62OrderInsideATransaction: what a transaction inserts comes in the order of the inserts
// once it has committed, however much later that is, and what was rolled back never.
func TestC62OrderInsideATransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	late, aborted := w.begin(), w.begin()
	late.insert(doc("z", "a", "1"))
	w.inTransaction(func(tx *transaction) { tx.insert(doc("9", "b", "1"), doc("8", "b", "2"), doc("7", "b", "3")) })
	aborted.insert(doc("x", "c", "1"), doc("w", "c", "2"))
	late.insert(doc("y", "a", "2"))
	first := read(t, s, all())
	if got := refs(first.Events); got != "9 8 7" {
		t.Fatalf("got %s", got)
	}
	if err := aborted.session.AbortTransaction(t.Context()); err != nil {
		t.Fatal(err)
	}
	late.commit()
	w.insert(doc("0", "a", "3"))
	q := all()
	q.Known = ids(first.Events)
	if got := refs(read(t, s, q).Events); got != "z y 0" {
		t.Errorf("got %s", got)
	}
	if got := refs(read(t, s, all()).Events); got != "z 9 8 7 y 0" {
		t.Errorf("read anew: %s", got)
	}
}

// TestC68UpdatesAndDeletes (and C31): a document is published as it is when it is read; one that is gone by
// then is not, and is no tombstone.
func TestC68UpdatesAndDeletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	w.insert(doc("a", "k", "1"), doc("b", "k", "2"))
	if _, err := w.outbox.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}, set(bson.D{{Key: "payload", Value: "new"}})); err != nil {
		t.Fatal(err)
	}
	if _, err := w.outbox.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "b"}}); err != nil {
		t.Fatal(err)
	}
	page := read(t, s, all())
	if len(page.Events) != 1 || string(page.Events[0].Payload) != "new" {
		t.Errorf("got %s", refs(page.Events))
	}
	q := all()
	q.Known = ids(page.Events)
	if _, err := w.outbox.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}, set(bson.D{{Key: "payload", Value: "newer"}})); err != nil {
		t.Fatal(err)
	}
	if page := read(t, s, q); len(page.Events) != 0 {
		t.Error("an update is published")
	}
}

// TestReadByAnotherIndex: an index that only begins with the order is enough.
func TestReadByAnotherIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.outbox.Indexes().DropAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.outbox.Indexes().CreateOne(t.Context(), driver.IndexModel{Keys: bson.D{{Key: "seq", Value: 1}, {Key: "_id", Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	s := w.open()
	w.many(0, 20)
	if page := read(t, s, all()); len(page.Events) != 20 {
		t.Errorf("%d events", len(page.Events))
	}
	// It is said when it goes away, and any other one will do then.
	if err := w.outbox.Indexes().DropAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(t.Context(), all()); err == nil || !strings.Contains(err.Error(), "forwarder init") {
		t.Errorf("without an index: %v", err)
	}
	if _, err := w.outbox.Indexes().CreateOne(t.Context(), driver.IndexModel{Keys: bson.D{{Key: "seq", Value: 1}, {Key: "_id", Value: 1}, {Key: "key", Value: 1}}}); err != nil {
		t.Fatal(err)
	}
	if page := read(t, s, all()); len(page.Events) != 20 {
		t.Errorf("%d events", len(page.Events))
	}
}

// TestReadIsCovered: the first step of a read looks at the index alone.
func TestReadIsCovered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	w.many(0, 50)
	f := s.cfg.Fields
	plan, err := w.db.RunCommand(t.Context(), bson.D{{Key: "explain", Value: bson.D{
		{Key: "find", Value: "outbox"}, {Key: "sort", Value: s.cfg.order()}, {Key: "hint", Value: *s.index.Load()},
		{Key: "projection", Value: s.cfg.projection(f.Seq, f.Key, f.Topic)},
	}}, {Key: "verbosity", Value: "executionStats"}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	stats := plan.Lookup("executionStats").String()
	if strings.Contains(stats, `"FETCH"`) || strings.Contains(stats, `"SORT"`) || !strings.Contains(stats, `"totalDocsExamined": {"$numberInt":"0"}`) {
		t.Errorf("the plan: %s", stats)
	}
}

// TestC59CollectionReplaced: an outbox that is dropped and made anew, or that another collection
// was renamed to, is read like any other.
func TestC59CollectionReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	w.many(0, 10)
	first := read(t, s, all())
	if err := w.outbox.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	q := all()
	q.Known = ids(first.Events)
	if page := read(t, s, q); len(page.Events) != 0 {
		t.Errorf("%d events of nothing", len(page.Events))
	}
	w.init()
	w.many(100, 3)
	if got := refs(read(t, s, q).Events); got != "100 101 102" {
		t.Errorf("got %s", got)
	}
	restored := w.config(func(c *Config) { c.Collection = "restored" }).withDefaults()
	if _, err := w.db.Collection("restored").InsertOne(t.Context(), doc("r", "k", "x")); err != nil {
		t.Fatal(err)
	}
	if err := createIndex(t.Context(), w.db.Collection("restored"), restored); err != nil {
		t.Fatal(err)
	}
	if err := w.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "renameCollection", Value: w.db.Name() + ".restored"},
		{Key: "to", Value: w.db.Name() + ".outbox"}, {Key: "dropTarget", Value: true}}).Err(); err != nil {
		t.Fatal(err)
	}
	if got := refs(read(t, s, q).Events); got != "r" {
		t.Errorf("got %s", got)
	}
}
