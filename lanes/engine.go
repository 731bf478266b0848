package lanes

import (
	"fmt"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/idmap"
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
//	a lane's run and queue hold its known, unacknowledged events in the order of reading, but for
//	those that were split off; of a key that has some of those, neither holds any
//	events are deleted only after their own acknowledgement
type Engine struct {
	cfg   Config
	floor *Floor[Part]
	lanes []lane
	owns  [awaiting + 1]int // lanes by ownership
	busy  laneSet           // lanes with something queued or a run in flight, and some that had
	known idmap.Map[item]
	ids   []int64           // of known, each at its item's place
	items []*item           // the same, to move the last one
	parts map[Part]*waiting // behind, or on trial
	kinds [4]int            // entries in parts by kind
	trial int               // entries in parts on trial
	freed bool              // one has left since stalls were looked for
	// Of the events in flight, those that were split off, see stall.go.
	stalled, stalledBytes int
	stalls                map[string]int // by topic
	sent                  time.Time      // when the youngest run was sent
	reached               time.Time      // when the youngest one was sent of which something was acknowledged
	answered              time.Time      // when something was acknowledged last
	pace                  time.Duration  // of acknowledgements, an average
	// The topics under suspicion: one record of each was refused in company.
	careful map[string]*inquest

	queued, flying, undeleted int
	bytes                     int // of the queued and flying

	reading   bool          // a Read is on its way
	readAt    time.Time     // when it was sent
	rescanned bool          // it was sent from Start by the clock
	gained    bool          // what source.Read.Gained says, for the next one
	dropped   bool          // and Dropped
	woken     bool          // something new came while it was on its way
	readLanes []source.Lane // memory for the slices of the read that is on its way
	readKnown []int64
	nextRead  time.Time
	pause     time.Duration // before the next read, after a page without rows
	full      bool          // the last page was full
	brought   int           // events of the last page
	scannedAt time.Time     // when a read from Start by the clock was answered last
	scanCost  time.Duration // how long that took
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

type lane struct {
	ownership ownership
	queue     []*item // from head on
	head      int
	bytes     int  // of queue
	run       *run // in flight, nil while the next one may be formed
	flying    int  // events without an outcome, of run and of those that were split off
	lost      bool // some of those were in flight when the lane was not ours any more
	undeleted int
	behind    *waiting // the lane's own entry in Engine.parts, nil while it is live
	hot       *waiting // the key of the lane that waits for room in its stead, if any
}

func (l *lane) waiting() int { return len(l.queue) - l.head }

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
	run     *run // that it is in, while that is in flight
	class   source.Class
	suspect bool // must be sent alone
	again   bool // an earlier attempt may have been written
	size    int32
	place   int32 // in Engine.ids
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
		owns:    [awaiting + 1]int{notOurs: cfg.Lanes},
		busy:    newLaneSet(cfg.Lanes),
		parts:   make(map[Part]*waiting),
		careful: make(map[string]*inquest),
		stalls:  make(map[string]int),
		shards:  make([]shard, cfg.Deleters),
		avgSize: 4096,
	}
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
		e.scannedAt, e.scanCost = now, now.Sub(e.readAt)
	}
	e.learnSize(page.Events)
	if e.stopping {
		return
	}
	if !e.floor.Observe(now, page) {
		e.stats.Discarded++
		e.dropped = true
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
		} else {
			e.dropped = true
		}
	}
	if !page.Full && e.trial > 0 {
		e.endTrials()
	}
	e.full, e.brought = page.Full, len(page.Events)
	switch {
	case page.Full:
		e.pause = 0
	case len(page.Events) > 0:
		e.pause = e.cfg.MinPoll
	default:
		e.pause = min(max(2*e.pause, e.cfg.MinPoll), e.cfg.MaxPoll)
	}
	e.nextRead = now.Add(e.pause)
	if e.woken {
		e.Wake(now)
	}
	if e.kinds[WholeLane]+e.kinds[OneKey] > 0 {
		for i := range e.lanes {
			if e.hasRoom(now, &e.lanes[i]) {
				e.nextRead = now
				break
			}
		}
	}
}

// Wake says that there may be something new to read.
func (e *Engine) Wake(now time.Time) {
	e.woken = e.reading
	if e.readFails == 0 {
		e.nextRead = now
	}
}

// itemSlab is how many items are allocated at once: enough to spare the allocator, few enough
// that one slow event does not pin a page's worth.
const itemSlab = 64

// accept queues an event of a page, or passes it over when its part is behind, and reports
// whether it kept it.
func (e *Engine) accept(now time.Time, ev *source.Event, it *item) bool {
	if e.known.Get(ev.ID) != nil {
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
	e.remember(it)
	l.queue = append(l.queue, it)
	e.busy.add(ev.Lane)
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
	e.avgSize = max(mean, (e.avgSize+mean)/2)
}

// ReadFailed says that the last Ready.Read has no answer.
func (e *Engine) ReadFailed(now time.Time) {
	e.reading = false
	e.rescanned = false
	e.readFails++
	e.nextRead = now.Add(e.cfg.Store.after(e.readFails, e.cfg.Rand))
	e.scannedAt = time.Time{}        // after every reconnect the table is read from its start
	e.gained, e.dropped = true, true // what the read said may not have been heard
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
	e.forget(it)
	e.dropped = true
	e.stats.Dropped++
	it.ev, it.run = nil, nil
}

// remember adds an item to known.
func (e *Engine) remember(it *item) {
	it.place = int32(len(e.ids))
	e.ids, e.items = append(e.ids, it.id), append(e.items, it)
	e.known.Put(it.id, it)
}

// forget takes an item out of known.
func (e *Engine) forget(it *item) {
	last := len(e.ids) - 1
	e.ids[it.place], e.items[it.place] = e.ids[last], e.items[last]
	e.items[last].place = it.place
	e.items[last] = nil
	e.ids, e.items = e.ids[:last], e.items[:last]
	e.known.Delete(it.id)
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
