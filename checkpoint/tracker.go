package checkpoint

// Tracker follows positions of a log, which are added in order and finished in any order, and
// knows the last one up to which everything is finished. Positions are never compared. Each call
// takes constant time, and memory is held for the unfinished only. It is not safe for concurrent
// use. The zero value is ready.
type Tracker[P any] struct {
	first, last *Mark[P] // the unfinished, in the order of the log
	pending     int
	prefix      P
	reached     bool
}

// Mark is an unfinished position.
type Mark[P any] struct {
	upTo       P // the position, or the last one of those after it that were finished before it
	prev, next *Mark[P]
	finished   bool
}

// Add adds the next position of the log, to be finished later.
func (t *Tracker[P]) Add(pos P) *Mark[P] {
	m := &Mark[P]{upTo: pos, prev: t.last}
	if t.last == nil {
		t.first = m
	} else {
		t.last.next = m
	}
	t.last = m
	t.pending++
	return m
}

// Pass adds the next position of the log as one that is finished already: there is nothing at
// it, or between it and the one before.
func (t *Tracker[P]) Pass(pos P) { t.settle(t.last, pos) }

// settle says that everything after a mark is finished up to pos; nil is the start of the log.
func (t *Tracker[P]) settle(after *Mark[P], pos P) {
	if after == nil {
		t.prefix, t.reached = pos, true
	} else {
		after.upTo = pos
	}
}

// Finish finishes a position, once.
func (t *Tracker[P]) Finish(m *Mark[P]) {
	if m.finished {
		panic("checkpoint: a position was finished twice")
	}
	m.finished = true
	t.settle(m.prev, m.upTo)
	if m.prev == nil {
		t.first = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		t.last = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.prev, m.next = nil, nil
	t.pending--
}

// Prefix returns the last position up to which everything is finished. It is false until there
// is one.
func (t *Tracker[P]) Prefix() (P, bool) { return t.prefix, t.reached }

// Pending counts the unfinished positions.
func (t *Tracker[P]) Pending() int { return t.pending }
