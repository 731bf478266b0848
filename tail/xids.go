package tail

import "github.com/outbox-forwarder/forwarder/source"

// xids is a set of transactions, in bits, since those of a busy server are many and near to
// each other. A set that said more than it was told would wait for transactions that never
// brought a row.
type xids struct {
	blocks map[uint64]*xidBlock // by xid / blockXids
}

const blockXids = 1024

type xidBlock [blockXids / 64]uint64

func (s *xids) add(xid uint64) {
	b := s.blocks[xid/blockXids]
	if b == nil {
		if s.blocks == nil {
			s.blocks = make(map[uint64]*xidBlock)
		}
		b = new(xidBlock)
		s.blocks[xid/blockXids] = b
	}
	b[xid%blockXids/64] |= 1 << (xid % 64)
}

func (s *xids) empty() bool { return len(s.blocks) == 0 }

func (s *xids) reset() { clear(s.blocks) }

// take moves all of other here.
func (s *xids) take(other *xids) {
	for n, from := range other.blocks {
		to := s.blocks[n]
		if to == nil {
			if s.blocks == nil {
				s.blocks = make(map[uint64]*xidBlock)
			}
			s.blocks[n] = from
			continue
		}
		for i, word := range from {
			to[i] |= word
		}
	}
	clear(other.blocks)
}

// prune removes the transactions that the snapshot shows.
func (s *xids) prune(snap *source.Snapshot) {
	for n, b := range s.blocks {
		left := uint64(0)
		if first := n * blockXids; first+blockXids > snap.Xmin {
			for i, word := range b {
				for bit := range uint64(64) {
					if word&(1<<bit) != 0 && snap.Shows(first+uint64(i)*64+bit) {
						b[i] &^= 1 << bit
					}
				}
				left |= b[i]
			}
		}
		if left == 0 {
			delete(s.blocks, n)
		}
	}
}
