package tail

import (
	"cmp"
	"slices"

	"github.com/outbox-forwarder/forwarder/internal/idmap"
	"github.com/outbox-forwarder/forwarder/source"
)

// row is an event that is not deleted yet.
type row[T any] struct {
	ev   *source.Event // nil: handed out, and not in memory here any more
	id   int64
	seq  uint64 // its place in the order; equal ones are in the order of id
	size int
	out  bool // handed out: the forwarder has it
	end  bool // it is being deleted
	note T

	prev, next *row[T]
}

func (a *row[T]) compare(b *row[T]) int {
	return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.id, b.id))
}

// queue holds rows in order: those that wait to be handed out, and those that are handed out,
// with their event or without.
// It is not safe for concurrent use.
//
// The walk of take begins where the one before it ended, so that what a filter leaves out is
// not passed again and again: before at, every waiting row is left out by the filter.
type queue[T any] struct {
	rows    idmap.Map[row[T]] // all, by id
	waiting list[T]           // in order
	out     list[T]           // in the order in which they were handed out
	ghosts  list[T]           // handed out, without an event
	at      *row[T]
	filter  filter
	seq     uint64
	free    *row[T] // to be used again, linked by next

	known map[int64]bool // see listed
}

// list is a chain of rows.
type list[T any] struct {
	first, last *row[T]
	n, bytes    int
}

// insert puts a row behind another, nil for the front.
func (l *list[T]) insert(r, after *row[T]) {
	r.prev = after
	if after == nil {
		r.next = l.first
		l.first = r
	} else {
		r.next = after.next
		after.next = r
	}
	if r.next == nil {
		l.last = r
	} else {
		r.next.prev = r
	}
	l.n++
	l.bytes += r.size
}

func (l *list[T]) remove(r *row[T]) {
	if r.prev == nil {
		l.first = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.last = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
	l.n--
	l.bytes -= r.size
}

func newQueue[T any]() queue[T] {
	return queue[T]{known: make(map[int64]bool)}
}

func (q *queue[T]) create(id int64, ev *source.Event, note T) *row[T] {
	r := q.free
	if r == nil {
		r = new(row[T])
	} else {
		q.free = r.next
	}
	*r = row[T]{ev: ev, id: id, note: note}
	if ev != nil {
		r.size = ev.Size()
	}
	q.rows.Put(id, r)
	return r
}

// add puts an event at the end of those that wait.
func (q *queue[T]) add(ev *source.Event, note T) *row[T] {
	q.seq++
	r := q.create(ev.ID, ev, note)
	r.seq = q.seq
	q.waiting.insert(r, q.waiting.last)
	if q.at == nil {
		q.at = r
	}
	return r
}

// addOut adds a row that is handed out already; ev is nil where the event is not at hand. Its
// place is before all that was added so far, among its like in the order of id.
func (q *queue[T]) addOut(id int64, ev *source.Event, note T) {
	r := q.create(id, ev, note)
	r.out = true
	if ev != nil {
		q.out.insert(r, nil)
	} else {
		q.ghosts.insert(r, nil)
	}
}

// take hands out what waits and is not left out, within the bounds of the read.
func (q *queue[T]) take(read *source.Read) *source.Page {
	if !q.filter.is(read) {
		q.filter.set(read)
		q.at = q.waiting.first
	}
	page := &source.Page{}
	bytes := 0
	for r := q.at; r != nil && !page.Full; r = q.at {
		q.at = r.next
		if q.filter.covers(r.ev) {
			continue
		}
		page.Events = append(page.Events, r.ev)
		bytes += r.size
		page.Full = len(page.Events) >= read.Limit || bytes >= read.Bytes
		q.handOut(r)
	}
	return page
}

// handOut says that the forwarder has a waiting row.
func (q *queue[T]) handOut(r *row[T]) {
	if q.at == r {
		q.at = r.next
	}
	q.waiting.remove(r)
	r.out = true
	q.out.insert(r, q.out.last)
}

// forget drops the event of a row that is handed out, and leaves its id.
func (q *queue[T]) forget(r *row[T]) {
	q.out.remove(r)
	r.ev, r.size = nil, 0
	q.ghosts.insert(r, nil)
}

// remove takes a row out altogether.
func (q *queue[T]) remove(r *row[T]) {
	switch {
	case !r.out:
		if q.at == r {
			q.at = r.next
		}
		q.waiting.remove(r)
	case r.ev != nil:
		q.out.remove(r)
	default:
		q.ghosts.remove(r)
	}
	q.rows.Delete(r.id)
	*r = row[T]{next: q.free}
	q.free = r
}

// listed returns the ids as a set, which is valid until the next call.
func (q *queue[T]) listed(ids []int64) map[int64]bool {
	clear(q.known)
	for _, id := range ids {
		q.known[id] = true
	}
	return q.known
}

// takeBack lets the rows wait again that were handed out with an event that is still here, and
// are not listed.
func (q *queue[T]) takeBack(listed map[int64]bool) {
	var back []*row[T]
	for r := q.out.first; r != nil; r = r.next {
		if !listed[r.id] {
			back = append(back, r)
		}
	}
	q.giveBack(back)
}

// giveBack lets rows wait again that were handed out, each in its place.
func (q *queue[T]) giveBack(rows []*row[T]) {
	slices.SortFunc(rows, (*row[T]).compare)
	var after *row[T]
	next := q.waiting.first
	for _, r := range rows {
		q.out.remove(r)
		r.out = false
		for next != nil && next.compare(r) < 0 {
			after, next = next, next.next
		}
		q.waiting.insert(r, after)
		after = r
	}
	if len(rows) > 0 {
		q.at = q.waiting.first
	}
}
