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
			reg.end(!full)
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
		reg.end(true)
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
			reg.end(false)
			reg.begin(nil)
		}
		reg.add(fmt.Sprint(i), true)
	}
	reg.begin(nil)
	reg.end(false)
	if n := reg.size(); n > maxStrays {
		t.Errorf("%d entries", n)
	}
}
