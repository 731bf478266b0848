package tail

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outbox-forwarder/forwarder/source"
)

// TestQueueModel compares the queue with plain lists.
func TestQueueModel(t *testing.T) {
	forSeeds(t, func(seed uint64) {
		r := rand.New(rand.NewPCG(seed, 3))
		q := newQueue[int]()
		var waiting []int64 // in order
		out := make(map[int64]bool)
		events := make(map[int64]*source.Event)
		for id := int64(1); id < 80; {
			switch r.IntN(5) {
			case 0, 1:
				events[id] = &source.Event{ID: id, Lane: source.Lane(r.IntN(3)), Topic: pick(r, "a", "b"), Key: pick(r, nil, []byte("k"), []byte("l"))}
				q.add(events[id], 0)
				waiting = append(waiting, id)
				id++
			case 2:
				read := randomRead(r)
				var want []int64
				for _, id := range waiting {
					if len(want) < read.Limit && !leftOut(read, events[id]) {
						want = append(want, id)
					}
				}
				page := q.take(read)
				if len(page.Events) != len(want) || page.Full != (len(want) == read.Limit) {
					failf("%d events answer %+v, full %v, and should be %v", len(page.Events), read, page.Full, want)
				}
				for i, ev := range page.Events {
					if ev.ID != want[i] {
						failf("event %d of the answer is %d and should be %d", i, ev.ID, want[i])
					}
					out[ev.ID] = true
				}
				waiting = slices.DeleteFunc(waiting, func(id int64) bool { return out[id] })
			case 3:
				known := make(map[int64]bool)
				for id := range out {
					if known[id] = chance(r, 0.7); !known[id] {
						delete(known, id)
						waiting = append(waiting, id)
						delete(out, id)
					}
				}
				slices.Sort(waiting)
				q.takeBack(known)
			case 4:
				for id := range q.rows.All() {
					q.remove(q.rows.Get(id))
					delete(out, id)
					waiting = slices.DeleteFunc(waiting, func(other int64) bool { return other == id })
					break
				}
			}
			if q.waiting.n != len(waiting) || q.out.n != len(out) || q.rows.Len() != len(waiting)+len(out) {
				failf("%d wait and %d are out, and should be %d and %d", q.waiting.n, q.out.n, len(waiting), len(out))
			}
		}
	})
}

func randomRead(r *rand.Rand) *source.Read {
	read := &source.Read{Limit: 1 + r.IntN(10), Bytes: 1 << 30}
	if chance(r, 0.5) {
		read.Lanes = pick(r, []source.Lane{0, 2}, []source.Lane{1})
	}
	if chance(r, 0.3) {
		read.Topics = []string{"a"}
	}
	if chance(r, 0.3) {
		read.Keys = pick(r, []source.TopicKey{{Topic: "b", Key: "k"}}, []source.TopicKey{{Topic: "b", Key: "l"}})
	}
	return read
}
