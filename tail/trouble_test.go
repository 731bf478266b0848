package tail

import (
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// fail puts a part behind, since the row could not be delivered, and drops what is known of it.
func (m *model) fail(rec *record) {
	if rec.Key == nil {
		delete(m.known, rec.ID)
		m.waiting[rec.ID] = true
		m.dropped = true
		return
	}
	m.fallBehind(rec.Event)
	m.dropUnread()
}

// dropUnread drops what is known, not acknowledged, and not read any more.
func (m *model) dropUnread() {
	for _, id := range m.undelivered() {
		if rec := m.all[id]; !m.reads(rec.Event) {
			delete(m.known, id)
			m.dropped = true
			if m.owned[rec.Lane] {
				m.floor = min(m.floor, id-1)
			}
		}
	}
}

// delete lets a delete take one step: it is sent, the statement runs, the answer arrives, and the
// forwarder hears of it.
func (m *model) delete() {
	if len(m.acked) > 0 && (len(m.deletes) == 0 || len(m.deletes) < 3 && chance(m.r, 0.4)) {
		n := 1 + m.r.IntN(len(m.acked))
		d := &deletion{recs: slices.Clone(m.acked[:n])}
		m.acked = slices.Delete(m.acked, 0, n)
		m.state.deleting(d.ids())
		m.deletes = append(m.deletes, d)
		return
	}
	if len(m.deletes) == 0 {
		return
	}
	i := m.r.IntN(len(m.deletes))
	d := m.deletes[i]
	ids := d.ids()
	switch {
	case d.phase == 0 && (m.calm || !chance(m.r, m.plan.deleteFails)):
		d.n = m.world.delete(ids)
		d.phase = 1
	case d.phase == 1 && (m.calm || !chance(m.r, m.plan.deleteFails)):
		m.state.deleted(ids, d.n)
		for _, id := range ids {
			if m.state.queue.rows.Get(id) != nil {
				failf("row %d is deleted, and kept", id)
			}
			m.deleted[id] = true
		}
		d.phase = 2
	case d.phase < 2:
		m.deletes = slices.Delete(m.deletes, i, i+1)
		m.acked = append(d.recs, m.acked...)
	default:
		m.deletes = slices.Delete(m.deletes, i, i+1)
		for _, rec := range d.recs {
			delete(m.known, rec.ID)
		}
	}
}

func (d *deletion) ids() []int64 {
	ids := make([]int64, len(d.recs))
	for i, rec := range d.recs {
		ids[i] = rec.ID
	}
	slices.Sort(ids)
	return ids
}

func (m *model) trouble() {
	r, p := m.r, &m.plan
	if chance(r, p.release) {
		m.release()
	}
	if chance(r, p.moves) {
		m.move()
	}
	if chance(r, p.peers) {
		m.peer()
	}
	if chance(r, p.strikes) {
		m.strike()
	}
	switch {
	case m.attached && chance(r, p.logs):
		m.detach()
	case !m.attached && chance(r, 0.1):
		m.attach()
	}
}

// release lets a part be read again.
func (m *model) release() {
	if m.reading != nil {
		return
	}
	switch m.r.IntN(4) {
	case 0:
		for lane := range m.lanes {
			delete(m.behindL, source.Lane(lane))
		}
	case 1:
		clear(m.behindT)
	case 2:
		for _, id := range sorted(m.waiting) {
			delete(m.waiting, id)
			m.dropped = true
			break
		}
	case 3:
		clear(m.behindK)
	}
	// The forwarder remembers where each of them must be read from.
	for id, rec := range m.rows {
		if !m.known[id] && m.reads(rec.Event) && rec.tx.ended {
			m.floor = min(m.floor, id-1)
		}
	}
}

func sorted(ids map[int64]bool) []int64 {
	var list []int64
	for id := range ids {
		list = append(list, id)
	}
	slices.Sort(list)
	return list
}

// move takes a lane away or gives it back.
func (m *model) move() {
	lane := m.r.IntN(m.lanes)
	if !m.owned[lane] {
		m.gain(lane)
		return
	}
	m.owned[lane] = false
	delete(m.behindL, source.Lane(lane))
	for key := range m.behindK {
		if source.Lane(m.laneOf(key)) == source.Lane(lane) {
			delete(m.behindK, key)
		}
	}
	for _, id := range sorted(m.waiting) {
		if int(m.all[id].Lane) == lane {
			delete(m.waiting, id)
			m.dropped = true
		}
	}
	m.dropUnread()
	if chance(m.r, 0.3) {
		m.peer()
		m.gain(lane) // before any read
	}
}

func (m *model) laneOf(key source.TopicKey) source.Lane {
	return m.world.keys[key.Key][0].Lane
}

// peer lets another replica deliver rows of a lane that is not ours, in order.
func (m *model) peer() {
	n := m.r.IntN(4)
	for _, rec := range m.visible() {
		if n > 0 && !m.owned[rec.Lane] {
			m.world.delete([]int64{rec.ID})
			n--
		}
	}
}

// strike lets somebody else delete a row.
func (m *model) strike() {
	if rows := m.visible(); len(rows) > 0 {
		rec := pick(m.r, rows...)
		rec.foreign = m.owned[rec.Lane]
		m.world.delete([]int64{rec.ID})
	}
}

func (m *model) attach() {
	m.attached = true
	m.logAt, m.part = len(m.log), 0
	if !m.calm {
		for range m.r.IntN(3) {
			m.write()
		}
	}
	fence := m.takeXid()
	if m.plan.invisible == 0 {
		fence = 0 // what is committed is visible
		if chance(m.r, 0.5) {
			m.logAt -= m.r.IntN(min(m.logAt+1, 4)) // it repeats itself
		}
	}
	m.state.attach(m.now, fence)
}

func (m *model) detach() {
	m.attached = false
	m.call = nil
	clear(m.told)
	m.state.detach(m.now)
	if m.state.queue.waiting.n > 0 {
		failf("rows wait without a log")
	}
}

// finish ends every trouble and expects that all is delivered, and that the mirror is complete
// in the end.
func (m *model) finish() {
	m.calm = true
	m.state.cfg.Resync = 1000 * time.Hour // which would hide what the mirror has forgotten
	for len(m.open) > 0 {
		tx := m.open[0]
		if !tx.committed {
			m.commit(tx)
		}
		m.end(tx)
	}
	if !m.attached {
		m.attach()
	}
	for lane := range m.lanes {
		if !m.owned[lane] {
			m.gain(lane)
		}
	}
	for round := 0; !m.done(); round++ {
		if round > 20000 {
			failf("no end in sight: %d rows are left, %d known, complete %v, missed %v, attached %v", len(m.rows), len(m.known), m.state.complete, m.state.missed.blocks, m.attached)
		}
		m.now = m.now.Add(time.Millisecond)
		m.follow()
		if m.reading == nil {
			clear(m.behindL)
			clear(m.behindT)
			clear(m.behindK)
			m.dropped = m.dropped || len(m.waiting) > 0
			clear(m.waiting)
		}
		m.read()
		m.answer()
		m.acknowledge()
		m.delete()
	}
	m.fromMemory()
}

func (m *model) done() bool {
	return len(m.rows) == 0 && len(m.known) == 0 && m.logAt == len(m.log) && m.call == nil && m.reading == nil &&
		m.state.complete && len(m.state.unseen) == 0
}

// fromMemory: a row that comes through the log while the mirror is complete needs no table read.
func (m *model) fromMemory() {
	tx := m.begin()
	for len(tx.rows) == 0 {
		m.insert(tx, m.lanes, m.topics, m.keys)
	}
	m.commit(tx)
	all := &source.Read{Floor: start, Limit: 10, Bytes: 1 << 20}
	if m.state.recall(m.now, all) == nil { // the last one may have left something out
		m.state.ask(m.now, all)
		m.state.answer(m.now, all, m.world.read(all))
	}
	before := m.state.stats.TableReads
	ev := tx.rows[0].Event
	if !m.state.append(m.now, tx.xid, []*source.Event{ev}, false, nil) {
		failf("an append of row %d wakes nobody", ev.ID)
	}
	page := m.state.recall(m.now, all)
	if page == nil || len(page.Events) != 1 || page.Events[0] != ev || m.state.stats.TableReads != before {
		failf("row %d is not answered from memory: %+v", ev.ID, page)
	}
}
