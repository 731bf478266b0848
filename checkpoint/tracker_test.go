package checkpoint_test

import (
	"math/rand/v2"
	"testing"

	"github.com/outbox-forwarder/forwarder/checkpoint"
)

// TestTrackerModel compares the tracker with a list of all positions.
func TestTrackerModel(t *testing.T) {
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var tracker checkpoint.Tracker[int]
		var finished []bool // by position
		marks := make(map[int]*checkpoint.Mark[int])
		passed := r.Float64()
		for range 1 + r.IntN(200) {
			switch pos := len(finished); {
			case r.IntN(2) == 0 && r.Float64() < passed:
				tracker.Pass(pos)
				finished = append(finished, true)
			case r.IntN(2) == 0:
				marks[pos] = tracker.Add(pos)
				finished = append(finished, false)
			default:
				if done := pick(r, marks); done >= 0 {
					tracker.Finish(marks[done])
					delete(marks, done)
					finished[done] = true
				}
			}
			want := -1
			for want+1 < len(finished) && finished[want+1] {
				want++
			}
			got, ok := tracker.Prefix()
			if ok != (want >= 0) || ok && got != want {
				t.Fatalf("seed %d: the prefix is %d, %v and should be %d of %v", seed, got, ok, want, finished)
			}
			if tracker.Pending() != len(marks) {
				t.Fatalf("seed %d: %d positions are pending and should be %d", seed, tracker.Pending(), len(marks))
			}
		}
	}
}

// pick returns a random key, in an order that does not depend on the map's; -1 for none.
func pick(r *rand.Rand, marks map[int]*checkpoint.Mark[int]) int {
	best, rank := -1, uint64(0)
	salt := r.Uint64()
	for pos := range marks {
		if x := (uint64(pos) ^ salt) * 0x9e3779b97f4a7c15; best < 0 || x > rank {
			best, rank = pos, x
		}
	}
	return best
}

func TestTrackerPanicsOnASecondFinish(t *testing.T) {
	var tracker checkpoint.Tracker[string]
	m := tracker.Add("a")
	tracker.Finish(m)
	defer func() {
		if recover() == nil {
			t.Error("a position was finished twice without a word")
		}
	}()
	tracker.Finish(m)
}

// TestTrackerMemory: a position that stays pending does not hold those that are finished
// behind it.
func TestTrackerMemory(t *testing.T) {
	var tracker checkpoint.Tracker[int]
	first := tracker.Add(0)
	mean := testing.AllocsPerRun(1000, func() { tracker.Pass(1) })
	if mean != 0 {
		t.Errorf("a position that is finished at once allocates %v times", mean)
	}
	for pos := range 100_000 {
		tracker.Finish(tracker.Add(pos + 2))
	}
	if tracker.Pending() != 1 {
		t.Errorf("%d positions are pending", tracker.Pending())
	}
	tracker.Finish(first)
	if got, _ := tracker.Prefix(); got != 100_001 {
		t.Errorf("the prefix is %d", got)
	}
}
