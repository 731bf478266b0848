package postgres

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// oddTexts are names that must pass through parameters and comparisons unharmed.
var oddTexts = []string{
	"", " ", "a", "A", "a ", "'", `"`, `\`, `\\`, `{a,b}`, "NULL", "null", ",", "a\nb", "é", "e\u0301", "木", "🙂", "%", "$1", "\x01", "a''b",
}

// TestReadExcludesWhatItIsTold compares random reads with a plain search of the same rows.
func TestReadExcludesWhatItIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	r := rand.New(rand.NewPCG(3, 4))
	odd := func() string { return oddTexts[r.IntN(len(oddTexts))] }
	// Ids of all sizes in no order, as an application may give them.
	used := make(map[int64]bool)
	for range 600 {
		id := r.Int64N(400) - 200
		if r.IntN(3) == 0 {
			id = int64(r.Uint64())
		}
		if used[id] || id == lanes.Start {
			continue
		}
		used[id] = true
		var key *string
		if r.IntN(5) > 0 {
			text := odd()
			key = &text
		}
		w.exec("INSERT INTO outbox (id, topic, key) OVERRIDING SYSTEM VALUE VALUES ($1, $2, $3)", id, odd(), key)
	}
	w.exec("INSERT INTO outbox (id, topic) OVERRIDING SYSTEM VALUE VALUES ($1, 't'), ($2, 't') ON CONFLICT DO NOTHING", int64(lanes.Start+1), int64(1<<63-1))
	s := w.open()
	all := events(t, s, everything())
	if len(all) != w.rows() || !slices.IsSortedFunc(all, func(a, b *source.Event) int { return cmp.Compare(a.ID, b.ID) }) {
		t.Fatalf("%d events of %d rows, sorted by id: %v", len(all), w.rows(), ids(all))
	}
	if all[0].ID != lanes.Start+1 || all[len(all)-1].ID != 1<<63-1 {
		t.Errorf("from row %d to %d", all[0].ID, all[len(all)-1].ID)
	}
	for round := range 300 {
		read := randomRead(r, all)
		got := page(t, s, read)
		want, full := search(all, read)
		if !slices.Equal(ids(got.Events), want) || got.Full != full {
			t.Fatalf("round %d: %+v:\ngot  %v, full %v\nwant %v, full %v", round, *read, ids(got.Events), got.Full, want, full)
		}
	}
}

func randomRead(r *rand.Rand, all []*source.Event) *source.Read {
	read := everything()
	some := func() *source.Event { return all[r.IntN(len(all))] }
	if r.IntN(2) == 0 {
		read.Floor = some().ID
	}
	if r.IntN(2) == 0 {
		read.Limit = 1 + r.IntN(len(all)+10)
	}
	if r.IntN(2) == 0 {
		read.Lanes = []source.Lane{}
		for lane := range source.Lane(lanes.DefaultLanes) {
			if r.IntN(2) == 0 {
				read.Lanes = append(read.Lanes, lane)
			}
		}
	}
	for range r.IntN(100) * r.IntN(2) {
		read.Known = append(read.Known, some().ID, int64(r.Uint64()))
	}
	for range r.IntN(5) * r.IntN(2) {
		read.Topics = append(read.Topics, some().Topic, fmt.Sprint("none", r.Int()))
	}
	for range r.IntN(60) * r.IntN(2) {
		// A pair that is there, and one of parts that belong to different rows.
		if ev := some(); ev.Key != nil {
			read.Keys = append(read.Keys, ev.TopicKey(), source.TopicKey{Topic: some().Topic, Key: string(ev.Key)})
		}
	}
	return read
}

// search is what a read means, in plain words.
func search(all []*source.Event, read *source.Read) (want []int64, full bool) {
	want = []int64{}
	for _, ev := range all {
		switch {
		case ev.ID <= read.Floor,
			read.Lanes != nil && !slices.Contains(read.Lanes, ev.Lane),
			slices.Contains(read.Known, ev.ID),
			slices.Contains(read.Topics, ev.Topic),
			ev.Key != nil && slices.Contains(read.Keys, ev.TopicKey()):
			continue
		}
		if want = append(want, ev.ID); len(want) == read.Limit {
			return want, true
		}
	}
	return want, false
}

// TestRowsWithoutKeyPassTheKeyFilter: a comparison with NULL is neither true nor false, and
// must not swallow the row.
func TestRowsWithoutKeyPassTheKeyFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "INSERT INTO outbox (topic, key) VALUES ('a', NULL), ('a', ''), ('a', 'k'), ('b', NULL), ('b', 'k')")
	s := w.open()
	for _, c := range []struct {
		keys []source.TopicKey
		want []int64
	}{
		{[]source.TopicKey{{Topic: "a", Key: "k"}}, []int64{1, 2, 4, 5}},
		{[]source.TopicKey{{Topic: "a", Key: ""}}, []int64{1, 3, 4, 5}},
		{[]source.TopicKey{{Topic: "b", Key: ""}, {Topic: "b", Key: "k"}, {Topic: "a", Key: "k"}}, []int64{1, 2, 4}},
	} {
		read := everything()
		read.Keys = c.keys
		wantIDs(t, fmt.Sprint("without ", c.keys), events(t, s, read), c.want...)
	}
}

// TestManyExclusions: as much as a full engine can exclude is one read.
func TestManyExclusions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "INSERT INTO outbox (topic, key) SELECT 't' || i % 7, 'k' || i FROM generate_series(1, 40000) i")
	s := w.open()
	read := everything()
	for id := range int64(32768) {
		read.Known = append(read.Known, 2+id)
	}
	for i := range 1000 {
		read.Keys = append(read.Keys, source.TopicKey{Topic: fmt.Sprint("t", (35000+i)%7), Key: fmt.Sprint("k", 35000+i)})
	}
	read.Topics = []string{"t3"}
	got := events(t, s, read)
	var want []int64
	for id := int64(1); id <= 40000; id++ {
		if (id == 1 || id > 32769) && (id < 35000 || id >= 36000) && id%7 != 3 {
			want = append(want, id)
		}
	}
	wantIDs(t, "what is left", got, want...)
}
