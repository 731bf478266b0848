package lanes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// TestFloorModel reads a naive table of concurrent transactions by a floor alone: no row may
// be skipped, come out of order or come twice, and nothing below what is settled may be
// scanned again without need.
func TestFloorModel(t *testing.T) {
	forSeeds(t, func(seed uint64) (err error) {
		defer func() {
			if p, ok := recover().(failure); ok {
				err = fmt.Errorf("%s", p.text)
			}
		}()
		newFloorModel(seed).run()
		return nil
	})
}

const modelLanes = 3

// floorModel is a reader that keeps the rules of a Floor's user, and no more than that: it
// reads serially, has a queue for each lane, deletes what is delivered in transactions of its
// own, and puts lanes behind and back at random.
type floorModel struct {
	r     *rand.Rand
	step  int
	table *table
	open  []*transaction
	peers []*transaction // deletes of other forwarders
	limit int
	// The shares of the reads that ask for a fence, and of the deletes that tell their xid.
	fences, tell float64
	busy         float64 // how often other forwarders delete

	floor   *Floor[int]
	behind  [modelLanes]bool
	known   map[int64]bool // true once acknowledged
	queue   [modelLanes][]int64
	deletes []*deletion

	sent    *source.Read // nil while no read is on its way
	page    *source.Page // the answer, once its snapshot is taken
	running []uint64     // when it was taken
	nextXid uint64       // likewise

	covered int64  // by the last accepted page
	fence   uint64 // of the last accepted page; 0 while unknown
	highest int64  // where the floor has been
	place   map[source.TopicKey]int
	out     map[int64]bool
}

// deletion is a delete statement on its way.
type deletion struct {
	transaction
	ids   []int64
	reads uint64 // the floor's count when it was sent
	told  bool   // the floor has heard of its xid
}

func newFloorModel(seed uint64) *floorModel {
	r := rand.New(rand.NewPCG(seed, 3))
	return &floorModel{
		r:       r,
		table:   newTable(),
		limit:   pick(r, 1, 2, 3, 5, 20),
		fences:  pick(r, 0, 0.1, 1),
		tell:    pick(r, 0, 0.5, 1),
		busy:    pick(r, 0, 0.2, 1),
		floor:   NewFloor[int](time.Duration(pick(r, 3, 10, 30, 200))),
		known:   make(map[int64]bool),
		covered: Start,
		highest: Start,
		place:   make(map[source.TopicKey]int),
		out:     make(map[int64]bool),
	}
}

// now is the step as a time, so that the floor's age counts in steps.
func (m *floorModel) now() time.Time { return epoch.Add(time.Duration(m.step)) }

func (m *floorModel) run() {
	writing := 50 + m.r.IntN(350)
	for ; ; m.step++ {
		m.peer()
		if m.step > writing+5000 {
			failf("rows are left for ever: %v of %v", m.table.left(), len(m.table.written))
		}
		if m.step >= writing {
			for len(m.open) > 0 {
				m.end(m.open[0])
			}
			if m.table.left() == 0 {
				return
			}
		} else {
			m.write()
		}
		for range m.r.IntN(3) {
			m.advanceRead()
		}
		m.moveLanes(m.step < writing)
		m.deliver()
	}
}

// write lets the writers take a step: begin, take an id early, insert, commit or roll back.
func (m *floorModel) write() {
	switch n := m.r.IntN(100); {
	case n < 20 && len(m.open) < 6:
		m.open = append(m.open, &transaction{long: chance(m.r, 0.15)})
	case len(m.open) == 0:
	case n < 24:
		tx := pick(m.r, m.open...)
		tx.taken = append(tx.taken, m.table.takeID())
	case n < 60:
		tx := pick(m.r, m.open...)
		k := m.r.IntN(2 * modelLanes)
		ev := &source.Event{Lane: source.Lane(k % modelLanes), Key: fmt.Append(nil, k)}
		ordered := true
		if len(tx.taken) > 0 && chance(m.r, 0.5) {
			ev.ID, tx.taken = tx.taken[0], tx.taken[1:]
			ev.Key, ordered = []byte("early"), false
		}
		m.table.insert(tx, ev, ordered)
	case n < 80:
		if tx := pick(m.r, m.open...); !tx.long || chance(m.r, 0.1) {
			m.end(tx)
		}
	}
}

