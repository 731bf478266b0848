package mongo

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestPositions: over random places, idle times and confirmations, a position that is taken is
// never beyond what is confirmed, never before the one taken last, and not far from it. One with
// nothing but a younger token is taken where that is asked for, and then not missed.
func TestPositions(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 5))
		var p positions
		token := func(at place, idle int) bson.Raw { return bson.Raw(fmt.Sprintf("%d/%d/%d", at.at, at.number, idle)) }
		var told []place
		now := place{at: 1}
		p.begin(position{place: now})
		told = append(told, now)
		confirmed, taken, idle := 0, 0, 0
		tokenTaken, back := "", false
		for range 200 {
			for range r.IntN(2) * r.IntN(1<<r.IntN(9)) {
				if r.IntN(2) == 0 {
					now.number++
				} else {
					now = place{now.at + 1 + r.Uint64N(3), 1}
				}
				p.add(now, token(now, 0))
				told = append(told, now)
			}
			if r.IntN(4) == 0 {
				idle++
				p.idle(token(now, idle))
			}
			if r.IntN(3) == 0 {
				confirmed += r.IntN(len(told) - confirmed)
			}
			quiet := r.IntN(3) == 0
			got, ok := p.take(told[confirmed].key(), quiet)
			if !ok {
				if first := string(p.list[0].token); quiet && first != tokenTaken {
					t.Fatalf("seed %d: the token %q was not taken after %q", seed, first, tokenTaken)
				}
				continue
			}
			if got.place == told[taken] && !quiet && !back {
				t.Fatalf("seed %d: took %+v again with the token %q", seed, got.place, string(got.token))
			}
			tokenTaken = string(got.token)
			if back = r.IntN(5) == 0; back {
				p.back()
			}
			var at place
			var n int
			if _, err := fmt.Sscanf(string(got.token), "%d/%d/%d", &at.at, &at.number, &n); err != nil || at != got.place {
				t.Fatalf("seed %d: the token %q leads behind %+v", seed, got.token, got.place)
			}
			i := taken
			for told[i] != at {
				if i++; i > confirmed {
					t.Fatalf("seed %d: took %+v, and %+v is confirmed and %+v was taken", seed, at, told[confirmed], told[taken])
				}
			}
			taken = i
			if i == len(told)-1 && n != idle && n != 0 {
				t.Errorf("seed %d: the idle token %d was taken, and %d is the last", seed, n, idle)
			}
		}
		if len(p.list) > maxPositions {
			t.Fatalf("seed %d: %d positions", seed, len(p.list))
		}
		if got, _ := p.take(now.key(), false); got.place != now {
			t.Fatalf("seed %d: the end is %+v, not %+v", seed, got.place, now)
		}
	}
}

// TestPlaceOrder: keys are ordered as places are.
func TestPlaceOrder(t *testing.T) {
	places := []place{{}, {0, 1}, {1, 0}, {1, 1}, {1, 255}, {1, 256}, {255, 9}, {256, 1}, {1 << 32, 1}, {1<<63 + 1, 0}, {1<<63 + 1, 1 << 31}}
	for i := range places[1:] {
		if places[i].key() >= places[i+1].key() {
			t.Errorf("%+v is not before %+v", places[i], places[i+1])
		}
	}
	if (place{}).key() <= "" {
		t.Error("no key is not before the first")
	}
}
