package lanes

import (
	"fmt"
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Engine is the pure core: it takes inputs (a page, outcomes, a finished delete, lanes gained
// or lost, the time) and answers through Ready what is to be done. It has no goroutine, clock,
// database or broker in it. It is not safe for concurrent use.
//
// Invariants, with "known" for the events in memory:
//
//	every event that was read and is neither known nor deleted lies above the floor, or above
//	what the part behind that it belongs to remembers
//	a lane's run and queue hold its known, unacknowledged events in the order of reading
//	events are deleted only after their own acknowledgement
type Engine struct {
	cfg   Config
	floor *Floor[Part]
	lanes []lane
	known map[int64]*item
	parts map[Part]*waiting // behind, or on trial
	kinds [4]int            // entries in parts by kind
	trial int               // entries in parts on trial
	// The topics under suspicion: one record of each was refused in company.
	careful map[string]*inquest

	queued, flying, undeleted int
	bytes                     int // of the queued and flying

	reading   bool      // a Read is on its way
	readAt    time.Time // when it was sent
	rescanned bool      // it was sent from Start by the clock
	nextRead  time.Time
	pause     time.Duration // before the next read, after a page without rows
	full      bool          // the last page was full
	rescanAt  time.Time
	readFails int
	avgSize   int // bytes of an event, a cautious average

	pausedUntil time.Time // submits wait for the broker side
	brokerFails int

	shards   []shard   // of deletes, see there
	fencedAt time.Time // when the floor last got a fence

	trusted   time.Time // nothing is submitted from then on; zero for never
	suspended bool      // that moment has passed
	stopping  bool
	drained   []source.Lane
	notes     []Note
	stats     Stats
}

// ownership of a lane by this process.
type ownership uint8

const (
	notOurs   ownership = iota
	owned               // we read and submit
	draining            // what is in flight is finished, nothing is begun
	suspended           // ours again, if the trust in the leases is renewed in time
	awaiting            // ours again, once the run that was in flight when we lost it has its outcomes
)

type lane struct {
	ownership ownership
	queue     []*item // from head on
	head      int
	bytes     int // of queue
	run       []*item
	left      int  // events of run without an outcome
	failed    bool // an outcome of run was not Acked
	lone      bool // run is one event that was sent with nothing else of its topic in flight
	undeleted int
	behind    *waiting // the lane's own entry in Engine.parts, nil while it is live
	hot       *waiting // the key of the lane that waits for room in its stead, if any
}

func (l *lane) waiting() int { return len(l.queue) - l.head }

// shard is the deletes of a share of the lanes, one statement at a time: a lane's rows are
// deleted in the order in which they were acknowledged, so that what a crash leaves to be sent
// again is a suffix of each key.
type shard struct {
	acked   []int64 // to be deleted, in order
	since   time.Time
	out     bool   // a delete is on its way
	reads   uint64 // the floor's count when it was sent
	fails   int
	retryAt time.Time // not before, after a failure
}

func (e *Engine) shard(lane source.Lane) *shard { return &e.shards[int(lane)%len(e.shards)] }

type state uint8

const (
	queued state = iota
	flying
	settled // failed, while its run is not complete
	acknowledged
)

type item struct {
	ev      *source.Event // nil once acknowledged
	id      int64
	lane    source.Lane
	state   state
	class   source.Class
	suspect bool // must be sent alone
	again   bool // an earlier attempt may have been written
	size    int32
	err     error
}

// inquest is a search for the record that the broker refuses, one record at a time.
type inquest struct {
	suspects int // items in memory with suspect set
	flying   int // events of the topic in flight
}

// NewEngine returns an engine that owns no lane. The configuration must be valid.
func NewEngine(cfg Config) *Engine {
	cfg = cfg.withDefaults()
	return &Engine{
		cfg:     cfg,
		floor:   NewFloor[Part](cfg.TransactionAge),
		lanes:   make([]lane, cfg.Lanes),
		known:   make(map[int64]*item, cfg.MaxEvents),
		parts:   make(map[Part]*waiting),
		careful: make(map[string]*inquest),
		shards:  make([]shard, cfg.Deleters),
		avgSize: 4096,
	}
}

// Gain makes lanes ours. Their rows are read from the start of the table. A lane that was
// lost with a run in flight waits for the outcomes: another replica may have delivered those
// events meanwhile, and what came after them, so none of them may be put back.
func (e *Engine) Gain(now time.Time, gained ...source.Lane) {
	for _, id := range gained {
		l := &e.lanes[id]
		if l.ownership == owned || l.ownership == suspended && e.suspended {
			continue
		}
		// It may have been drained since the last Ready.
		e.drained = slices.DeleteFunc(e.drained, func(other source.Lane) bool { return other == id })
		if l.ownership == awaiting || l.ownership == notOurs && l.left > 0 {
			l.ownership = awaiting
			continue
		}
		if e.suspended {
			l.ownership = suspended
			continue
		}
		l.ownership = owned
		if l.behind != nil {
			panic(fmt.Sprintf("lanes: lane %d was behind while it was not ours", id))
		}
		l.behind = e.wait(now, lanePart(id))
		e.floor.Hold(l.behind.part, Start)
	}
	e.nextRead = now
}

// Lose takes lanes away at once: what is queued is dropped, what is on the wire is left to
// its outcome, and what was acknowledged is still deleted.
func (e *Engine) Lose(lost ...source.Lane) { e.giveUp(notOurs, lost) }

// Drain begins to give lanes up: nothing of them is submitted any more, and once what is in
// flight has its outcome and what was acknowledged is deleted, Ready.Drained names them; also
// lanes that are not ours any more, since Stop has drained them already.
func (e *Engine) Drain(lanes ...source.Lane) {
	e.giveUp(draining, lanes)
	for _, id := range lanes {
		if l := &e.lanes[id]; l.ownership == notOurs && !slices.Contains(e.drained, id) {
			l.ownership = draining
			e.checkDrained(id)
		}
	}
}

func (e *Engine) giveUp(to ownership, given []source.Lane) {
	for _, id := range given {
		l := &e.lanes[id]
		if l.ownership == notOurs || l.ownership == to {
			continue
		}
		l.ownership = to
		for _, it := range l.queue[l.head:] {
			e.drop(it)
		}
		l.queue, l.head, l.bytes = l.queue[:0], 0, 0
		for part, w := range e.parts {
			if part.Kind != WholeTopic && part.Lane == id {
				e.unwait(w)
			}
		}
		e.checkDrained(id)
	}
	if e.ownsNone() {
		// Every lane that comes is read from the start of the table.
		for part, w := range e.parts {
			if part.Kind == WholeTopic {
				e.unwait(w)
			}
		}
	}
}

func (e *Engine) ownsNone() bool {
	for i := range e.lanes {
		if e.lanes[i].ownership == owned {
			return false
		}
	}
	return true
}

func (e *Engine) checkDrained(id source.Lane) {
	l := &e.lanes[id]
	if l.ownership == draining && l.left == 0 && l.undeleted == 0 {
		l.ownership = notOurs
		e.drained = append(e.drained, id)
	}
}

// Trust says until when the lanes are ours for certain. When that moment passes, everything
// that is not on the wire is dropped; a later Trust takes the lanes up again from the start
// of the table.
func (e *Engine) Trust(now, until time.Time) {
	e.trusted = until
	if !e.suspended || !now.Before(until) {
		return
	}
	e.suspended = false
	for id := range e.lanes {
		if e.lanes[id].ownership == suspended {
			e.Gain(now, source.Lane(id))
		}
	}
}

// checkTrust suspends every lane when the trust in the leases has ended.
func (e *Engine) checkTrust(now time.Time) {
	if e.trusted.IsZero() || e.suspended || now.Before(e.trusted) {
		return
	}
	e.suspended = true
	n := 0
	for id := range e.lanes {
		if e.lanes[id].ownership == owned {
			e.giveUp(suspended, []source.Lane{source.Lane(id)})
			n++
		}
	}
	e.stats.LeasesEnded++
	e.note(Note{Kind: LeaseEnded, Count: n})
}

// Stop begins the shutdown: nothing is read or submitted any more, and what is queued is
// dropped. Done says when the rest is finished.
func (e *Engine) Stop() {
	e.stopping = true
	for id := range e.lanes {
		e.giveUp(draining, []source.Lane{source.Lane(id)})
	}
}

// Done reports whether nothing is in flight or undeleted any more after Stop. A read that is
// still on its way does not matter.
func (e *Engine) Done() bool {
	return e.stopping && e.flying == 0 && e.undeleted == 0
}

// Page takes in the answer to the last Ready.Read.
func (e *Engine) Page(now time.Time, page *source.Page) {
	if !e.reading {
		panic("lanes: a page arrived that was not asked for")
	}
	e.reading = false
	e.readFails = 0
	if e.rescanned {
		e.rescanned = false
		e.rescanAt = now.Add(max(e.cfg.Rescan, 20*now.Sub(e.readAt)))
	}
	e.learnSize(page.Events)
	if e.stopping {
		return
	}
	if !e.floor.Observe(now, page) {
		e.stats.Discarded++
		e.nextRead = now
		return
	}
	items := make([]item, min(len(page.Events), itemSlab))
	for i, ev := range page.Events {
		if len(items) == 0 {
			items = make([]item, min(len(page.Events)-i, itemSlab))
		}
		if e.accept(now, ev, &items[0]) {
			items = items[1:]
		}
	}
	if !page.Full && e.trial > 0 {
		e.endTrials()
	}
	e.full = page.Full
	switch {
	case page.Full:
		e.pause = 0
	case len(page.Events) > 0:
		e.pause = e.cfg.MinPoll
	default:
		e.pause = min(max(2*e.pause, e.cfg.MinPoll), e.cfg.MaxPoll)
	}
	e.nextRead = now.Add(e.pause)
	if e.kinds[WholeLane]+e.kinds[OneKey] > 0 {
		for i := range e.lanes {
			if e.hasRoom(now, &e.lanes[i]) {
				e.nextRead = now
				break
			}
		}
	}
}

// itemSlab is how many items are allocated at once: enough to spare the allocator, few enough
// that one slow event does not pin a page's worth.
const itemSlab = 64

// accept queues an event of a page, or passes it over when its part is behind, and reports
// whether it kept it.
func (e *Engine) accept(now time.Time, ev *source.Event, it *item) bool {
	if _, ok := e.known[ev.ID]; ok {
		panic(fmt.Sprintf("lanes: row %d was read while it is known", ev.ID))
	}
	l := &e.lanes[ev.Lane]
	// A part that fell behind while the read was on its way remembers a floor at or below
	// the one that the read was sent with, so the row is not forgotten.
	if l.ownership != owned || l.behind != nil && !l.behind.trial || e.passesOver(ev) {
		return false
	}
	size := ev.Size()
	switch full := l.waiting() > 0 && (l.waiting() >= e.cfg.MaxEvents/4 || l.bytes+size > e.cfg.MaxBytes/4); {
	case full && e.crowd(now, l):
		e.floor.Hold(l.hot.part, ev.ID)
		if l.hot.part.covers(ev) {
			return false
		}
	case full:
		if l.behind == nil {
			l.behind = e.wait(now, lanePart(ev.Lane))
		} else {
			// On trial after a failure: it keeps its count of attempts, and waits for room now.
			e.trial--
			l.behind.trial = false
			l.behind.room = true
		}
		e.floor.Hold(l.behind.part, ev.ID)
		return false
	}
	*it = item{ev: ev, id: ev.ID, lane: ev.Lane, size: int32(min(size, 1<<31-1))}
	e.known[ev.ID] = it
	l.queue = append(l.queue, it)
	l.bytes += size
	e.bytes += size
	e.queued++
	e.stats.Read++
	return true
}

// crowd makes room in a full lane by putting the key behind that has more than half of its
// queue, so that the other keys of the lane do not wait for a flood of that one. It does so once
// at a time for each lane.
func (e *Engine) crowd(now time.Time, l *lane) bool {
	if l.hot != nil {
		return false
	}
	counts := make(map[source.TopicKey]int)
	for _, it := range l.queue[l.head:] {
		if it.ev.Key == nil {
			continue
		}
		key := it.ev.TopicKey()
		if counts[key]++; counts[key] <= l.waiting()/2 {
			continue
		}
		part := keyPart(it.ev)
		switch w := e.parts[part]; {
		case w == nil && e.kinds[OneKey]+e.kinds[OneRow] < e.cfg.MaxParts:
			l.hot = e.wait(now, part)
		case w != nil && w.trial:
			e.trial--
			w.trial = false
			w.room = true
			l.hot = w
		}
		return l.hot != nil
	}
	return false
}

// passesOver reports whether the event's topic, key or row is behind.
func (e *Engine) passesOver(ev *source.Event) bool {
	if e.kinds[WholeTopic] > 0 {
		if w := e.parts[topicPart(ev.Topic)]; w != nil && !w.trial {
			return true
		}
	}
	if e.kinds[OneKey]+e.kinds[OneRow] > 0 {
		if w := e.parts[partOf(ev)]; w != nil && !w.trial {
			return true
		}
	}
	return false
}

// learnSize follows the size of the events: up at once, since the next page must fit in
// memory, and down slowly.
func (e *Engine) learnSize(events []*source.Event) {
	if len(events) == 0 {
		return
	}
	n := 0
	for _, ev := range events {
		n += ev.Size()
	}
	mean := n / len(events)
	e.avgSize = max(mean, (3*e.avgSize+mean)/4)
}

// ReadFailed says that the last Ready.Read has no answer.
func (e *Engine) ReadFailed(now time.Time) {
	e.reading = false
	e.rescanned = false
	e.readFails++
	e.nextRead = now.Add(e.cfg.Store.after(e.readFails, e.cfg.Rand))
	e.rescanAt = time.Time{} // after every reconnect the table is read from its start
}

// Deleting says that a Ready.Delete that is on its way runs as transaction xid.
func (e *Engine) Deleting(now time.Time, ids []int64, xid uint64) {
	sh := e.shard(e.acknowledged(ids[0]).lane)
	e.floor.Ours(xid)
	e.floor.Fence(sh.reads, xid)
	e.fencedAt = now
}

// Deleted says that a Ready.Delete has committed.
func (e *Engine) Deleted(ids []int64) {
	e.finished(ids).fails = 0
	for _, id := range ids {
		it := e.acknowledged(id)
		delete(e.known, id)
		l := &e.lanes[it.lane]
		l.undeleted--
		e.undeleted--
		e.stats.Deleted++
		if l.ownership == draining {
			e.checkDrained(it.lane)
		}
	}
}

// DeleteFailed says that a Ready.Delete did not commit, or may not have. It is asked for
// again; deleting a row twice does no harm.
func (e *Engine) DeleteFailed(now time.Time, ids []int64) {
	sh := e.finished(ids)
	sh.fails++
	sh.retryAt = now.Add(e.cfg.Store.after(sh.fails, e.cfg.Rand))
	if len(sh.acked) == 0 {
		sh.since = now
	}
	sh.acked = append(slices.Clone(ids), sh.acked...)
}

// finished returns the shard that a delete was of.
func (e *Engine) finished(ids []int64) *shard {
	sh := e.shard(e.acknowledged(ids[0]).lane)
	if !sh.out {
		panic(fmt.Sprintf("lanes: the delete of row %d has finished and was not on its way", ids[0]))
	}
	sh.out = false
	return sh
}

func (e *Engine) acknowledged(id int64) *item {
	it := e.known[id]
	if it == nil || it.state != acknowledged {
		panic(fmt.Sprintf("lanes: row %d was deleted without an acknowledgement", id))
	}
	return it
}

// RetryAll makes everything that waits after a failure due now, and returns how many parts
// that are.
func (e *Engine) RetryAll(now time.Time) int {
	n := 0
	for _, w := range e.parts {
		if w.blocked() && !w.trial {
			w.retryAt = now
			n++
		}
	}
	e.nextRead = now
	return n
}

// drop removes an unacknowledged event from memory. The caller sees to it that it will be
// read again, or that its lane is not ours.
func (e *Engine) drop(it *item) {
	if it.state == queued {
		e.queued--
	}
	e.bytes -= int(it.size)
	e.clear(it)
	delete(e.known, it.id)
	e.stats.Dropped++
	it.ev = nil
}

// clear ends the suspicion against an item, and the inquest with the last of them.
func (e *Engine) clear(it *item) {
	if !it.suspect {
		return
	}
	it.suspect = false
	q := e.careful[it.ev.Topic]
	q.suspects--
	if q.suspects == 0 {
		delete(e.careful, it.ev.Topic)
	}
}
