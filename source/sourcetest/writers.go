package sourcetest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// writers write until they are stopped. The writers of a key take turns, so its events are
// numbered in the order in which they are committed.
type writers struct {
	t       testing.TB
	outbox  Outbox
	keys    []*counter
	stopped atomic.Bool
	wg      sync.WaitGroup
	total   atomic.Int64 // committed events
}

type counter struct {
	sync.Mutex
	name string
	n    int
}

// rolledBack marks the payload of an event that must never be seen.
const rolledBack = "rolled back"

func (o Outbox) write(t testing.TB, n, keys int) *writers {
	ws := &writers{t: t, outbox: o}
	for k := range keys {
		ws.keys = append(ws.keys, &counter{name: fmt.Sprintf("key %d", k)})
	}
	for i := range n {
		r := rand.New(rand.NewPCG(uint64(i), uint64(keys)))
		ws.wg.Go(func() {
			for !ws.stopped.Load() {
				ws.transaction(r)
			}
		})
	}
	t.Cleanup(func() { ws.stop() })
	return ws
}

// transaction writes one to four events of a key and of others, which it holds one after the
// other in their order, so that nobody waits in a circle.
func (ws *writers) transaction(r *rand.Rand) {
	tx := ws.outbox.Begin(ws.t)
	first := r.IntN(len(ws.keys))
	back := r.IntN(20) == 0
	var held []*counter
	written := 0
	for k := first; k < min(first+1+r.IntN(3), len(ws.keys)); k++ {
		c := ws.keys[k]
		c.Lock()
		held = append(held, c)
		for range 1 + r.IntN(2) {
			payload := rolledBack
			if !back {
				c.n++
				payload = strconv.Itoa(c.n)
			}
			tx.Insert(keyed(c.name, payload))
			written++
		}
	}
	if r.IntN(10) == 0 { // late commits
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
	}
	if back {
		tx.Rollback()
	} else {
		tx.Commit()
		ws.total.Add(int64(written))
	}
	for _, c := range held {
		c.Unlock()
	}
}

// stop returns when the last transaction has ended.
func (ws *writers) stop() {
	ws.stopped.Store(true)
	ws.wg.Wait()
}

// check judges everything that was acknowledged: nothing lost, each key's events first seen in
// their order. It returns how many were repeated.
func (ws *writers) check(events []*source.Event) (repeats int) {
	ws.t.Helper()
	newest := map[string]int{}
	for i, ev := range events {
		key, payload := string(ev.Key), string(ev.Payload)
		if payload == rolledBack {
			ws.t.Errorf("event %d, %s of %q, was never committed", i, ev.Name(), key)
			continue
		}
		if !strings.HasPrefix(key, "key ") {
			continue // another part of the test
		}
		n, err := strconv.Atoi(payload)
		if err != nil {
			ws.t.Errorf("event %d of %q has the payload %q", i, key, payload)
			continue
		}
		switch {
		case n == newest[key]+1:
			newest[key] = n
		case n <= newest[key]:
			repeats++
		default:
			ws.t.Errorf("event %d: %q is at %d, then at %d", i, key, newest[key], n)
			newest[key] = n
		}
	}
	for _, c := range ws.keys {
		if newest[c.name] != c.n {
			ws.t.Errorf("%q: %d events arrived, %d were committed", c.name, newest[c.name], c.n)
		}
	}
	return repeats
}