// peer lets the other forwarders' deletes take a step.
func (m *floorModel) peer() {
	if n := len(m.peers); n > 0 && chance(m.r, 0.3) {
		m.table.end(m.peers[0], true)
		m.peers = m.peers[1:]
	} else if n < 3 && chance(m.r, m.busy) {
		tx := &transaction{ours: chance(m.r, 0.9)}
		m.table.takeXid(tx)
		m.peers = append(m.peers, tx)
	}
}

func (m *floorModel) end(tx *transaction) {
	m.open = slices.DeleteFunc(m.open, func(other *transaction) bool { return other == tx })
	m.table.end(tx, chance(m.r, 0.85))
}

// advanceRead sends a read, takes its snapshot, or brings its page, one at a time: the table
// and the lanes move on between them.
func (m *floorModel) advanceRead() {
	switch {
	case m.sent == nil:
		if chance(m.r, 0.1) {
			m.floor.Reset()
		}
		m.sent = &source.Read{Floor: m.floor.At(), Lanes: []source.Lane{}, Limit: m.limit, Bytes: 1 << 20, Fence: chance(m.r, m.fences)}
		for lane, behind := range m.behind {
			if !behind {
				m.sent.Lanes = append(m.sent.Lanes, source.Lane(lane))
			}
		}
		for id := range m.known {
			m.sent.Known = append(m.sent.Known, id)
		}
	case m.page == nil:
		m.running, m.nextXid = slices.Clone(m.table.running), m.table.nextXid
		m.page = m.table.read(m.sent)
	default:
		page, sent := m.page, m.sent.Floor
		m.page, m.sent = nil, nil
		if len(m.floor.marks) >= maxMarks {
			m.fence, m.highest = 0, Start // what was remembered may be thinned out
		}
		if m.floor.Observe(m.now(), page) {
			m.accept(page)
			m.checkFloor(page, sent)
		} else if m.floor.At() > sent {
			failf("the floor rose from %d to %d by a page that was thrown away", sent, m.floor.At())
		}
	}
}

func (m *floorModel) accept(page *source.Page) {
	for _, ev := range page.Events {
		if _, ok := m.known[ev.ID]; ok {
			failf("row %d was read twice", ev.ID)
		}
		if m.behind[ev.Lane] {
			continue // since the read was sent; what it remembers is not above that read's floor
		}
		m.known[ev.ID] = false
		m.queue[ev.Lane] = append(m.queue[ev.Lane], ev.ID)
	}
}

// checkFloor checks that nothing is read again without need. Where every transaction that was
// running is set aside or only deletes, the floor reaches what this read and the one before
// have covered. Where it has been once, it is again as soon as a read has covered that.
func (m *floorModel) checkFloor(page *source.Page, sent int64) {
	covered := m.floor.Top()
	if page.Full {
		covered = page.Events[len(page.Events)-1].ID
	}
	held := slices.ContainsFunc(m.running, func(xid uint64) bool {
		_, aside := m.floor.aside[xid]
		return !aside && !slices.Contains(page.Ours, xid) &&
			!slices.ContainsFunc(m.deletes, func(d *deletion) bool { return d.told && d.xid == xid })
	})
	at := m.floor.At()
	if want := min(m.covered, covered); !held && m.fence != 0 && m.fence < m.nextXid && at < want {
		failf("two reads covered %d, nothing holds the floor, and it is at %d", want, at)
	}
	if !held && page.Fence != 0 && at < covered {
		failf("a read with a fence covered %d, nothing holds the floor, and it is at %d", covered, at)
	}
	if want := min(m.highest, covered); at < want {
		failf("the floor has been at %d, a read covered %d, and it is at %d", m.highest, covered, at)
	}
	if at < sent {
		failf("the floor fell from %d to %d by an accepted page", sent, at)
	}
	for _, xid := range page.Snapshot.Running {
		if born, ok := m.floor.born[xid]; ok && m.now().Sub(born) > m.floor.Age && !slices.Contains(m.floor.ours, xid) {
			if _, aside := m.floor.aside[xid]; !aside {
				failf("transaction %d has been open for %d steps and is not set aside", xid, m.now().Sub(born))
			}
		}
	}
	if i := slices.IndexFunc(m.floor.ours, page.Snapshot.Shows); i >= 0 {
		failf("transaction %d has ended and is remembered", m.floor.ours[i])
	}
	m.covered, m.fence, m.highest = covered, page.Fence, max(m.highest, at)
}

