package idmap

import (
	"maps"
	"math"
	"math/rand/v2"
	"testing"
)

// TestMap holds it against a map of ids, for ids that are dense, spread and at the ends.
func TestMap(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		pick := func() int64 {
			switch r.IntN(4) {
			case 0:
				return r.Int64N(8) + math.MaxInt64 - 7
			case 1:
				return r.Int64N(8) + math.MinInt64
			case 2:
				return r.Int64N(1<<40) << 20
			default:
				return r.Int64N(100) - 50
			}
		}
		var m Map[int]
		want := make(map[int64]*int)
		for range 2000 {
			id := pick()
			switch r.IntN(10) {
			case 0, 1, 2, 3:
				v := new(int)
				m.Put(id, v)
				want[id] = v
			case 4, 5, 6:
				m.Delete(id)
				delete(want, id)
			case 7:
				if r.IntN(20) == 0 {
					for id := range m.All() {
						if r.IntN(2) == 0 {
							m.Delete(id)
							delete(want, id)
						}
					}
				}
			default:
				if got := m.Get(id); got != want[id] {
					t.Fatalf("seed %d: the value of %d is %p, not %p", seed, id, got, want[id])
				}
			}
			if m.Len() != len(want) {
				t.Fatalf("seed %d: it has %d ids, not %d", seed, m.Len(), len(want))
			}
		}
		if got := maps.Collect(m.All()); !maps.Equal(got, want) {
			t.Fatalf("seed %d: it yields %v, not %v", seed, got, want)
		}
	}
}

func BenchmarkMap(b *testing.B) {
	values := make([]int, 1<<15)
	b.Run("blocks", func(b *testing.B) {
		var m Map[int]
		for n := range int64(b.N) {
			m.Put(n, &values[n%int64(len(values))])
			m.Get(n / 2 * 2)
			m.Delete(n - int64(len(values)))
		}
	})
	b.Run("ids", func(b *testing.B) {
		m := make(map[int64]*int, len(values))
		for n := range int64(b.N) {
			m[n] = &values[n%int64(len(values))]
			_ = m[n/2*2]
			delete(m, n-int64(len(values)))
		}
	})
}
