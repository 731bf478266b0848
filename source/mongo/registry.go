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
// retry by its number alone. A document that a change stream told of may wait in memory without
// being known to the engine: its entry stays until a read that shows it does not list it.
type registry struct {
	mu      sync.Mutex
	byID    map[int64]*handle
	byDoc   map[string]*handle // by docKey
	gone    []int64            // deleted since the read began that is on its way
	next    int64
	read    uint64 // numbers the reads
	reading bool   // a read is on its way
}

type handle struct {
	id      int64
	doc     string // docKey
	keyless bool
	listed  uint64 // the last read that listed it as known, or returned it
	born    uint64 // the cluster time of its insert, if a change stream told of it; else 0
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

// begin starts a read. What was deleted before it is forgotten, for its snapshot does not show
// it any more; what is deleted while it is on its way stays known to it.
func (r *registry) begin(known []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read++
	r.reading = true
	for _, id := range known {
		if h := r.byID[id]; h != nil {
			h.listed = r.read
		}
	}
}

// finish ends a read.
func (r *registry) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reading = false
	for _, id := range r.gone {
		r.forget(id)
	}
	r.gone = r.gone[:0]
}

// knows reports whether the read that is on its way must leave the document out.
func (r *registry) knows(doc []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
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
		h = r.create(doc, keyless)
	}
	h.listed = r.read
	return h.id
}

func (r *registry) create(doc string, keyless bool) *handle {
	r.next++
	h := &handle{id: r.next, doc: doc, keyless: keyless}
	r.byID[h.id], r.byDoc[doc] = h, h
	return h
}

// told returns the number of a document that a change stream tells of: the one that it has, if
// a page brought it.
func (r *registry) told(doc []byte, keyless bool, born uint64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.byDoc[string(doc)]
	if h == nil {
		h = r.create(string(doc), keyless)
	}
	h.born = born
	return h.id
}

// fresh gives a document another number than it may have: it was inserted again.
func (r *registry) fresh(doc []byte) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.create(string(doc), false).id
}

// numbers returns the numbers of documents, by docKey.
func (r *registry) numbers() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]int64, len(r.byDoc))
	for doc, h := range r.byDoc {
		all[doc] = h.id
	}
	return all
}

// clear forgets everything: nobody has a number.
func (r *registry) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.byID)
	clear(r.byDoc)
}

// maxStrays bounds the entries that are kept for what may lie beyond a page.
const maxStrays = 1 << 15

// end forgets what the read did not meet. covered says that it met everything there is, up to
// the cluster time shown.
func (r *registry) end(covered bool, shown uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	strays := 0
	for id, h := range r.byID {
		if h.listed == r.read || h.born > shown {
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
		if r.byDoc[h.doc] == h {
			delete(r.byDoc, h.doc)
		}
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
	if r.reading {
		r.gone = append(r.gone, ids...)
		return
	}
	for _, id := range ids {
		r.forget(id)
	}
}

func (r *registry) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}
