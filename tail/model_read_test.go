package tail

import (
	"math"
	"slices"

	"github.com/outbox-forwarder/forwarder/source"
)

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
	clear(m.deleted)
	m.reading = r
	if m.page = m.state.recall(m.now, r); m.page != nil {
		m.checkMemory(r)
		return
	}
	if m.state.recall(m.now, r) != nil {
		failf("memory has come to suffice for %+v, and nothing has changed", r)
	}
	m.state.ask(m.now, r)
}

// checkMemory: an answer from memory is within bounds, and all there is.
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
	if m.page.Full {
		return
	}
	answered := make(map[int64]bool)
	for _, ev := range m.page.Events {
		answered[ev.ID] = true
	}
	for id, rec := range m.rows {
		is := m.told[id]
		if m.snap.Shows(rec.tx.xid) {
			is = id > r.Floor
		}
		if is && !rec.acked && !answered[id] && !slices.Contains(r.Known, id) && !leftOut(r, rec.Event) {
			failf("row %d of transaction %d is left out of the answer from memory to %+v", id, rec.tx.xid, r)
		}
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
		return
	}
	page := m.page
	m.reading, m.page = nil, nil
	if page.Snapshot.Xmax == 0 {
		m.take(page)
		return
	}
	snap := page.Snapshot
	m.snap = snap
	if again := m.state.answer(m.now, r, page); len(again) > 0 {
		if chance(m.r, 0.8) {
			m.state.deletedAgain(again, m.world.delete(again))
		}
	}
	m.checkGone(r.Known)
	if m.throwsAway(&snap) {
		m.dropped = m.dropped || len(page.Events) > 0
		return
	}
	m.checkComplete()
	m.take(page)
	m.raise(&snap, r, page)
}

// checkGone: of what a read said is known, no id is kept that we have deleted meanwhile.
func (m *model) checkGone(known []int64) {
	for _, id := range known {
		if r := m.state.queue.rows.Get(id); m.deleted[id] && r != nil && r.ev == nil {
			failf("row %d is deleted, and known for good", id)
		}
	}
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
		case rec.acked:
			failf("row %d was handed out after its delivery", ev.ID)
		case rec.deleted && !rec.foreign:
			failf("row %d was handed out, and is deleted", ev.ID)
		}
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
