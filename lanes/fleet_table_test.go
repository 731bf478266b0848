package lanes

import (
	"slices"

	"github.com/outbox-forwarder/forwarder/source"
)

// read is the reader's work: one statement, whose snapshot is taken on the way.
func (p *process) read(read *source.Read) {
	w := p.w
	fails := w.faulty(w.plan.readFails)
	p.after(w.some(w.plan.latency), func() {
		if w.down() || fails {
			p.after(w.some(w.plan.latency), func() { p.forwarder.inbox.page(nil, errSimulated) })
			return
		}
		w.after(w.some(w.plan.latency), func() {
			page := p.page(read)
			p.after(w.some(w.plan.latency), func() { p.forwarder.inbox.page(page, nil) })
		})
	})
}

// page reads the table, whose rows have lanes of mostLanes.
func (p *process) page(read *source.Read) *source.Page {
	fine := *read
	if read.Lanes != nil {
		fine.Lanes = []source.Lane{}
		for lane := range source.Lane(mostLanes) {
			if slices.Contains(read.Lanes, lane&source.Lane(p.lanes-1)) {
				fine.Lanes = append(fine.Lanes, lane)
			}
		}
	}
	page := p.w.table.read(&fine)
	for i, ev := range page.Events {
		ours := *ev
		ours.Lane &= source.Lane(p.lanes - 1)
		page.Events[i] = &ours
	}
	return page
}

// delete is a deleter's work: a transaction of its own.
func (p *process) delete(ids []int64) {
	w := p.w
	fails, lost := w.faulty(w.plan.deleteFails), w.faulty(w.plan.deleteFails)
	p.after(w.some(w.plan.latency), func() {
		if w.down() || fails {
			p.after(w.some(w.plan.latency), func() { p.forwarder.inbox.deleted(deleted{ids, errSimulated}) })
			return
		}
		tx := &transaction{ours: chance(w.r, 0.9)} // the mark comes a moment after the xid
		w.table.takeXid(tx)
		told := false
		tell := func() {
			if !told {
				told = true
				p.forwarder.inbox.deleting(deleting{ids, tx.xid})
			}
		}
		p.after(w.some(w.plan.latency), tell)
		w.after(w.some(w.plan.latency), func() {
			w.table.end(tx, true)
			for _, id := range ids {
				w.remove(id)
			}
			p.after(w.some(w.plan.latency), func() {
				tell()
				if lost {
					p.forwarder.inbox.deleted(deleted{ids, errSimulated})
					return
				}
				p.forwarder.inbox.deleted(deleted{ids, nil})
			})
		})
	})
}

// remove deletes a row, which must have been written.
func (w *fleet) remove(id int64) {
	r := w.table.byID[id]
	if !w.broker.once[id] {
		failf("row %d is deleted and was never written", id)
	}
	if !r.deleted {
		w.table.remove(r)
		w.deletedAt[id] = w.now
		w.checkEnd()
	}
}
