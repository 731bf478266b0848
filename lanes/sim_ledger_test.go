package lanes

import (
	"slices"
	"strings"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// ledger holds what one engine asked for and was told, and checks each step of it. It knows
// the engine from outside, except for the recounts of check and the rule of covered.
type ledger struct {
	reading    bool
	trusted    time.Time // the end of the leases
	risen      bool      // the floor was at the highest id since the world is calm
	lanes      []ledgerLane
	flying     map[int64]*ledgerRun
	topics     map[string]int // of the flying
	stalled    map[int64]bool // of the flying, what was split off
	lastSent   time.Time      // when the youngest run was sent of which something was acknowledged
	lastAck    time.Time
	submitAt   time.Time // of the youngest run
	acked      map[int64]bool
	deleting   map[int64]bool
	gone       map[int64]bool // the answer to the delete has arrived
	suspects   map[int64]string
	violations uint64
	submitted  uint64
}

type ledgerLane struct {
	ownership ownership
	gained    bool         // and not read since
	runs      []*ledgerRun // in flight; all but the last are split off
	undeleted []int64      // in the order of their acknowledgements
}

type ledgerRun struct {
	lane    source.Lane
	events  []*source.Event
	classes map[int64]source.Class
	sent    time.Time
	stalled bool
	company bool // it was sent with more than one event
}

func (r *ledgerRun) done() bool { return len(r.classes) == len(r.events) }

func newLedger(lanes int) *ledger {
	return &ledger{
		lanes:    make([]ledgerLane, lanes),
		flying:   make(map[int64]*ledgerRun),
		stalled:  make(map[int64]bool),
		topics:   make(map[string]int),
		acked:    make(map[int64]bool),
		deleting: make(map[int64]bool),
		gone:     make(map[int64]bool),
		suspects: make(map[int64]string),
	}
}

func (l *ledger) stop() {
	for i := range l.lanes {
		l.lanes[i].ownership = draining
	}
}

// read checks a read against what is allowed now.
func (l *ledger) read(s *simulation, r *source.Read) {
	if l.reading {
		failf("a read is asked for while one is on its way")
	}
	if s.stopping {
		failf("a read is asked for after the stop")
	}
	l.reading = true
	if r.Limit < 1 || r.Bytes < 1 {
		failf("the read asks for %d events and %d bytes", r.Limit, r.Bytes)
	}
	for id := range l.lanes {
		if r.Lanes != nil && !slices.Contains(r.Lanes, source.Lane(id)) {
			continue
		}
		if l.lanes[id].ownership != owned {
			failf("lane %d is read, which is not ours", id)
		}
		if l.lanes[id].gained && !r.Gained {
			failf("lane %d is read for the first time, and the read does not say so", id)
		}
		l.lanes[id].gained = false
	}
	if !slices.IsSorted(r.Lanes) {
		failf("the lanes %v are not in ascending order", r.Lanes)
	}
}

// submit checks a run.
func (l *ledger) submit(s *simulation, run []*source.Event) {
	cfg := &s.engine.cfg
	lane := run[0].Lane
	at := &l.lanes[lane]
	if at.ownership != owned {
		failf("lane %d is submitted, which is not ours", lane)
	}
	if s.plan.lease > 0 && !s.now.Before(l.trusted) {
		failf("lane %d is submitted %v after the end of its lease", lane, s.now.Sub(l.trusted))
	}
	for _, other := range at.runs {
		if !other.stalled {
			failf("lane %d has a second run in flight", lane)
		}
	}
	if n := len(l.acked) - len(l.gone); n >= max(cfg.MaxEvents/2, 1) {
		failf("a run is submitted while %d events are acknowledged and not deleted", n)
	}
	keys := make(map[source.TopicKey]bool)
	for _, other := range at.runs {
		for _, ev := range other.events {
			if _, done := other.classes[ev.ID]; !done && ev.Key != nil {
				keys[ev.TopicKey()] = true
			}
		}
	}
	r := &ledgerRun{lane: lane, events: slices.Clone(run), classes: make(map[int64]source.Class), sent: s.now, company: len(run) > 1}
	bytes := 0
	careful := make(map[string]bool)
	for _, topic := range l.suspects {
		careful[topic] = true
	}
	for _, ev := range run {
		switch {
		case ev.Lane != lane:
			failf("lanes %d and %d share a run", lane, ev.Lane)
		case l.acked[ev.ID]:
			failf("row %d is submitted again after its acknowledgement", ev.ID)
		case s.table.byID[ev.ID].deleted && !s.killed:
			failf("row %d is submitted after its deletion", ev.ID)
		case careful[ev.Topic] && (len(run) > 1 || l.topics[ev.Topic] > 0):
			failf("row %d is submitted in company while topic %s has the suspects %v", ev.ID, ev.Topic, l.suspects)
		}
		if _, ok := l.flying[ev.ID]; ok {
			failf("row %d is submitted while it is in flight", ev.ID)
		}
		if ev.Key != nil && keys[ev.TopicKey()] {
			failf("row %d is submitted while an earlier one of key %q is in flight", ev.ID, ev.Key)
		}
		l.flying[ev.ID] = r
		l.topics[ev.Topic]++
		bytes += ev.Size()
	}
	largest := slices.MaxFunc(run, func(a, b *source.Event) int { return a.Size() - b.Size() }).Size()
	if len(run) > cfg.RunEvents || len(run) > 1 && bytes-largest > cfg.RunBytes {
		failf("a run has %d events and %d bytes", len(run), bytes)
	}
	at.runs = append(at.runs, r)
	l.submitAt = s.now
	l.submitted += uint64(len(run))
}

// outcomes notes what the broker said.
func (l *ledger) outcomes(s *simulation, outcomes []source.Outcome) {
	for _, o := range outcomes {
		r, ok := l.flying[o.ID]
		if !ok {
			failf("the simulated broker speaks of row %d, which is not in flight", o.ID)
		}
		delete(l.flying, o.ID)
		delete(l.stalled, o.ID)
		l.topics[s.table.byID[o.ID].Topic]--
		r.classes[o.ID] = o.Class
		if o.Class == source.Acked {
			l.acked[o.ID] = true
			l.lanes[r.lane].undeleted = append(l.lanes[r.lane].undeleted, o.ID)
			if r.stalled {
				continue
			}
			l.lastAck = s.now
			if r.sent.After(l.lastSent) {
				l.lastSent = r.sent
			}
		}
	}
}

// settled closes the runs that are complete, once the engine has heard of them.
func (l *ledger) settled(s *simulation) {
	for id := range l.lanes {
		lane := &l.lanes[id]
		for _, r := range lane.runs {
			if r.done() {
				l.close(s, r)
			}
		}
		lane.runs = slices.DeleteFunc(lane.runs, (*ledgerRun).done)
	}
}

func (l *ledger) close(s *simulation, r *ledgerRun) {
	failed := make(map[source.TopicKey]bool)
	for _, ev := range r.events {
		class := r.classes[ev.ID]
		switch {
		case ev.Key == nil:
		case class != source.Acked:
			failed[ev.TopicKey()] = true
		case failed[ev.TopicKey()]:
			l.violations++
		}
		delete(l.suspects, ev.ID)
		if class == source.Suspect && (r.company || s.engine.known.Get(ev.ID) != nil) {
			l.suspects[ev.ID] = ev.Topic
		}
	}
}

// split notes which runs the engine has split, and checks that it may: one of them must have waited
// for long enough, or an earlier one, while something was acknowledged that was sent no earlier.
func (l *ledger) split(s *simulation) {
	cfg := &s.engine.cfg
	var split []*ledgerRun
	patient := len(l.stalled) > 0
	for id := range l.lanes {
		lane := &l.lanes[id]
		n := len(lane.runs)
		if n == 0 || lane.runs[n-1].stalled || !lane.runs[n-1].isSplit(s.engine) {
			continue
		}
		whole := lane.runs[n-1]
		if lane.ownership != owned || l.lastSent.Before(whole.sent) {
			failf("lane %d has a run split, in ownership %d, while what was sent %v later is acknowledged", id, lane.ownership, l.lastSent.Sub(whole.sent))
		}
		if l.submitAt.After(l.lastSent) && s.now.Sub(l.lastAck) > cfg.StallAfter/4 {
			failf("lane %d has a run split, and the broker may be gone: it has acknowledged nothing for %v", id, s.now.Sub(l.lastAck))
		}
		patient = patient || s.now.Sub(whole.sent) >= cfg.StallAfter
		split = append(split, whole)
		lane.runs = lane.runs[:n-1]
	}
	for _, whole := range split {
		s.splits++
		if age := s.now.Sub(whole.sent); !patient || age < cfg.StallAfter/againFaster {
			failf("lane %d has a run split after %v", whole.lane, age)
		}
		l.part(whole)
	}
	if n := len(l.stalled); n > cfg.MaxEvents/4 || s.engine.stalledBytes > cfg.MaxBytes/4 {
		failf("%d events of %d bytes have stalled", n, s.engine.stalledBytes)
	}
	l.settled(s)
}

// isSplit reports whether the engine has split off what has no outcome yet.
func (r *ledgerRun) isSplit(e *Engine) bool {
	left := slices.IndexFunc(r.events, func(ev *source.Event) bool { _, done := r.classes[ev.ID]; return !done })
	return e.known.Get(r.events[left].ID).run.stalled
}

// part makes a run of each key and of each row without one.
func (l *ledger) part(whole *ledgerRun) {
	lane := &l.lanes[whole.lane]
	parts := make(map[Part]*ledgerRun)
	for _, ev := range whole.events {
		r := parts[partOf(ev)]
		if r == nil {
			r = &ledgerRun{lane: whole.lane, classes: make(map[int64]source.Class), sent: whole.sent, stalled: true, company: whole.company}
			parts[partOf(ev)] = r
			lane.runs = append(lane.runs, r)
		}
		r.events = append(r.events, ev)
		if class, done := whole.classes[ev.ID]; done {
			r.classes[ev.ID] = class
			continue
		}
		l.flying[ev.ID] = r
		l.stalled[ev.ID] = true
	}
}

// delete checks a delete statement.
func (l *ledger) delete(s *simulation, ids []int64) {
	cfg := &s.engine.cfg
	if len(ids) == 0 || len(ids) > cfg.DeleteEvents || !slices.IsSorted(ids) {
		failf("a delete has the ids %v", ids)
	}
	lanes := make(map[source.Lane]int)
	for _, id := range ids {
		if !l.acked[id] || l.gone[id] {
			failf("row %d is deleted, acknowledged %v, deleted before %v", id, l.acked[id], l.gone[id])
		}
		lanes[s.table.byID[id].Lane]++
	}
	for lane, n := range lanes {
		for _, id := range l.lanes[lane].undeleted[:n] {
			if !slices.Contains(ids, id) {
				failf("the rows %v are deleted before row %d of lane %d, which was acknowledged before one of them", ids, id, lane)
			}
		}
	}
}

func (l *ledger) deleted(s *simulation, ids []int64) {
	for _, id := range ids {
		l.gone[id] = true
		lane := &l.lanes[s.table.byID[id].Lane]
		lane.undeleted = slices.DeleteFunc(lane.undeleted, func(other int64) bool { return other == id })
	}
}

// drained checks that a lane that was drained left nothing behind.
func (l *ledger) drained(s *simulation, lane source.Lane) {
	if l.lanes[lane].ownership == owned {
		failf("lane %d is drained, and is ours", lane)
	}
	l.lanes[lane].ownership = notOurs
	if len(l.lanes[lane].runs) > 0 {
		failf("lane %d is drained and has events in flight", lane)
	}
	for id := range l.acked {
		if s.table.byID[id].Lane == lane && !l.gone[id] {
			failf("lane %d is drained and row %d is not deleted", lane, id)
		}
	}
}

// stopped checks what a clean stop promises.
func (l *ledger) stopped(s *simulation) {
	if len(l.flying) > 0 {
		failf("the engine is done with %d events in flight", len(l.flying))
	}
	for id := range l.acked {
		if !l.gone[id] {
			failf("the engine is done and row %d is not deleted", id)
		}
	}
	stats := s.engine.Stats(s.now)
	if stats.Violations != l.violations {
		failf("%d violations are counted and %d happened", stats.Violations, l.violations)
	}
}

// visible checks that what can never be delivered is known as such, and that the floor has
// risen to the end of the table.
func (l *ledger) visible(s *simulation, stuck map[*row]bool) {
	if !l.risen && s.log == nil { // with a log, the table may be read from its start always
		failf("the floor has not been at the highest id, %d: %v", s.engine.floor.Top(), s.engine.floor.marks)
	}
	parked := s.engine.Parked()
	for r := range stuck {
		if !r.flaw.forever() {
			continue
		}
		if !slices.ContainsFunc(parked, func(p Parked) bool { return p.covers(r.Event) }) {
			failf("row %d can never be delivered, and is not in %v", r.ID, parked)
		}
	}
}

// check compares the engine's counts and bounds with a recount.
func (l *ledger) check(s *simulation) {
	e := s.engine
	stats := e.Stats(s.now)
	var inFlight, undeleted, waiting, bytes int
	for id, it := range e.known.All() {
		if it.id != id {
			failf("row %d is known as %d", it.id, id)
		}
		if int(it.place) >= len(e.ids) || e.ids[it.place] != id {
			failf("row %d is not listed at place %d", id, it.place)
		}
		switch it.state {
		case acknowledged:
			undeleted++
			continue
		case flying:
			inFlight++
		case queued:
			waiting++
		}
		bytes += it.ev.Size()
	}
	stalledBytes := 0
	for id := range l.stalled {
		stalledBytes += s.table.byID[id].Size()
	}
	inMemory := e.known.Len() - undeleted
	switch {
	case stats.Read != stats.Acked+uint64(stats.InMemory)+stats.Dropped:
		failf("read %d is not acked %d + in memory %d + dropped %d", stats.Read, stats.Acked, stats.InMemory, stats.Dropped)
	case stats.InMemory != inMemory || stats.Undeleted != undeleted || stats.Flying != inFlight || e.queued != waiting || stats.Bytes != bytes:
		failf("a recount finds in memory %d, undeleted %d, flying %d, queued %d, bytes %d: %+v", inMemory, undeleted, inFlight, waiting, bytes, stats)
	case inFlight != len(l.flying):
		failf("%d events are in flight, the engine counts %d", len(l.flying), inFlight)
	case stats.Stalled != len(l.stalled) || e.stalledBytes != stalledBytes:
		failf("%d events of %d bytes have stalled, the engine counts %d of %d", len(l.stalled), stalledBytes, stats.Stalled, e.stalledBytes)
	case stats.Acked != uint64(len(l.acked)) || stats.Deleted != uint64(len(l.gone)) || stats.Submitted != l.submitted:
		failf("acked %d, deleted %d, submitted %d: %+v", len(l.acked), len(l.gone), l.submitted, stats)
	case len(e.ids) != e.known.Len():
		failf("%d rows are listed, %d are known", len(e.ids), e.known.Len())
	case e.known.Len() > e.cfg.MaxEvents:
		failf("%d events are in memory", e.known.Len())
	case bytes > e.cfg.MaxBytes+eventLimit:
		failf("%d bytes are in memory", bytes)
	}
	l.risen = l.risen || s.calm && e.floor.At() == e.floor.Top()
	l.checkParts(s)
	l.checkQueues(s)
	for id := range l.suspects {
		if e.known.Get(id) == nil {
			delete(l.suspects, id) // dropped; if it is read again, nobody knows
		}
	}
}

// eventLimit is more than the size of any event here.
const eventLimit = 2000

func (l *ledger) checkParts(s *simulation) {
	e := s.engine
	stalled := make(map[source.TopicKey]bool)
	for id := range l.stalled {
		if r := s.table.byID[id]; r.Key != nil && l.flying[id] != nil && e.lanes[r.Lane].ownership == owned {
			stalled[r.TopicKey()] = true
			if w := e.parts[keyPart(r.Event)]; w == nil || w.trial || w.stalled == nil {
				failf("row %d has stalled and its key does not wait", id)
			}
		}
	}
	var kinds [4]int
	trial := 0
	for part, w := range e.parts {
		kinds[part.Kind]++
		if w.trial {
			trial++
		}
		if part != w.part {
			failf("%v is listed as %v", w.part, part)
		}
		owner := e.lanes[part.Lane].ownership
		if part.Kind == OneKey && owner == owned && w.stalled != nil && !stalled[source.TopicKey{Topic: part.Topic, Key: part.Key}] {
			failf("%v waits for the broker, and has nothing in flight", part)
		}
		if part.Kind != WholeTopic && owner != owned && w.stalled == nil {
			failf("%v waits in a lane that is not ours", part)
		}
	}
	if kinds != e.kinds || trial != e.trial {
		failf("a recount finds parts %v and %d on trial, the engine %v and %d", kinds, trial, e.kinds, e.trial)
	}
	if n := kinds[OneKey] + kinds[OneRow]; n > e.cfg.MaxParts {
		failf("%d keys and rows wait on their own", n)
	}
}

func (l *ledger) checkQueues(s *simulation) {
	e := s.engine
	suspects := make(map[string]int)
	var owns [awaiting + 1]int
	busy := slices.Collect(e.busy.all)
	for id := range e.lanes {
		lane := &e.lanes[id]
		bytes, inFlight := 0, 0
		for _, r := range l.lanes[id].runs {
			inFlight += len(r.events) - len(r.classes)
		}
		if lane.flying != inFlight {
			failf("lane %d has %d events in flight and counts %d", id, inFlight, lane.flying)
		}
		for _, it := range lane.queue[lane.head:] {
			if it.state != queued || e.known.Get(it.id) != it || it.lane != source.Lane(id) {
				failf("lane %d queues row %d in state %d", id, it.id, it.state)
			}
			bytes += int(it.size)
		}
		if bytes != lane.bytes {
			failf("lane %d queues %d bytes and counts %d", id, bytes, lane.bytes)
		}
		owns[lane.ownership]++
		if (lane.waiting() > 0 || lane.run != nil) && !slices.Contains(busy, source.Lane(id)) {
			failf("lane %d has something to do and is not listed", id)
		}
		if lane.behind != e.parts[lanePart(source.Lane(id))] {
			failf("lane %d is behind %v", id, lane.behind)
		}
	}
	if owns != e.owns {
		failf("a recount finds lanes %v by ownership, the engine %v", owns, e.owns)
	}
	for _, it := range e.known.All() {
		if it.suspect {
			suspects[it.ev.Topic]++
		}
	}
	for topic, q := range e.careful {
		if q.suspects != suspects[topic] || q.flying != l.topics[topic] {
			failf("topic %s has %d suspects and %d in flight, its inquest counts %+v", topic, suspects[topic], l.topics[topic], *q)
		}
	}
	if len(suspects) != len(e.careful) {
		failf("%d topics have suspects, %d an inquest", len(suspects), len(e.careful))
	}
}

// covered checks the invariant that no row is ever skipped: a row that is not in memory lies
// above the floor, or above what a part behind that it belongs to remembers; also one that is
// not committed yet, unless its transaction is set aside with a floor below it.
func (l *ledger) covered(s *simulation) {
	e := s.engine
	for _, r := range s.table.rows {
		if r.ID > e.floor.At() || e.known.Get(r.ID) != nil || e.lanes[r.Lane].ownership != owned {
			continue
		}
		if aside, ok := e.floor.aside[r.writer]; ok && aside < r.ID {
			continue
		}
		if strings.HasPrefix(string(r.Key), "early") {
			continue // found when the table is read from its start again
		}
		held := false
		for part, w := range e.parts {
			if at, ok := e.floor.Held(part); ok && !w.trial && part.covers(r.Event) && at < r.ID {
				held = true
				break
			}
		}
		if !held {
			failf("row %d of %v lies below the floor %d, and nobody will read it", r.ID, partOf(r.Event), e.floor.At())
		}
	}
}
