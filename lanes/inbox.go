package lanes

import (
	"sync"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// inbox gathers what arrives for the loop. Its methods never block, so that the broker
// client's callbacks and the workers can call them from anywhere.
type inbox struct {
	wake chan struct{} // holds a token while something waits

	mu    sync.Mutex
	in    arrivals
	spare []source.Outcome // recycled memory for in.outcomes
}

// arrivals is what came in since the loop last looked.
type arrivals struct {
	changes  []change
	outcomes []source.Outcome
	deleting []deleting // before their entry in deletes
	deletes  []deleted
	answered bool // a read has its answer: page or readErr
	page     *source.Page
	readErr  error
}

type changeKind uint8

const (
	gain changeKind = iota
	lose
	drain
	trust
)

type change struct {
	kind  changeKind
	lanes []source.Lane
	done  func(source.Lane) // of drain
	until time.Time         // of trust
}

type deleting struct {
	ids []int64
	xid uint64
}

type deleted struct {
	ids []int64
	err error
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// add changes what has arrived and wakes the loop.
func (b *inbox) add(do func(*arrivals)) {
	b.mu.Lock()
	do(&b.in)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) report(outcomes []source.Outcome) {
	b.add(func(in *arrivals) { in.outcomes = append(in.outcomes, outcomes...) })
}

func (b *inbox) page(page *source.Page, err error) {
	b.add(func(in *arrivals) { in.answered, in.page, in.readErr = true, page, err })
}

// deleting does not wake the loop: what it says is of use to the next page only.
func (b *inbox) deleting(d deleting) {
	b.mu.Lock()
	b.in.deleting = append(b.in.deleting, d)
	b.mu.Unlock()
}

func (b *inbox) deleted(d deleted) {
	b.add(func(in *arrivals) { in.deletes = append(in.deletes, d) })
}

func (b *inbox) change(c change) {
	b.add(func(in *arrivals) { in.changes = append(in.changes, c) })
}

// take empties the inbox.
func (b *inbox) take() arrivals {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.in
	b.in = arrivals{outcomes: b.spare}
	b.spare = nil
	return in
}

// recycle gives the outcomes' memory back once they have been taken in.
func (b *inbox) recycle(in arrivals) {
	clear(in.outcomes)
	b.mu.Lock()
	b.spare = in.outcomes[:0]
	b.mu.Unlock()
}

// batch holds runs that were decided in one term.
type batch struct {
	term uint64
	runs [][]*source.Event
}

// runQueue holds runs until the submitter takes them: what piles up while it is busy goes
// out together.
type runQueue struct {
	wake    chan struct{}
	mu      sync.Mutex
	batches []batch
}

func newRunQueue() *runQueue { return &runQueue{wake: make(chan struct{}, 1)} }

func (q *runQueue) put(b batch) {
	q.mu.Lock()
	if n := len(q.batches); n > 0 && q.batches[n-1].term == b.term {
		q.batches[n-1].runs = append(q.batches[n-1].runs, b.runs...)
	} else {
		q.batches = append(q.batches, b)
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *runQueue) take() []batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	batches := q.batches
	q.batches = nil
	return batches
}
