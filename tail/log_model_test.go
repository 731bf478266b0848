package tail

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outbox-forwarder/forwarder/source"
)

// TestLogModel puts a log between a naive list of transactions and a naive forwarder: each entry
// is handed out once for as long as the process lives, in order, however often the log starts
// again, and what is confirmed is delivered and deleted.
func TestLogModel(t *testing.T) {
	forSeeds(t, func(seed uint64) {
		m := newLogModel(seed)
		for range m.steps {
			m.step()
		}
		m.finish()
	})
}

// logModel has the transactions of a log, and the forwarder of one lane. Its keys are ordered.
type logModel struct {
	r     *rand.Rand
	state *logState[int]
	steps int

	log     []*logTx // ascending by position
	at      int      // in log, of the reader
	part    int      // entries of log[at] that were appended
	scan    []*logRow
	scanned int     // of scan; all of it is in log, too
	slowly  float64 // share of the steps in which the scan has no more rows yet
	rows    map[int64]*logRow
	events  map[int64]*logRow // by the log's ID
	known   map[int64]bool
	acked   []int64
	deletes [][]int64
	behind  map[source.TopicKey]bool
	dropped bool
	reading *source.Read
	page    *source.Page
	lull    int // the last position that was idle, since the log began
	idle    int // and the highest ever
	calm    bool
}

type logTx struct {
	pos  int
	rows []*logRow
}

type logRow struct {
	ev        *source.Event
	message   bool
	delivered bool
	deleted   bool
}

func newLogModel(seed uint64) *logModel {
	r := rand.New(rand.NewPCG(seed, 11))
	m := &logModel{
		r: r, state: newLogState[int](), steps: 50 + r.IntN(300),
		rows: make(map[int64]*logRow), events: make(map[int64]*logRow), known: make(map[int64]bool), behind: make(map[source.TopicKey]bool),
	}
	keys := pick(r, 1, 3, 10)
	for pos, id := 10, int64(1); pos < 10*pick(r, 3, 10, 30); pos += 10 {
		tx := &logTx{pos: pos}
		for range r.IntN(5) {
			row := &logRow{message: chance(r, 0.2), ev: &source.Event{ID: id, Topic: "t", Key: fmt.Append(nil, r.IntN(keys))}}
			id++
			if !row.message {
				m.rows[row.ev.ID] = row
			}
			tx.rows = append(tx.rows, row)
		}
		m.log = append(m.log, tx)
	}
	m.slowly = pick(r, 0, 0.9)
	if chance(r, 0.3) {
		// The scan saw the rows of the first transactions.
		for _, tx := range m.log[:r.IntN(len(m.log))] {
			for _, row := range tx.rows {
				if row.message { // would come after the rows of its key
					row.message = false
					m.rows[row.ev.ID] = row
				}
				m.scan = append(m.scan, row)
			}
		}
	}
	return m
}

func (m *logModel) step() {
	switch n := m.r.IntN(100); {
	case n < 30:
		m.follow()
	case n < 45:
		m.read()
	case n < 60:
		m.answer()
	case n < 75:
		m.acknowledge()
	case n < 90:
		m.delete()
	case n < 95:
		m.release()
	case n < 97:
		m.restart()
	}
	m.check()
}

// follow appends a piece of the scan or of the log.
func (m *logModel) follow() {
	switch {
	case m.scanned < len(m.scan):
		if m.scanned > 0 && chance(m.r, m.slowly) && !m.calm {
			return
		}
		n := 1 + m.r.IntN(len(m.scan)-m.scanned)
		var events []*source.Event
		for _, row := range m.scan[m.scanned:][:n] {
			if !row.deleted { // else the table does not have it any more
				events = append(events, row.ev)
			}
		}
		m.scanned += n
		m.state.addScan(events, m.scanned == len(m.scan))
	case m.at == len(m.log):
	case m.part == 0 && chance(m.r, 0.2):
		m.lull = max(m.lull, m.log[m.at].pos-1-m.r.IntN(3))
		m.idle = max(m.idle, m.lull)
		m.state.idle(m.lull)
	default:
		tx := m.log[m.at]
		n := len(tx.rows) - m.part
		if chance(m.r, 0.3) {
			n = m.r.IntN(n + 1)
		}
		var entries []Entry
		for _, row := range tx.rows[m.part:][:n] {
			entries = append(entries, Entry{Event: row.ev, NoRow: row.message})
		}
		m.part += n
		end := m.part == len(tx.rows)
		m.state.append(tx.pos, end, entries)
		if end {
			m.at++
			m.part = 0
		} else {
			m.state.idle(tx.pos + 5) // in the middle of it, to be ignored
		}
	}
}

// restart loses the connection: the log begins again after what is confirmed.
func (m *logModel) restart() {
	if m.reading != nil && chance(m.r, 0.5) {
		return
	}
	before, _ := m.state.confirmed()
	m.state.reset(false)
	if after, _ := m.state.confirmed(); after != before {
		failf("%d was confirmed, and is %d after a reset", before, after)
	}
	if m.scanned < len(m.scan) || m.unscanned() {
		m.scanned = 0
	}
	pos, _ := m.state.confirmed()
	m.at, m.part, m.lull = 0, 0, pos
	for m.at < len(m.log) && m.log[m.at].pos <= pos {
		m.at++
	}
}

// unscanned reports whether rows of the scan are not deleted.
func (m *logModel) unscanned() bool {
	return slices.ContainsFunc(m.scan, func(row *logRow) bool { return !row.deleted })
}

