package e2e

import (
	"log/slog"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// kcatLine is a record as readWithKcat has it printed: key, headers, value.
var kcatLine = regexp.MustCompile(`^(\S+)\tid=([0-9a-f]+)\t\{"topic":"([^"]+)","key":"([^"]+)","seq":(\d+),"n":\d+,.*\}$`)

// readWithKcat reads the topic with a client that shares no code with ours or with the
// oracle's, and demands the given number of records, each once and in the order of its key.
func (w *world) readWithKcat(records int64) {
	t := w.t
	t.Helper()
	if err := servers.Install(t.Context(), slog.Default(), servers.Kcat); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "kcat", "-b", w.broker, "-C", "-t", w.topic, "-o", "beginning", "-e", "-q", "-f", `%k\t%h\t%s\n`)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("reading with kcat: %v", err)
	}
	var n int64
	last := map[string]int64{}
	for line := range strings.Lines(string(out)) {
		f := kcatLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if f == nil {
			t.Fatalf("kcat reads %q", line)
		}
		key, topic, inPayload := f[1], f[3], f[4]
		seq, _ := strconv.ParseInt(f[5], 10, 64) // the expression has digits there
		if topic != w.topic || key != inPayload || seq != last[key]+1 {
			t.Fatalf("kcat reads %q after event %d of the key", line, last[key])
		}
		last[key] = seq
		n++
	}
	t.Logf("kcat read %d records of %d keys, each once and in order", n, len(last))
	if n != records {
		t.Errorf("kcat reads %d records, want %d", n, records)
	}
}