// moveLanes puts a lane behind, with a part of its queue dropped, or back.
func (m *floorModel) moveLanes(fall bool) {
	lane := m.r.IntN(modelLanes)
	switch {
	case m.behind[lane] && m.sent == nil && (!fall || chance(m.r, 0.1)):
		m.behind[lane] = false
		m.floor.Release(lane)
	case !m.behind[lane] && fall && chance(m.r, 0.03):
		m.behind[lane] = true
		keep := m.r.IntN(len(m.queue[lane]) + 1)
		m.floor.Hold(lane, 1<<62) // from the floor of now
		for _, id := range m.queue[lane][keep:] {
			delete(m.known, id)
			m.floor.Hold(lane, id)
		}
		m.queue[lane] = m.queue[lane][:keep]
	}
}

// deliver acknowledges at most one row of each lane, and deletes acknowledged rows some time
// later.
func (m *floorModel) deliver() {
	for lane := range m.queue {
		if len(m.queue[lane]) == 0 || !chance(m.r, 0.4) {
			continue
		}
		id := m.queue[lane][0]
		m.queue[lane] = m.queue[lane][1:]
		m.known[id] = true
		m.sink(m.table.byID[id])
	}
	m.delete()
}

// delete lets the deletes take a step: begin, take an xid, tell it, end.
func (m *floorModel) delete() {
	if len(m.deletes) < 2 && chance(m.r, 0.4) {
		d := &deletion{transaction: transaction{ours: chance(m.r, 0.7)}, reads: m.floor.Reads()}
		for _, r := range m.table.rows {
			if m.known[r.ID] && chance(m.r, 0.5) && !slices.ContainsFunc(m.deletes, func(other *deletion) bool { return slices.Contains(other.ids, r.ID) }) {
				d.ids = append(d.ids, r.ID)
			}
		}
		m.deletes = append(m.deletes, d)
	}
	for _, d := range slices.Clone(m.deletes) {
		switch {
		case chance(m.r, 0.4):
		case d.xid == 0:
			m.table.takeXid(&d.transaction)
		case !d.told && chance(m.r, m.tell):
			d.told = true
			m.floor.Ours(d.xid)
			m.floor.Fence(d.reads, d.xid)
			if m.fence == 0 && d.reads == m.floor.Reads() {
				m.fence = d.xid
			}
		case chance(m.r, 0.5):
			m.table.end(&d.transaction, true)
			for _, id := range d.ids {
				m.table.remove(m.table.byID[id])
				delete(m.known, id)
			}
			m.deletes = slices.DeleteFunc(m.deletes, func(other *deletion) bool { return other == d })
		}
	}
}

func (m *floorModel) sink(r *row) {
	if m.out[r.ID] {
		failf("row %d was delivered twice", r.ID)
	}
	m.out[r.ID] = true
	if !r.ordered {
		return
	}
	if key := r.TopicKey(); r.place != m.place[key] {
		failf("row %d is number %d of key %s, and was delivered after %d rows of it", r.ID, r.place, r.Key, m.place[key])
	}
	m.place[r.TopicKey()]++
}