func (m *logModel) read() {
	if m.reading != nil {
		return
	}
	m.reading = &source.Read{Limit: 1 + m.r.IntN(10), Bytes: pick(m.r, 1, 1000, 1<<20), Dropped: m.dropped}
	m.dropped = false
	for id := range m.known {
		m.reading.Known = append(m.reading.Known, id)
	}
	for key := range m.behind {
		m.reading.Keys = append(m.reading.Keys, key)
	}
	m.page = m.state.take(m.reading)
}

// release lets every key be read again, from the next read on.
func (m *logModel) release() {
	if m.reading == nil {
		clear(m.behind)
	}
}

func (m *logModel) answer() {
	if m.reading == nil {
		return
	}
	for _, ev := range m.page.Events {
		if m.behind[ev.TopicKey()] || chance(m.r, 0.03) && !m.calm {
			m.behind[ev.TopicKey()] = true
			m.dropped = true
			continue
		}
		row := m.find(ev)
		if m.known[ev.ID] || row.delivered {
			failf("%s was handed out twice", ev.Name())
		}
		for id := range m.known {
			if other := m.events[id]; other != row && other.ev.TopicKey() == ev.TopicKey() && other.ev.ID > row.ev.ID {
				failf("row %d was handed out after row %d", row.ev.ID, other.ev.ID)
			}
		}
		m.known[ev.ID] = true
		m.events[ev.ID] = row
	}
	m.reading, m.page = nil, nil
}

// find returns what an event was made of.
func (m *logModel) find(ev *source.Event) *logRow {
	for _, tx := range m.log {
		for _, row := range tx.rows {
			if row.ev.Name() == ev.Name() {
				return row
			}
		}
	}
	failf("an event named %s was handed out", ev.Name())
	return nil
}

func (m *logModel) acknowledge() {
	ids := m.undelivered()
	if len(ids) == 0 {
		return
	}
	id := pick(m.r, ids...)
	row := m.events[id]
	for _, first := range ids {
		if m.events[first].ev.TopicKey() == row.ev.TopicKey() {
			id, row = first, m.events[first]
			break
		}
	}
	if chance(m.r, 0.1) && !m.calm {
		key := row.ev.TopicKey()
		m.behind[key] = true
		for _, id := range ids {
			if m.events[id].ev.TopicKey() == key {
				delete(m.known, id)
				m.dropped = true
			}
		}
		return
	}
	for _, tx := range m.log {
		for _, before := range tx.rows {
			if before.ev.TopicKey() == row.ev.TopicKey() && before.ev.ID < row.ev.ID && !before.delivered {
				failf("row %d was delivered before row %d", row.ev.ID, before.ev.ID)
			}
		}
	}
	row.delivered = true
	m.acked = append(m.acked, id)
}

// undelivered returns what is known and not acknowledged, in the order of the rows.
func (m *logModel) undelivered() []int64 {
	var ids []int64
	for id := range m.known {
		if !m.events[id].delivered {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int64) int { return int(m.events[a].ev.ID - m.events[b].ev.ID) })
	return ids
}

func (m *logModel) delete() {
	if n := len(m.acked); n > 0 && (len(m.deletes) == 0 || chance(m.r, 0.3)) {
		n = 1 + m.r.IntN(n)
		ids := slices.Clone(m.acked[:n])
		m.acked = slices.Delete(m.acked, 0, n)
		var want []int64
		for _, id := range ids {
			if row := m.events[id]; !row.message {
				want = append(want, row.ev.ID)
			}
		}
		slices.Sort(want)
		if rows := m.state.deleting(ids); !slices.Equal(rows, want) {
			failf("the rows %v are deleted and should be %v", rows, want)
		}
		m.deletes = append(m.deletes, ids)
		return
	}
	if len(m.deletes) == 0 {
		return
	}
	i := m.r.IntN(len(m.deletes))
	ids := m.deletes[i]
	m.deletes = slices.Delete(m.deletes, i, i+1)
	if chance(m.r, 0.2) && !m.calm {
		m.acked = append(ids, m.acked...)
		return
	}
	m.state.deleted(ids)
	for _, id := range ids {
		m.events[id].deleted = true
		delete(m.known, id)
	}
}

// check: everything up to what is confirmed is deleted, and the confirmed is the end of a
// transaction or was idle.
func (m *logModel) check() {
	pos, ok := m.state.confirmed()
	if !ok {
		return
	}
	if pos%10 != 0 && pos > m.idle {
		failf("%d is confirmed, which is no end of a transaction", pos)
	}
	for _, tx := range m.log {
		for _, row := range tx.rows {
			if tx.pos <= pos && !row.deleted {
				failf("%d is confirmed and row %d of %d is not deleted", pos, row.ev.ID, tx.pos)
			}
		}
	}
	if m.scanned > 0 && m.unscanned() && m.state.scan == nil {
		failf("the scan is over, and its rows are not deleted")
	}
}

// finish expects that all is delivered and confirmed in the end.
func (m *logModel) finish() {
	m.calm = true
	for round := 0; ; round++ {
		m.check()
		pos, _ := m.state.confirmed()
		if m.at == len(m.log) && len(m.known) == 0 && m.reading == nil && pos >= m.log[len(m.log)-1].pos {
			break
		}
		if round > 5000 {
			failf("no end in sight: %d is confirmed, %d events are known, at %d of %d", pos, len(m.known), m.at, len(m.log))
		}
		m.release()
		m.follow()
		m.read()
		m.answer()
		m.acknowledge()
		m.delete()
	}
	if n := m.state.queue.rows.Len() + len(m.state.undone); n > 0 || m.state.tracker.Pending() > 0 {
		failf("%d entries and %d transactions are left in memory", n, m.state.tracker.Pending())
	}
	for _, tx := range m.log {
		for _, row := range tx.rows {
			if !row.delivered {
				failf("row %d was never delivered", row.ev.ID)
			}
		}
	}
}
