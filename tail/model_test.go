package tail

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

var (
	seedsFlag = flag.Int("seeds", 5000, "how many seeds the models run")
	seedFlag  = flag.Int64("seed", -1, "run the models with this seed only")
)

// failure is a broken promise; the models panic with it.
type failure struct{ text string }

func failf(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

// forSeeds runs the seeds that the flags ask for, up to one that fails.
func forSeeds(t *testing.T, run func(seed uint64)) {
	t.Helper()
	first, last := uint64(0), uint64(*seedsFlag)
	if *seedFlag >= 0 {
		first, last = uint64(*seedFlag), uint64(*seedFlag)+1
	}
	for seed := first; seed < last && !t.Failed(); seed++ {
		func() {
			defer func() {
				p := recover()
				if p == nil {
					return
				}
				text := fmt.Sprintf("panic: %v\n%s", p, debug.Stack())
				if f, ok := p.(failure); ok {
					text = f.text
				}
				t.Errorf("seed %d: %s\nreplay: go test ./tail -run '^%s$' -seed %d", seed, text, t.Name(), seed)
			}()
			run(seed)
		}()
	}
}

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
	logAt    int   // in world.log
	call     *call // decoded, not appended yet
	part     int   // rows of the log's next transaction that were decoded
	epoch    int   // counts the logs

	known   map[int64]bool // acknowledged or not
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
	pageOf  int // the epoch of page
	rescan  bool
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
		limit: pick(r, 1, 5, 1000, 1000), known: make(map[int64]bool), floor: start,
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
	c := &call{xid: tx.xid}
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

// reads reports whether the forwarder's next read asks for the event's part.
func (m *model) reads(ev *source.Event) bool {
	return m.owned[ev.Lane] && !m.behindL[ev.Lane] && !m.behindT[ev.Topic] && (ev.Key == nil || !m.behindK[ev.TopicKey()])
}

// read sends a read from a floor that is right, but for the transactions that are set aside.
func (m *model) read() {
	if m.reading != nil {
		return
	}
	r := &source.Read{Floor: m.floor, Limit: 1 + m.r.IntN(m.limit), Bytes: pick(m.r, 500, 1<<20, 1<<20, 1<<20), Gained: m.gained, Dropped: m.dropped}
	if chance(m.r, m.plan.rescan) || m.calm {
		r.Floor, r.Rescan = start, true
		m.floor = start
	}
	live := 0
	r.Lanes = []source.Lane{}
	for lane := range m.lanes {
		if m.owned[lane] && !m.behindL[source.Lane(lane)] {
			live++
			r.Lanes = append(r.Lanes, source.Lane(lane))
		}
	}
	if live == 0 {
		return
	}
	if live == m.lanes && chance(m.r, 0.5) {
		r.Lanes = nil
	}
	for topic := range m.behindT {
		r.Topics = append(r.Topics, topic)
	}
	for key := range m.behindK {
		r.Keys = append(r.Keys, key)
	}
	for id := range m.known {
		r.Known = append(r.Known, id)
	}
	for id := range m.waiting {
		r.Known = append(r.Known, id)
	}
	m.gained, m.dropped = false, false
	clear(m.fresh)
	m.reading = r
	if m.page = m.state.ask(m.now, r); m.page != nil {
		m.pageOf = m.epoch
		m.checkMemory(r)
	}
}

// checkMemory: an answer from memory is in order and within bounds.
func (m *model) checkMemory(r *source.Read) {
	bytes := 0
	for i, ev := range m.page.Events {
		if leftOut(r, ev) {
			failf("row %d was left out by %+v", ev.ID, r)
		}
		if bytes >= r.Bytes || i >= r.Limit {
			failf("a page of %d events and %d bytes answers %+v", len(m.page.Events), bytes, r)
		}
		bytes += ev.Size()
	}
	if m.page.Snapshot.Xmax != 0 {
		failf("an answer from memory has the snapshot %+v", m.page.Snapshot)
	}
}

// answer lets the table answer, or the forwarder take in what was answered.
func (m *model) answer() {
	r := m.reading
	switch {
	case r == nil:
		return
	case m.page == nil && chance(m.r, m.plan.readFails) && !m.calm:
		m.state.failed()
		m.reading = nil
		m.floor = start
		return
	case m.page == nil:
		m.page = m.world.read(r)
		m.pageOf = m.epoch
		return
	}
	page := m.page
	m.reading, m.page = nil, nil
	if page.Snapshot.Xmax == 0 {
		m.take(page)
		return
	}
	snap := page.Snapshot
	if again := m.state.answer(m.now, r, page); len(again) > 0 {
		if chance(m.r, 0.8) {
			m.state.deletedAgain(again, m.world.delete(again))
		} else {
			m.state.soon = true
		}
	}
	if m.throwsAway(&snap) {
		m.dropped = m.dropped || len(page.Events) > 0
		return
	}
	m.checkComplete()
	m.take(page)
	m.raise(&snap, r, page)
}

// throwsAway: a transaction that was set aside has ended.
func (m *model) throwsAway(snap *source.Snapshot) bool {
	found := false
	for xid, floor := range m.aside {
		if snap.Shows(xid) {
			found = true
			m.floor = min(m.floor, floor)
			delete(m.aside, xid)
		}
	}
	return found
}

// raise sets transactions aside and lifts the floor as far as it is right.
func (m *model) raise(snap *source.Snapshot, r *source.Read, page *source.Page) {
	for _, xid := range snap.Running {
		if _, ok := m.aside[xid]; !ok && chance(m.r, 0.2) {
			m.aside[xid] = r.Floor
		}
	}
	highest := int64(math.MaxInt64)
	for id, rec := range m.rows {
		if _, ok := m.aside[rec.tx.xid]; !ok && !m.known[id] && (m.reads(rec.Event) || !rec.tx.ended) {
			highest = min(highest, id-1)
		}
	}
	if highest == math.MaxInt64 {
		highest = m.nextID - 1
	}
	if page.Full && len(page.Events) > 0 {
		highest = min(highest, page.Events[len(page.Events)-1].ID)
	}
	if highest > m.floor && chance(m.r, 0.5) {
		m.floor = highest
	}
}

// take takes in a page as the engine does.
func (m *model) take(page *source.Page) {
	for _, ev := range page.Events {
		rec := m.all[ev.ID]
		if m.known[ev.ID] || m.waiting[ev.ID] {
			failf("row %d was handed out while it is known", ev.ID)
		}
		if !m.reads(ev) || m.fresh[ev.Lane] || chance(m.r, m.plan.crowd) && !m.calm && m.crowd(ev) {
			m.dropped = true
			continue
		}
		switch {
		case !rec.tx.committed:
			failf("row %d was handed out, and is not committed", ev.ID)
		case rec.acked && !rec.again:
			failf("row %d was handed out after its delivery", ev.ID)
		case rec.deleted && !rec.foreign && !rec.again:
			failf("row %d was handed out, and is deleted", ev.ID)
		}
		rec.acked, rec.again, rec.epoch = false, false, m.pageOf
		for _, before := range m.before(rec) {
			if !before.deleted && !before.acked && !m.known[before.ID] {
				failf("row %d of key %q was handed out before row %d", ev.ID, ev.Key, before.ID)
			}
		}
		m.known[ev.ID] = true
	}
}

func (m *model) before(rec *record) []*record {
	if rec.place < 0 {
		return nil
	}
	return m.world.keys[string(rec.Key)][:rec.place]
}

// crowd lets the event's key, lane or topic fall behind for want of room.
func (m *model) crowd(ev *source.Event) bool {
	m.fallBehind(ev)
	return !m.reads(ev)
}

func (m *model) fallBehind(ev *source.Event) {
	switch n := m.r.IntN(4); {
	case n == 0:
		m.behindL[ev.Lane] = true
	case n == 1:
		m.behindT[ev.Topic] = true
	case ev.Key != nil:
		m.behindK[ev.TopicKey()] = true
	}
	m.floor = min(m.floor, ev.ID-1)
}

// acknowledge delivers some of what is known, the first of its key, or fails to.
func (m *model) acknowledge() {
	for range 1 + m.r.IntN(m.plan.acks) {
		m.acknowledgeOne()
	}
}

func (m *model) acknowledgeOne() {
	ids := m.undelivered()
	if len(ids) == 0 {
		return
	}
	rec := m.all[pick(m.r, ids...)]
	for _, before := range m.before(rec) {
		if m.known[before.ID] && !before.acked {
			rec = before
			break
		}
	}
	if chance(m.r, m.plan.fail) && !m.calm {
		m.fail(rec)
		return
	}
	rec.acked = true
	m.acked = append(m.acked, rec)
}

// undelivered returns the known rows that are not acknowledged, in order.
func (m *model) undelivered() []int64 {
	var ids []int64
	for id := range m.known {
		if !m.all[id].acked {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// checkComplete: a complete mirror keeps nothing of what was left out.
func (m *model) checkComplete() {
	for w := m.state.queue.waiting.first; w != nil && m.state.complete; w = w.next {
		if m.state.evicted.covers(w.ev) {
			failf("row %d is kept, which was left out", w.id)
		}
	}
}
