package mongo

import (
	"bytes"
	"encoding/binary"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// place names a document of the change stream, and is the same however often it comes: the cluster
// time of its transaction, and its number in that.
type place struct {
	at     uint64
	number uint32
}

// key is the place as a value that is ordered as the stream is.
func (p place) key() string {
	var b [12]byte
	binary.BigEndian.PutUint64(b[:8], p.at)
	binary.BigEndian.PutUint32(b[8:], p.number)
	return string(b[:])
}

// position is a place and the resume token that leads behind it.
type position struct {
	place
	token bson.Raw
}

// positions remembers the tokens of places that are not delivered yet. There may be fewer of them
// than places: a token that is older than it need be only repeats more.
type positions struct {
	mu      sync.Mutex
	list    []position // ascending
	moved   bool       // the first one was not taken yet
	changed bool       // nor its token
}

// maxPositions bounds the list.
const maxPositions = 2048

// begin forgets all, and says where the stream begins: everything before it is delivered.
func (p *positions) begin(at position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list, p.moved, p.changed = append(p.list[:0], at), false, false
}

// add says that the token leads behind a place.
func (p *positions) add(at place, token bson.Raw) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) >= maxPositions {
		// Every other one, but the first and the last.
		kept := p.list[:1]
		for i := 2; i < len(p.list)-1; i += 2 {
			kept = append(kept, p.list[i])
		}
		kept = append(kept, p.list[len(p.list)-1])
		clear(p.list[len(kept):])
		p.list = kept
	}
	p.list = append(p.list, position{at, bytes.Clone(token)})
}

// idle says that there is nothing more up to where the token leads.
func (p *positions) idle(token bson.Raw) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := &p.list[len(p.list)-1]
	if bytes.Equal(last.token, token) {
		return
	}
	last.token = bytes.Clone(token)
	if len(p.list) == 1 {
		p.changed = true
	}
}

// take returns the last position up to the key, which is confirmed; ok is false where it was taken
// before. One that only has another token is taken where idle says so.
func (p *positions) take(confirmed string, idle bool) (at position, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n+1 < len(p.list) && p.list[n+1].key() <= confirmed {
		n++
	}
	if n > 0 {
		p.list = append(p.list[:0], p.list[n:]...)
		p.moved = true
	}
	ok = (p.moved || p.changed && idle) && p.list[0].token != nil
	if ok {
		p.moved, p.changed = false, false
	}
	return p.list[0], ok
}

// back says that the position that was taken last was of no use: it is given again.
func (p *positions) back() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved = true
}
