package lanes

import (
	"math/rand/v2"
	"slices"

	"github.com/outbox-forwarder/forwarder/source"
)

// table is a naive model of the outbox table and of PostgreSQL's transactions: ids come from
// a sequence when they are taken, an xid with a transaction's first write, and a row is
// visible once its transaction has committed.
type table struct {
	nextID  int64
	nextXid uint64
	ended   uint64   // the highest xid of a transaction that has ended
	running []uint64 // ascending
	ours    []uint64 // of running: transactions that are marked as forwarders' own
	rows    []*row   // ascending by id, deleted ones taken out
	byID    map[int64]*row
	locks   map[source.TopicKey]*transaction
	history map[source.TopicKey][]*row // in commit order, for the keys whose writers serialise
	written []*row                     // every committed row, in commit order
}

type row struct {
	*source.Event
	writer    uint64
	committed bool
	deleted   bool
	// ordered says that its writers serialise on the key and take the id at the insert, so
	// that its place among the rows of its key is promised.
	ordered bool
	place   int // in history, for a committed ordered row
	flaw    flaw
}

// transaction is a writer's, or that of one of the forwarder's deletes.
type transaction struct {
	xid   uint64 // 0 before the first write
	taken []int64
	rows  []*row
	locks []source.TopicKey
	long  bool // stays open
	ours  bool // marked as a forwarder's
}

func newTable() *table {
	return &table{
		nextID: 1, nextXid: 100, ended: 99,
		byID:    make(map[int64]*row),
		locks:   make(map[source.TopicKey]*transaction),
		history: make(map[source.TopicKey][]*row),
	}
}

func (t *table) takeID() int64 {
	t.nextID++
	return t.nextID - 1
}

func (t *table) takeXid(tx *transaction) {
	if tx.xid != 0 {
		return
	}
	tx.xid = t.nextXid
	t.nextXid++
	t.running = append(t.running, tx.xid)
	if tx.ours {
		t.ours = append(t.ours, tx.xid)
	}
}

// insert adds a row; ev.ID is one that was taken before, or 0 for the usual order: xid, id.
// It reports false when another transaction holds the key, and the writer would wait.
func (t *table) insert(tx *transaction, ev *source.Event, ordered bool) (*row, bool) {
	if ordered {
		key := ev.TopicKey()
		switch t.locks[key] {
		case nil:
			t.locks[key] = tx
			tx.locks = append(tx.locks, key)
		case tx:
		default:
			return nil, false
		}
	}
	t.takeXid(tx)
	if ev.ID == 0 {
		ev.ID = t.takeID()
	}
	r := &row{Event: ev, writer: tx.xid, ordered: ordered}
	at, _ := slices.BinarySearchFunc(t.rows, ev.ID, compareID)
	t.rows = slices.Insert(t.rows, at, r)
	t.byID[ev.ID] = r
	tx.rows = append(tx.rows, r)
	return r, true
}

func compareID(r *row, id int64) int {
	switch {
	case r.ID < id:
		return -1
	case r.ID > id:
		return 1
	}
	return 0
}

// end commits a transaction or rolls it back.
func (t *table) end(tx *transaction, commit bool) {
	for _, key := range tx.locks {
		delete(t.locks, key)
	}
	if tx.xid == 0 {
		return
	}
	at, _ := slices.BinarySearch(t.running, tx.xid)
	t.running = slices.Delete(t.running, at, at+1)
	t.ours = slices.DeleteFunc(t.ours, func(xid uint64) bool { return xid == tx.xid })
	t.ended = max(t.ended, tx.xid)
	for _, r := range tx.rows {
		if !commit {
			t.remove(r)
			continue
		}
		r.committed = true
		t.written = append(t.written, r)
		if r.ordered {
			key := r.TopicKey()
			r.place = len(t.history[key])
			t.history[key] = append(t.history[key], r)
		}
	}
}

func (t *table) remove(r *row) {
	r.deleted = true
	at, found := slices.BinarySearchFunc(t.rows, r.ID, compareID)
	if found {
		t.rows = slices.Delete(t.rows, at, at+1)
	}
}

// left counts the committed rows that are still there.
func (t *table) left() int {
	n := 0
	for _, r := range t.rows {
		if r.committed {
			n++
		}
	}
	return n
}

// snapshot is what pg_current_snapshot says: xmax is one above the highest xid that has ended,
// and a transaction that runs with a higher one is not in it.
func (t *table) snapshot() source.Snapshot {
	s := source.Snapshot{Xmin: t.ended + 1, Xmax: t.ended + 1}
	at, _ := slices.BinarySearch(t.running, s.Xmax)
	s.Running = slices.Clone(t.running[:at])
	if len(s.Running) > 0 {
		s.Xmin = s.Running[0]
	}
	return s
}

// read answers a read with what is committed now, as source.Read and source.Page say.
func (t *table) read(r *source.Read) *source.Page {
	known := make(map[int64]bool, len(r.Known))
	for _, id := range r.Known {
		known[id] = true
	}
	page := &source.Page{Snapshot: t.snapshot()}
	bytes := 0
	at, _ := slices.BinarySearchFunc(t.rows, r.Floor, func(row *row, floor int64) int {
		if row.ID <= floor {
			return -1
		}
		return 1
	})
	for _, row := range t.rows[at:] {
		if !row.committed || known[row.ID] ||
			r.Lanes != nil && !slices.Contains(r.Lanes, row.Lane) ||
			slices.Contains(r.Topics, row.Topic) ||
			row.Key != nil && slices.Contains(r.Keys, row.TopicKey()) {
			continue
		}
		page.Events = append(page.Events, row.Event)
		bytes += row.Size()
		// A page that Limit or Bytes ended does not say whether there is more.
		if len(page.Events) == r.Limit || bytes >= r.Bytes {
			page.Full = true
			break
		}
	}
	if r.Fence {
		tx := &transaction{}
		t.takeXid(tx)
		page.Fence = tx.xid
		page.Ours = slices.Clone(t.ours)
		t.end(tx, true)
	}
	return page
}

// chance is true with probability p.
func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }
