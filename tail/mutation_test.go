package tail

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/mutants"
)

// A mutation leaves one rule out of the code. What it would break must not go unnoticed.
type mutation struct {
	name     string
	file     string
	old, new string // old occurs once in the file
}

// TestMirrorRulesAreNeeded: the model of the mirror fails for each rule that is left out.
func TestMirrorRulesAreNeeded(t *testing.T) {
	killMutants(t, "TestMirrorModel", []mutation{
		{"skip what the table read covered", "state.go", "\tif s.shows(xid) {\n", "\tif false {\n"},
		{"remember what was left out", "state.go", "\t\t\ts.missed.add(xid)\n", ""},
		{"what was left out too early is missing", "state.go", "\t\t\ts.missed.add(xid)\n\t\t\ts.setComplete(now, false)\n", "\t\t\ts.missed.add(xid)\n"},
		{"what nobody knows of is missing", "state.go", "len(denied) == 0 || slices", "slices"},
		{"remember what others own", "state.go", "\t\t\ts.others.add(xid)\n\t\t}\n\t}\n", "\t\t}\n\t}\n"},
		{"keep nothing of evicted parts", "state.go", "case s.evicted.covers(ev):\n", "case false:\n"},
		{"remember rows of evicted parts", "state.go", "case s.evicted.covers(ev):\n\t\t\ts.others.add(xid)\n", "case s.evicted.covers(ev):\n"},
		{"remember what is let go", "state.go", "\t\tto.add(r.note)\n", ""},
		{"give up when memory is full", "state.go", "\tif !s.roomy() {\n\t\ts.setComplete(now, false)\n", "\tif !s.roomy() {\n"},
		{"a repeated row is there", "state.go", "case s.queue.rows[ev.ID] != nil:", "case false:"},
		{"a new log knows of no snapshot", "state.go", "\ts.seen = source.Snapshot{}\n", ""},
		{"without a log the table answers", "state.go", "\ts.attached, s.reading = false, false\n\ts.setComplete(now, false)\n", "\ts.attached, s.reading = false, false\n"},
		{"a read from before the log completes nothing", "state.go", "s.attached, s.reading = false, false", "s.attached = false"},
		{"drop what waits when the log is lost", "state.go", "\t\t\ts.queue.remove(r)\n\t\t} else if", "\t\t} else if"},

		{"lanes gained are read from the table", "handover.go", "!read.Gained && ", ""},
		{"a page thrown away is read from the table again", "handover.go", "read.Floor >= s.floor && ", ""},
		{"read the table now and then", "handover.go", "!(read.Rescan && s.stale(now)) &&", "true &&"},
		{"what is evicted is read from the table", "handover.go", "!s.evicted.asked(read) && ", ""},
		{"a read in the table ends the completeness", "handover.go", "\ts.setComplete(now, false)\n\tif s.evicted", "\tif s.evicted"},
		{"who comes back misses what was left out", "handover.go", "\t\ts.missed.take(&s.others)\n", ""},
		{"what is left out from now on", "handover.go", "\ts.evicted.set(read)\n", ""},
		{"a dropped row that is not here is read from the table", "queue.go", "\t\tif !listed[r.id] {\n\t\t\treturn false\n\t\t}\n", ""},
		{"a dropped row waits again", "handover.go", "s.dropped = !s.queue.takeBack(read.Known)", "s.dropped = false"},
		{"remember that rows were dropped", "handover.go", "s.dropped = s.dropped || read.Dropped", "s.dropped = read.Dropped"},
		{"delete again what was not seen", "handover.go", "if snap.Shows(xid) {", "if snap.Shows(xid) && id < 0 {"},
		{"hand out nothing that is deleted", "handover.go", "\t\t\treturn deleted\n", "\t\t\treturn deleted && false\n"},
		{"remember what was not seen", "handover.go", "\t\t\ts.unseen[id] = r.note\n", ""},
		{"follow the snapshots", "handover.go", "\ts.seen = snap\n", "\tif s.seen.Xmax == 0 {\n\t\ts.seen = snap\n\t}\n"},
		{"a snapshot shows what was missed", "handover.go", "\ts.missed.prune(&snap)\n", ""},
		{"a full page is not all", "handover.go", "page.Full || ", ""},
		{"wait for the fence", "handover.go", "snap.Xmin < s.fence || ", ""},
		{"wait for what was missed", "handover.go", " || !s.missed.empty() {", " {"},
		{"remember the floor", "handover.go", "\ts.floor = read.Floor\n", ""},
		{"drop what is left out", "handover.go", "\ts.dropEvicted()\n", ""},
		{"keep the rows of the page", "handover.go", "range page.Events {\n", "range page.Events[:0] {\n"},
		{"know what is known elsewhere", "handover.go", "\t\t\ts.queue.addOut(id, nil, 0)\n", ""},
		{"drop what the table read covered", "handover.go", "case shown:\n\t\t\ts.queue.remove(r)\n", "case shown:\n"},
		{"miss the event of a dropped row", "handover.go", "\t\t\ts.letGo(r, &s.missed)\n", "\t\t\ts.queue.remove(r)\n"},
		{"keep a dropped row that no snapshot shows", "handover.go", "\t\t\tback = append(back, r)\n\t\t}\n\t}\n\ts.queue.giveBack(back)\n\ts.dropped = false\n}", "\t\t\ts.queue.remove(r)\n\t\t}\n\t}\n\ts.queue.giveBack(back)\n\ts.dropped = false\n}"},
		{"forget what is deleted", "handover.go", "\t\ts.queue.remove(r)\n\t}\n}\n\n// deletedAgain", "\t}\n}\n\n// deletedAgain"},

		{"what comes back comes in order", "queue.go", "next != nil && next.compare(r) < 0", "false"},
		{"look at what comes back", "queue.go", "\tif len(rows) > 0 {\n\t\tq.at = q.waiting.first\n\t}\n", ""},
		{"look anew with another filter", "queue.go", "\t\tq.at = q.waiting.first\n\t}\n\tpage", "\t}\n\tpage"},
		{"leave out", "queue.go", "if q.filter.covers(r.ev) {", "if false {"},
		{"go on with what was added", "queue.go", "\tif q.at == nil {\n\t\tq.at = r\n\t}\n", ""},
		{"compare the keys that are left out", "filter.go", "\t\tif !f.keys[key] {\n\t\t\treturn false", "\t\tif !f.keys[key] {\n\t\t\treturn true"},
	})
}

// killMutants builds the package with each mutation and expects the test to fail.
func killMutants(t *testing.T, test string, mutations []mutation) {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			text := mutants.Text(t, m.file, m.old, m.new)
			bin := mutants.Build(t, dir, m.file, text, func(file string) bool { return strings.HasSuffix(file, "mutation_test.go") })
			out, err := exec.CommandContext(t.Context(), bin, "-test.run", "^"+test+"$", "-seeds", strconv.Itoa(*seedsFlag)).CombinedOutput()
			if err == nil {
				t.Errorf("%s passes %d seeds without this rule", test, *seedsFlag)
			} else if !strings.Contains(string(out), "replay: ") {
				t.Errorf("%s ended without naming a seed: %v\n%s", test, err, out)
			}
		})
	}
}
