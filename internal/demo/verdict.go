package demo

import (
	"errors"
	"fmt"
	"strings"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// ErrBroken says that the demo's verdict is not clean.
var ErrBroken = errors.New("the forwarder did not keep its promises")

// result is how a demo ended.
type result struct {
	verdict oracle.Verdict
	// left is the number of rows in the outbox.
	left int64
}

// clean says that every promise was kept and nothing is left to do.
func (r result) clean() bool {
	return r.verdict.Final && r.verdict.Err() == nil && r.left == 0
}

// text is the verdict on the screen, without an end of line.
func (r result) text(m marks) string {
	v := r.verdict
	var b strings.Builder
	row := func(ok bool, name, value, note string) {
		mark := m.done
		if !ok {
			mark = m.failed
		}
		fmt.Fprintf(&b, "  %-2s %-13s %12s", mark, name, value)
		if note != "" {
			b.WriteString("  " + note)
		}
		b.WriteByte('\n')
	}
	zero := func(n int64, name, note string) {
		if n == 0 {
			note = ""
		}
		row(n == 0, name, thousands(n), note)
	}
	row(true, "written", thousands(v.Written), "by the ledger, a table changed in the same transactions")
	row(v.Delivered == v.Written, "forwarded", thousands(v.Delivered), "by a consumer of the topic")
	if r.left > 0 {
		// A row that is still in the table is not lost, it is late.
		row(false, "undelivered", thousands(v.Lost), "")
		row(false, "outbox", thousands(r.left), "rows are still there: they would be sent by the next start")
	} else {
		zero(v.Lost, "lost", "")
	}
	zero(v.OutOfOrder, "out of order", "")
	row(true, "repeats", thousands(v.Repeated), repeatsNote(v.Repeated))
	if other := faults(v) - v.OutOfOrder + v.Doubtful; other > 0 {
		row(false, "other faults", thousands(other), "")
	}
	if r.left == 0 {
		row(true, "outbox", "empty", "")
	}
	if v.Latency.Count > 0 {
		row(true, "latency", latency(v.Latency.P50), fmt.Sprintf("median from commit to consumed; 99 %% within %s, all within %s",
			latency(v.Latency.P99), latency(v.Latency.Max)))
	}
	for _, fault := range v.Faults {
		b.WriteString("     " + fault + "\n")
	}
	b.WriteByte('\n')
	if r.clean() {
		b.WriteString("  Clean: every committed event arrived, in order for its key, and its row is gone.")
	} else {
		b.WriteString("  Not clean.")
	}
	return b.String()
}

func repeatsNote(n int64) string {
	if n == 0 {
		return ""
	}
	return "allowed after an outage: each one repeats a key's last events, in order"
}
