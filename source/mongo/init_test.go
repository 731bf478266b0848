package mongo

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// TestInit creates what is missing, once, and leaves alone what is there.
func TestInit(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.init(func(c *Config) { c.Lanes = 64 })
	w.many(0, 10)
	w.init() // with another lane count
	s := w.open()
	if s.Lanes() != 64 || s.Table() != w.db.Name()+".outbox" || w.count(bson.D{}) != 10 {
		t.Errorf("%d lanes in %s", s.Lanes(), s.Table())
	}
	var indexes []bson.M
	cursor, err := w.outbox.Indexes().List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := cursor.All(t.Context(), &indexes); err != nil || len(indexes) != 2 {
		t.Errorf("%v: %v", indexes, err)
	}
	table, _ := round(t, w.leases(), "nobody")
	for i, l := range table.Leases {
		if l != (lanes.Lease{Lane: source.Lane(i)}) {
			t.Errorf("lane %d is %+v", i, l)
		}
	}
}

// TestInitOfWhatIsThere: documents that were there before are read.
func TestInitOfWhatIsThere(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.many(0, 10)
	w.init()
	if page := read(t, w.open(), all()); len(page.Events) != 10 {
		t.Errorf("%d events", len(page.Events))
	}
}

// TestInitAtTheSameTime: however many run at once, and whatever lane count each would have, all
// of them end well and one count stands.
func TestInitAtTheSameTime(t *testing.T) {
	t.Parallel()
	for range 5 {
		w := emptyWorld(t)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if err := Init(t.Context(), w.config(func(c *Config) { c.Lanes = 32 << i })); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := w.open().Lanes(); !slices.Contains([]int{32, 64, 128, 256}, n) {
			t.Errorf("%d lanes", n)
		}
	}
}

// TestStatements: what is printed names what Init creates.
func TestStatements(t *testing.T) {
	t.Parallel()
	list, err := Statements(Config{URL: "mongodb://h/app", Collection: "out", Lanes: 64})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`db.getSiblingDB("app").getCollectionNames().includes("out") || db.getSiblingDB("app").createCollection("out")`,
		`db.getSiblingDB("app").getCollectionNames().includes("out_members") || db.getSiblingDB("app").createCollection("out_members")`,
		`db.getSiblingDB("app").getCollectionNames().includes("out_lanes") || db.getSiblingDB("app").createCollection("out_lanes")`,
		`db.getSiblingDB("app").getCollection("out").createIndex({"seq": 1, "_id": 1, "key": 1, "topic": 1})`,
		`db.getSiblingDB("app").getCollection("out_lanes").countDocuments({}) || db.getSiblingDB("app").getCollection("out_lanes").insertMany([...Array(64).keys()].map(lane => ({_id: lane, owner: null, epoch: Long(0), since: new Date()})))`,
	}
	if !slices.Equal(list, want) {
		t.Errorf("got\n%s", strings.Join(list, "\n"))
	}
	if _, err := Statements(Config{URL: "mongodb://h"}); err == nil {
		t.Error("statements for no database")
	}
}

// TestOverview counts members, lanes and what waits.
func TestOverview(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	overview := func() *source.Overview {
		t.Helper()
		o, err := ReadOverview(t.Context(), w.config())
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if o := overview(); o.Lanes != 256 || o.Unowned != 256 || len(o.Members) != 0 || o.Backlog != (source.Backlog{}) || o.Table != w.db.Name()+".outbox" {
		t.Errorf("of nothing: %+v", o)
	}
	l := w.leases()
	w.join(l, "b", "a", "c")
	w.overdue("c")
	if _, _, err := l.Round(t.Context(), lanes.Member{ID: "b", Retiring: true}, time.Minute, []byte(`{"version":"1"}`)); err != nil {
		t.Fatal(err)
	}
	w.join(l, "c")
	w.overdue("c")
	table, _, err := w.leases().Round(t.Context(), lanes.Member{ID: "c"}, time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.overdue("c")
	half := table.Leases[:128]
	if got, err := l.Take(t.Context(), "a", half); err != nil || len(got) != 128 {
		t.Fatalf("took %d: %v", len(got), err)
	}
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	mine := 0
	for i := range 20 {
		key := string(rune('a' + i))
		if lanes.LaneOf([]byte(key), 256) < 128 {
			mine++
		}
		w.insert(doc(i, key, "x", bson.E{Key: "createdAt", Value: at.Add(time.Duration(i) * time.Minute)}))
	}
	o := overview()
	if len(o.Members) != 3 || o.Members[0].ID != "a" || o.Members[0].State != "live" || o.Members[1].State != "retiring" || o.Members[2].State != "overdue" {
		t.Fatalf("members %+v", o.Members)
	}
	if a := o.Members[0]; a.Lanes != 128 || a.Backlog.Rows != mine || time.Since(a.Started) > time.Hour || a.Expires < 1 {
		t.Errorf("%+v, of %d", a, mine)
	}
	if string(o.Members[1].Report) != `{"version":"1"}` || o.Members[2].Expires > 0 {
		t.Errorf("%+v", o.Members[1:])
	}
	if o.Backlog.Rows != 20 || o.Backlog.More || o.Backlog.Oldest == nil || !o.Backlog.Oldest.Equal(at) || o.Unowned != 128 {
		t.Errorf("backlog %+v, %d without an owner", o.Backlog, o.Unowned)
	}
	if len(o.Leases) != 256 || o.Leases[5].Owner != "a" || o.Leases[5].Epoch != 1 || time.Since(o.Leases[5].Since) > time.Hour {
		t.Errorf("lease %+v", o.Leases[5])
	}
	s := w.open()
	if oldest, ok, err := s.Oldest(t.Context()); err != nil || !ok || !oldest.Equal(at) {
		t.Errorf("the oldest is of %v: %v %v", oldest, ok, err)
	}
	w.many(1000, source.BacklogBound)
	if o := overview(); o.Backlog.Rows != source.BacklogBound || !o.Backlog.More {
		t.Errorf("backlog %+v", o.Backlog)
	}
	if _, err := w.outbox.DeleteMany(t.Context(), bson.D{}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.Oldest(t.Context()); err != nil || ok {
		t.Errorf("the oldest of nothing: %v %v", ok, err)
	}
}
