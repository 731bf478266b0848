// Package idmap maps the ids of rows to what is known about them.
package idmap

import "iter"

// Map maps row ids to values, in blocks of neighbours: the ids of an outbox come in order and are
// deleted in order, so that most calls find their block where the last one did, and a map of
// blocks stays in the processor's cache where one of ids does not. Its zero value is empty. It is
// not safe for concurrent use.
type Map[T any] struct {
	blocks map[int64]*block[T] // by id / blockIDs, rounded down
	n      int
	last   *block[T] // the one used last, nil for none
	spare  []*block[T]
}

// blockIDs is a compromise: ids that are random have a block each.
const (
	blockBits = 4
	blockIDs  = 1 << blockBits
)

type block[T any] struct {
	values [blockIDs]*T
	at     int64
	n      int
}

// maxSpare bounds the blocks that are kept to be used again.
const maxSpare = 256

// find returns the block of an id, nil for none.
func (m *Map[T]) find(id int64) *block[T] {
	at := id >> blockBits
	if m.last != nil && m.last.at == at {
		return m.last
	}
	b := m.blocks[at]
	if b != nil {
		m.last = b
	}
	return b
}

// Get returns the value of an id, nil for none.
func (m *Map[T]) Get(id int64) *T {
	if b := m.find(id); b != nil {
		return b.values[id&(blockIDs-1)]
	}
	return nil
}

// Put sets the value of an id, which is not nil.
func (m *Map[T]) Put(id int64, value *T) {
	b := m.find(id)
	if b == nil {
		b = m.add(id >> blockBits)
	}
	v := &b.values[id&(blockIDs-1)]
	if *v == nil {
		b.n++
		m.n++
	}
	*v = value
}

func (m *Map[T]) add(at int64) *block[T] {
	b := new(block[T])
	if last := len(m.spare) - 1; last >= 0 {
		b, m.spare = m.spare[last], m.spare[:last]
	}
	b.at = at
	if m.blocks == nil {
		m.blocks = make(map[int64]*block[T])
	}
	m.blocks[at] = b
	m.last = b
	return b
}

// Delete takes an id out, if it is there.
func (m *Map[T]) Delete(id int64) {
	b := m.find(id)
	if b == nil {
		return
	}
	v := &b.values[id&(blockIDs-1)]
	if *v == nil {
		return
	}
	*v = nil
	b.n--
	m.n--
	if b.n > 0 {
		return
	}
	delete(m.blocks, b.at)
	m.last = nil
	if len(m.spare) < maxSpare {
		m.spare = append(m.spare, b)
	}
}

// Len is the number of ids.
func (m *Map[T]) Len() int { return m.n }

// All yields every id with its value, in no order. Ids may be deleted meanwhile; none may be put.
func (m *Map[T]) All() iter.Seq2[int64, *T] {
	return func(yield func(int64, *T) bool) {
		for at, b := range m.blocks {
			for i := range b.values {
				if v := b.values[i]; v != nil && !yield(at<<blockBits+int64(i), v) {
					return
				}
			}
		}
	}
}
