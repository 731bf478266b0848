package mongo

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestRegistryAgainstModel: over random reads and deletes, each number stands for one document,
// what is known is left out and nothing else, numbers of a key rise in the order in which they
// are read, a document without a key keeps its number until a read that saw everything does not
// list it, and nothing is left of what nobody knows.
func TestRegistryAgainstModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		reg := newRegistry()
		type document struct {
			key     string
			keyless bool
		}
		var outbox []document // in order
		known := make(map[string]int64)
		waits := make(map[string]int64) // without a key: not known, and its number counts
		next := 0
		highest := int64(0)
		for range 60 {
			for range r.IntN(5) {
				outbox = append(outbox, document{docKey(rawValue(t, fmt.Sprint(next))), r.IntN(3) == 0})
				next++
			}
			var list []int64
			for doc, id := range known {
				switch r.IntN(12) {
				case 0: // dropped from memory
					delete(known, doc)
					for _, d := range outbox {
						if d.key == doc && d.keyless {
							waits[doc] = id
						}
					}
				default:
					list = append(list, id)
				}
			}
			limit := 1 + r.IntN(20)
			reg.begin(list)
			// Some of what is known is deleted while the read is on its way.
			gone := make(map[string]bool)
			for doc, id := range known {
				if r.IntN(4) == 0 {
					if docs := reg.docs([]int64{id}); len(docs) != 1 || docKey(docs[0].(bson.RawValue)) != doc {
						t.Fatalf("seed %d: number %d is %v", seed, id, docs)
					}
					reg.deleted([]int64{id})
					gone[doc] = true
				}
			}
			full := false
			page := 0
			for _, d := range outbox {
				_, isKnown := known[d.key]
				if reg.knows([]byte(d.key)) != isKnown {
					t.Fatalf("seed %d: document %q is known: %v", seed, d.key, !isKnown)
				}
				if isKnown {
					continue
				}
				if page++; page > limit {
					full = true
					break
				}
				id := reg.add(d.key, d.keyless)
				if before, ok := waits[d.key]; ok {
					if id != before {
						t.Fatalf("seed %d: %q was %d and is %d", seed, d.key, before, id)
					}
				} else if id <= highest {
					t.Fatalf("seed %d: %q has number %d after %d", seed, d.key, id, highest)
				}
				highest = max(highest, id)
				delete(waits, d.key)
				if r.IntN(10) > 0 {
					known[d.key] = id
				} else if d.keyless {
					waits[d.key] = id // passed over
				}
			}
			reg.end(!full, 0)
			reg.finish()
			kept := outbox[:0]
			for _, d := range outbox {
				if !gone[d.key] {
					kept = append(kept, d)
				}
			}
			outbox = kept
			for doc := range gone {
				delete(known, doc)
			}
		}
		reg.begin(nil)
		reg.end(true, 0)
		reg.finish()
		if n := reg.size(); n != 0 {
			t.Fatalf("seed %d: %d entries are left", seed, n)
		}
	}
}

// TestRegistryIsBounded: what may lie beyond pages that are always full is forgotten at some
// point.
func TestRegistryIsBounded(t *testing.T) {
	reg := newRegistry()
	for i := range 3 * maxStrays {
		if i%(maxStrays/4) == 0 {
			reg.end(false, 0)
			reg.begin(nil)
		}
		reg.add(fmt.Sprint(i), true)
	}
	reg.begin(nil)
	reg.end(false, 0)
	if n := reg.size(); n > maxStrays {
		t.Errorf("%d entries", n)
	}
}

// TestRegistryTold: what a change stream told of keeps its number until a read that shows it does
// not list it.
func TestRegistryTold(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		reg := newRegistry()
		type document struct {
			born uint64
			id   int64
			held bool // the forwarder knows it
		}
		docs := make(map[string]*document) // told, and not deleted
		now, next := uint64(1), 0
		tell := func() {
			for range r.IntN(4) {
				now++
				key := docKey(rawValue(t, fmt.Sprint(next)))
				next++
				d := &document{born: now, id: reg.told([]byte(key), r.IntN(3) == 0, now)}
				if again := reg.told([]byte(key), false, now); again != d.id {
					t.Fatalf("seed %d: a document has the numbers %d and %d", seed, d.id, again)
				}
				docs[key] = d
			}
		}
		for range 60 {
			tell()
			var list []int64
			for key, d := range docs {
				switch {
				case r.IntN(8) == 0:
					reg.deleted([]int64{d.id})
					delete(docs, key)
				case r.IntN(3) == 0:
					d.held = true
				}
				if d.held && docs[key] != nil {
					list = append(list, d.id)
				}
			}
			shown := now - min(now, r.Uint64N(6))
			reg.begin(list)
			tell()
			for key, d := range docs {
				if d.born <= shown && !d.held {
					delete(docs, key) // the read would bring it with a number of its own
				}
			}
			reg.end(r.IntN(2) == 0, shown)
			reg.finish()
			for key, d := range docs {
				if list := reg.docs([]int64{d.id}); len(list) != 1 || docKey(list[0].(bson.RawValue)) != key {
					t.Fatalf("seed %d: the number %d of %q, told at %d and shown by %d, is %v", seed, d.id, key, d.born, shown, list)
				}
			}
		}
		reg.begin(nil)
		reg.end(true, now)
		reg.finish()
		if n := reg.size(); n != 0 {
			t.Fatalf("seed %d: %d entries are left", seed, n)
		}
	}
}

// TestRegistryFresh: a document that is inserted again has a number of its own, which lasts when
// the one before it ends.
func TestRegistryFresh(t *testing.T) {
	reg := newRegistry()
	doc := []byte(docKey(rawValue(t, "a")))
	old := reg.fresh(doc)
	again := reg.fresh(doc)
	reg.deleted([]int64{old})
	if old == again || len(reg.docs([]int64{old})) != 0 || len(reg.docs([]int64{again})) != 1 {
		t.Errorf("numbers %d and %d", old, again)
	}
	if got := reg.told(doc, false, 0); got != again || reg.numbers()[string(doc)] != again {
		t.Errorf("the number is %d, not %d", got, again)
	}
	reg.deleted([]int64{again})
	if reg.size() != 0 || len(reg.byDoc) != 0 {
		t.Error("something is left")
	}
}
