package mongo

import (
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// registry gives a number to each document that is in memory. The numbers rise, so that
// documents of one page have them in its order.
//
// An entry ends with the delete of its document, or when a read does not list it as known and
// the page does not hold it: nobody remembers its number then. Documents without a key keep
// theirs while they may lie beyond the page, since the engine knows one that waits for its
// retry by its number alone.
type registry struct {
	mu    sync.Mutex
	byID  map[int64]*handle
	byDoc map[string]*handle // by docKey
	gone  []int64            // deleted since the last read began
	next  int64
	read  uint64 // numbers the reads
}

type handle struct {
	id      int64
	doc     string // docKey
	keyless bool
	listed  uint64 // the last read that listed it as known, or returned it
}

// docKey is a document's _id as the key of a map: its type and its bytes.
func docKey(id bson.RawValue) string {
	b := make([]byte, 0, 32)
	return string(append(append(b, byte(id.Type)), id.Value...))
}

func docID(key string) bson.RawValue {
	return bson.RawValue{Type: bson.Type(key[0]), Value: []byte(key[1:])}
}

func newRegistry() *registry {
	return &registry{byID: make(map[int64]*handle), byDoc: make(map[string]*handle)}
}

// begin starts a read: what was deleted before it is forgotten, for its snapshot does not
// show it any more; what is deleted while it is on its way stays known to it.
func (r *registry) begin(known []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read++
	for _, id := range r.gone {
		r.forget(id)
	}
	r.gone = r.gone[:0]
	for _, id := range known {
		if h := r.byID[id]; h != nil {
			h.listed = r.read
		}
	}
}

// knows reports whether the read that is on its way must leave the document out.
func (r *registry) knows(doc []byte) bool {
	h := r.byDoc[string(doc)]
	return h != nil && h.listed == r.read
}

// add returns the number of a document in the page. One with a key has a new number each time
// that it is read anew, so that numbers rise in the order of its key.
func (r *registry) add(doc string, keyless bool) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.byDoc[doc]
	if h != nil && !(keyless && h.keyless) {
		r.forget(h.id)
		h = nil
	}
	if h == nil {
		r.next++
		h = &handle{id: r.next, doc: doc, keyless: keyless}
		r.byID[h.id], r.byDoc[doc] = h, h
	}
	h.listed = r.read
	return h.id
}

// maxStrays bounds the entries that are kept for what may lie beyond a page.
const maxStrays = 1 << 15

// end forgets what the read did not meet. covered says that it met everything there is.
func (r *registry) end(covered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	strays := 0
	for id, h := range r.byID {
		if h.listed == r.read {
			continue
		}
		if h.keyless && !covered && strays < maxStrays {
			strays++
			continue
		}
		r.forget(id)
	}
}

func (r *registry) forget(id int64) {
	if h := r.byID[id]; h != nil {
		delete(r.byID, id)
		delete(r.byDoc, h.doc)
	}
}

// docs returns the _ids of the numbers, as far as they are known.
func (r *registry) docs(ids []int64) bson.A {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make(bson.A, 0, len(ids))
	for _, id := range ids {
		if h := r.byID[id]; h != nil {
			list = append(list, docID(h.doc))
		}
	}
	return list
}

// deleted says that documents are gone.
func (r *registry) deleted(ids []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = append(r.gone, ids...)
}

func (r *registry) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}
