package tail

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/outbox-forwarder/forwarder/source"
)

// world is a naive outbox table and its log. A transaction's commit reaches the log first and
// becomes visible to snapshots at any moment after that: before the log's reader gets to it, or
// after. Writers of a key that is ordered hold it until they are visible.
type world struct {
	r       *rand.Rand
	nextID  int64
	nextXid uint64
	ended   uint64               // the highest xid that has ended
	rows    map[int64]*record    // that exist, committed or not
	all     map[int64]*record    // that were ever inserted
	keys    map[string][]*record // in the order of their writers
	locks   map[string]*txn
	open    []*txn // not ended, as snapshots see it
	log     []*txn // committed, in that order
}

type record struct {
	*source.Event
	tx      *txn
	place   int // in keys; -1 for a key without order
	acked   bool
	deleted bool
	foreign bool // deleted by others while its lane was ours
}

type txn struct {
	xid       uint64
	rows      []*record
	keys      []string
	committed bool // in the log
	ended     bool
}

func newWorld(r *rand.Rand) *world {
	return &world{
		r: r, nextID: 1, nextXid: 100, ended: 99,
		rows: make(map[int64]*record), all: make(map[int64]*record), keys: make(map[string][]*record), locks: make(map[string]*txn),
	}
}

func (w *world) begin() *txn {
	tx := &txn{xid: w.nextXid}
	w.nextXid++
	w.open = append(w.open, tx)
	return tx
}

// insert adds a row to the transaction, unless another one holds the key.
func (w *world) insert(tx *txn, lanes, topics, keys int) {
	k := w.r.IntN(keys)
	ev := &source.Event{Topic: fmt.Sprintf("t%d", k%topics), Lane: source.Lane(k % lanes), Payload: make([]byte, w.r.IntN(300))}
	rec := &record{Event: ev, tx: tx, place: -1}
	if w.r.IntN(6) > 0 {
		key := fmt.Sprint(k)
		ev.Key = []byte(key)
		if holder := w.locks[key]; holder != nil && holder != tx {
			return
		}
		w.locks[key] = tx
		tx.keys = append(tx.keys, key)
		rec.place = len(w.keys[key])
		w.keys[key] = append(w.keys[key], rec)
	}
	ev.ID = w.nextID
	w.nextID++
	w.rows[ev.ID], w.all[ev.ID] = rec, rec
	tx.rows = append(tx.rows, rec)
}

// commit writes the commit to the log, which nobody sees yet.
func (w *world) commit(tx *txn) {
	tx.committed = true
	w.log = append(w.log, tx)
}

// end makes a transaction visible, or undone where it did not commit.
func (w *world) end(tx *txn) {
	tx.ended = true
	w.ended = max(w.ended, tx.xid)
	w.open = slices.DeleteFunc(w.open, func(other *txn) bool { return other == tx })
	for _, key := range tx.keys {
		delete(w.locks, key)
	}
	if tx.committed {
		return
	}
	for _, rec := range tx.rows {
		rec.deleted = true
		delete(w.rows, rec.ID)
	}
}

// takeXid is a transaction that does nothing else.
func (w *world) takeXid() uint64 {
	tx := w.begin()
	w.end(tx)
	return tx.xid
}

func (w *world) snapshot() source.Snapshot {
	s := source.Snapshot{Xmin: w.ended + 1, Xmax: w.ended + 1}
	for _, tx := range w.open {
		if tx.xid < s.Xmax {
			s.Running = append(s.Running, tx.xid)
		}
	}
	slices.Sort(s.Running)
	if len(s.Running) > 0 {
		s.Xmin = s.Running[0]
	}
	return s
}

func (w *world) visible() []*record {
	var found []*record
	for _, rec := range w.rows {
		if rec.tx.ended {
			found = append(found, rec)
		}
	}
	slices.SortFunc(found, func(a, b *record) int { return int(a.ID - b.ID) })
	return found
}

// read answers a read as a table does.
func (w *world) read(r *source.Read) *source.Page {
	page := &source.Page{Snapshot: w.snapshot()}
	bytes := 0
	for _, rec := range w.visible() {
		if rec.ID <= r.Floor || slices.Contains(r.Known, rec.ID) || leftOut(r, rec.Event) {
			continue
		}
		page.Events = append(page.Events, rec.Event)
		bytes += rec.Size()
		if len(page.Events) == r.Limit || bytes >= r.Bytes {
			page.Full = true
			break
		}
	}
	return page
}

func leftOut(r *source.Read, ev *source.Event) bool {
	return r.Lanes != nil && !slices.Contains(r.Lanes, ev.Lane) || slices.Contains(r.Topics, ev.Topic) ||
		ev.Key != nil && slices.Contains(r.Keys, ev.TopicKey())
}

// delete removes what a statement can see, and returns how many rows that were.
func (w *world) delete(ids []int64) int {
	n := 0
	for _, id := range ids {
		if rec := w.rows[id]; rec != nil && rec.tx.ended {
			rec.deleted = true
			delete(w.rows, id)
			n++
		}
	}
	return n
}

const start = math.MinInt64

func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }
