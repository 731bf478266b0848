package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

func TestVerdict(t *testing.T) {
	good := oracle.Verdict{
		Final: true, Written: 12_034, Received: 12_034, Delivered: 12_034,
		Latency: oracle.Latency{Count: 12_034, P50: 1400 * time.Microsecond, P99: 4 * time.Millisecond, Max: 21 * time.Millisecond},
	}
	change := func(f func(*oracle.Verdict)) oracle.Verdict {
		v := good
		f(&v)
		return v
	}
	for _, c := range []struct {
		name   string
		result result
		clean  bool
		want   []string
	}{
		{"clean", result{good, 0}, true, []string{
			"ok written             12,034", "ok forwarded           12,034", "ok lost                     0",
			"ok out of order             0", "ok repeats                  0", "ok outbox               empty",
			"ok latency             1.4 ms", "99 % within 4.0 ms, all within 21 ms", "Clean:",
		}},
		{"repeats are allowed", result{change(func(v *oracle.Verdict) { v.Received, v.Repeated = 12_036, 2 }), 0}, true, []string{
			"ok repeats                  2  allowed after an outage", "Clean:",
		}},
		{"lost", result{change(func(v *oracle.Verdict) {
			v.Delivered, v.Lost, v.Faults = 12_033, 1, []string{"orders key a: event 7 is lost"}
		}), 0}, false, []string{"-- forwarded           12,033", "-- lost                     1", "     orders key a: event 7 is lost\n", "Not clean."}},
		{"late, not lost", result{change(func(v *oracle.Verdict) { v.Delivered, v.Lost = 12_000, 34 }), 34}, false, []string{
			"-- undelivered             34", "-- outbox                  34  rows are still there", "Not clean.",
		}},
		{"delivered and not deleted", result{good, 5}, false, []string{"-- outbox                   5", "Not clean."}},
		{"out of order", result{change(func(v *oracle.Verdict) { v.OutOfOrder = 1 }), 0}, false, []string{"-- out of order             1", "Not clean."}},
		{"repeat that is no suffix", result{change(func(v *oracle.Verdict) { v.Repeated, v.BrokenRepeats = 3, 1 }), 0}, false, []string{"-- other faults             1", "Not clean."}},
		{"repeat of something forgotten", result{change(func(v *oracle.Verdict) { v.Doubtful = 1 }), 0}, false, []string{"-- other faults             1", "Not clean."}},
		{"never committed", result{change(func(v *oracle.Verdict) { v.Unwritten = 1 }), 0}, false, []string{"-- other faults             1", "Not clean."}},
		{"not read to the end", result{change(func(v *oracle.Verdict) { v.Final = false }), 0}, false, []string{"Not clean."}},
	} {
		if got := c.result.clean(); got != c.clean {
			t.Errorf("%s: clean is %v", c.name, got)
		}
		text := c.result.text(asciiMarks)
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is missing in\n%s", c.name, want, text)
			}
		}
		if !c.clean && strings.Contains(text, "Clean:") {
			t.Errorf("%s: called clean", c.name)
		}
	}
}
