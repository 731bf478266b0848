package tail

import (
	"flag"
	"fmt"
	"runtime/debug"
	"testing"
)

var (
	seedsFlag = flag.Int("seeds", 5000, "how many seeds the models run")
	seedFlag  = flag.Int64("seed", -1, "run the models with this seed only")
)

// failure is a broken promise; the models panic with it.
type failure struct{ text string }

func failf(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

// forSeeds runs the seeds that the flags ask for, up to one that fails.
func forSeeds(t *testing.T, run func(seed uint64)) {
	t.Helper()
	first, last := uint64(0), uint64(*seedsFlag)
	if *seedFlag >= 0 {
		first, last = uint64(*seedFlag), uint64(*seedFlag)+1
	}
	for seed := first; seed < last && !t.Failed(); seed++ {
		func() {
			defer func() {
				p := recover()
				if p == nil {
					return
				}
				text := fmt.Sprintf("panic: %v\n%s", p, debug.Stack())
				if f, ok := p.(failure); ok {
					text = f.text
				}
				t.Errorf("seed %d: %s\nreplay: go test ./tail -run '^%s$' -seed %d", seed, text, t.Name(), seed)
			}()
			run(seed)
		}()
	}
}
