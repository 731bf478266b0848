package lanes

import (
	"math/bits"

	"github.com/outbox-forwarder/forwarder/source"
)

// laneSet is a set of lanes, in bits: of hundreds few have something to do at a time.
type laneSet []uint64

func newLaneSet(lanes int) laneSet { return make(laneSet, (lanes+63)/64) }

func (s laneSet) add(id source.Lane) { s[id/64] |= 1 << (id % 64) }

func (s laneSet) remove(id source.Lane) { s[id/64] &^= 1 << (id % 64) }

// all yields the lanes in ascending order. Those that are added meanwhile may be left out, and
// those that are removed may still come.
func (s laneSet) all(yield func(source.Lane) bool) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			if !yield(source.Lane(i*64 + bits.TrailingZeros64(word))) {
				return
			}
		}
	}
}
