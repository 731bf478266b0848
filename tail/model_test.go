package tail

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// TestMirrorModel puts a mirror between a naive table and a naive forwarder: every committed row
// is handed out once, and again only after the forwarder dropped it; those of a key in order.
func TestMirrorModel(t *testing.T) {
	forSeeds(t, func(seed uint64) {
		m := newModel(seed)
		for range m.steps {
			m.step()
		}
		m.finish()
	})
}

// model is a forwarder, reduced to what its reads are made of, and the log's reader.
type model struct {
	*world
	state *state
	now   time.Time
	steps int
	plan  plan

	lanes, topics, keys int
	limit               int

	attached bool
	logAt    int             // in world.log
	call     *call           // decoded, not appended yet
	part     int             // rows of the log's next transaction that were decoded
	told     map[int64]bool  // rows that came through the log since it began
	snap     source.Snapshot // of the last table read that was answered

	known   map[int64]bool // acknowledged or not
	deleted map[int64]bool // by us since the last read was sent
	acked   []*record      // to be deleted
	owned   []bool
	fresh   map[source.Lane]bool // gained since the read was sent
	gained  bool
	dropped bool
	behindL map[source.Lane]bool
	behindT map[string]bool
	behindK map[source.TopicKey]bool
	waiting map[int64]bool // rows without a key
	aside   map[uint64]int64
	floor   int64

	reading *source.Read
	page    *source.Page
	deletes []*deletion
	calm    bool
}

// plan says how often things happen, as shares of their occasions.
type plan struct {
	acks                                 int // at once, at most
	lag, invisible, rescan               float64
	crowd, fail, readFails, deleteFails  float64
	release, moves, peers, strikes, logs float64
}

type call struct {
	xid     uint64
	rows    []*record
	events  []*source.Event
	denied  []source.Lane
	skipped bool
}

type deletion struct {
	recs  []*record
	n     int
	phase int // 0 sent, 1 run, 2 answered
}

func newModel(seed uint64) *model {
	r := rand.New(rand.NewPCG(seed, 7))
	m := &model{
		world: newWorld(r), now: time.Unix(1e9, 0), steps: 100 + r.IntN(1000),
		lanes: pick(r, 1, 2, 4), topics: pick(r, 1, 2), keys: pick(r, 1, 3, 8),
		limit: pick(r, 1, 5, 1000, 1000), known: make(map[int64]bool), deleted: make(map[int64]bool), told: make(map[int64]bool), floor: start,
		behindL: make(map[source.Lane]bool), fresh: make(map[source.Lane]bool), behindT: make(map[string]bool), behindK: make(map[source.TopicKey]bool),
		waiting: make(map[int64]bool), aside: make(map[uint64]int64),
	}
	m.state = newState(Config{
		MaxEvents: pick(r, 0, 1, 3, 10, 1000, 1000, 1000), MaxBytes: pick(r, 500, 3000, 1<<20, 1<<20, 1<<20),
		Resync: pick(r, 10*time.Millisecond, 100*time.Millisecond, time.Hour),
	}, m.now)
	// Each kind of trouble is in half of the worlds, or seldom.
	rate := func(p float64) float64 { return pick(r, 0, 0, p/5, p) }
	m.plan = plan{
		lag: pick(r, 0, 0.5, 0.9), invisible: pick(r, 0, 0.1, 0.5, 0.9), rescan: pick(r, 0.02, 0.1), acks: pick(r, 1, 10),
		crowd: rate(0.02), fail: rate(0.15), readFails: rate(0.05), deleteFails: rate(0.1),
		release: pick(r, 0.05, 0.3), moves: rate(0.1), peers: rate(0.1), strikes: rate(0.05), logs: rate(0.03),
	}
	m.owned = make([]bool, m.lanes)
	for lane := range m.lanes {
		m.gain(lane)
	}
	return m
}

func (m *model) gain(lane int) {
	m.owned[lane] = true
	m.gained = true
	m.fresh[source.Lane(lane)] = true
	m.floor = start
}

func (m *model) step() {
	m.now = m.now.Add(time.Millisecond)
	r := m.r
	switch n := r.IntN(100); {
	case n < 20:
		m.write()
	case n < 36:
		m.follow()
	case n < 48:
		m.read()
	case n < 72:
		m.answer()
	case n < 83:
		m.acknowledge()
	case n < 95:
		m.delete()
	}
	m.trouble()
	if q := &m.state.queue; q.rows.Len() != q.waiting.n+q.out.n+q.ghosts.n {
		failf("%d rows are in lists of %d, %d and %d", q.rows.Len(), q.waiting.n, q.out.n, q.ghosts.n)
	}
}

// write lets the writers take one step.
func (m *model) write() {
	r := m.r
	if len(m.open) == 0 || len(m.open) < 4 && chance(r, 0.3) {
		m.begin()
		return
	}
	tx := pick(r, m.open...)
	switch {
	case tx.committed:
		m.end(tx)
		if chance(r, 0.5) {
			m.write()
		}
	case chance(r, 0.05):
		m.end(tx)
	case chance(r, 0.35):
		m.commit(tx)
		if !chance(r, m.plan.invisible) {
			m.end(tx) // visible at once
		}
	default:
		for range 1 + r.IntN(3) {
			m.insert(tx, m.lanes, m.topics, m.keys)
		}
	}
}

// follow lets the log's reader take one step: it decodes a piece of a transaction, or appends
// it, as late as it likes.
func (m *model) follow() {
	if !m.attached {
		return
	}
	if c := m.call; c != nil {
		if chance(m.r, m.plan.lag) {
			return
		}
		if m.state.complete && !m.state.roomy() {
			if chance(m.r, 0.7) {
				return // it waits for room
			}
			m.state.shed(m.now)
		}
		if chance(m.r, 0.1) {
			c.denied = nil // nobody knows
		}
		waiting := m.state.queue.waiting.n
		m.state.append(m.now, c.xid, c.events, c.skipped, c.denied)
		for _, rec := range c.rows {
			m.told[rec.ID] = true
		}
		m.call = nil
		if m.state.complete && m.state.queue.waiting.n > waiting && !slices.ContainsFunc(c.events, func(ev *source.Event) bool { return !m.state.evicted.covers(ev) }) {
			failf("rows of evicted parts are kept")
		}
		return
	}
	if m.logAt == len(m.log) {
		return
	}
	tx := m.log[m.logAt]
	rows := tx.rows[m.part:]
	if chance(m.r, 0.3) {
		rows = rows[:m.r.IntN(len(rows)+1)]
	}
	c := &call{xid: tx.xid, rows: rows}
	for _, rec := range rows {
		if !m.state.evicted.reads(rec.Lane) {
			c.skipped = true
			c.denied = append(c.denied, rec.Lane)
			continue
		}
		c.events = append(c.events, rec.Event)
	}
	m.part += len(rows)
	if m.part == len(tx.rows) {
		m.logAt++
		m.part = 0
	}
	m.call = c
}
