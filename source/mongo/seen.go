package mongo

import (
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// seen is of when the latest acknowledged delete was, which may be an empty one, and the latest
// snapshot. No later read may show less.
type seen struct {
	mu              sync.Mutex
	deleted, showed bson.Timestamp
}

func (s *seen) delete(at bson.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = later(s.deleted, at)
}

func (s *seen) show(snapshot bson.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.showed = later(s.showed, snapshot)
}

// beyond reports whether a snapshot is older than what was seen. One of a collection that does not
// exist has no time.
func (s *seen) beyond(snapshot bson.Timestamp) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !snapshot.IsZero() && later(s.deleted, s.showed).After(snapshot)
}

func later(a, b bson.Timestamp) bson.Timestamp {
	if b.After(a) {
		return b
	}
	return a
}

// clusterTime is a cluster time as a number that rises with it.
func clusterTime(t bson.Timestamp) uint64 { return uint64(t.T)<<32 | uint64(t.I) }
