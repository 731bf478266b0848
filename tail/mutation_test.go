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
	killMutants(t, "TestMirrorModel|TestQueueModel|TestNewLogKnowsNoSnapshot|TestEvictionKeepsTheRest|TestResyncWaitsForABacklog|TestDeleteBeforeItsRowIsVisible|TestDroppedRowThatIsNotVisible|TestLogBringsARowAfterItsDelete", []mutation{
		{"skip what the table read covered", "state.go", "\tif s.shows(xid) {\n", "\tif false {\n"},
		{"remember what was left out", "state.go", "\t\t\ts.missed.add(xid)\n", ""},
		{"what was left out too early is missing", "state.go", "\t\t\ts.missed.add(xid)\n\t\t\ts.setComplete(now, false)\n", "\t\t\ts.missed.add(xid)\n"},
		{"what nobody knows of is missing", "state.go", "len(denied) == 0 || slices", "slices"},
		{"remember what others own", "state.go", "\t\t\ts.others.add(xid)\n\t\t}\n\t}\n", "\t\t}\n\t}\n"},
		{"keep nothing of evicted parts", "state.go", "case s.evicted.covers(ev):\n", "case false:\n"},
		{"remember rows of evicted parts", "state.go", "case s.evicted.covers(ev):\n\t\t\ts.others.add(xid)\n", "case s.evicted.covers(ev):\n"},
		{"remember what is let go", "state.go", "\t\tto.add(r.note)\n", ""},
		{"give up when memory is full", "state.go", "\tif !s.roomy() {\n\t\ts.setComplete(now, false)\n", "\tif !s.roomy() {\n"},
		{"a repeated row is there", "state.go", "case s.queue.rows.Get(ev.ID) != nil:", "case ev.ID < 0:"},
		{"a new log knows of no snapshot", "state.go", "\ts.seen = source.Snapshot{}\n", ""},
		{"without a log the table answers", "state.go", "\ts.attached, s.reading = false, false\n\ts.setComplete(now, false)\n", "\ts.attached, s.reading = false, false\n"},
		{"a read from before the log completes nothing", "state.go", "s.attached, s.reading = false, false", "s.attached = false"},
		{"drop what waits when the log is lost", "state.go", "\t\t\ts.queue.remove(r)\n\t\t} else if", "\t\t} else if"},

		{"lanes gained are read from the table", "handover.go", "!read.Gained && ", ""},
		{"a page thrown away is read from the table again", "handover.go", "read.Floor >= s.floor && ", ""},
		{"read the table now and then", "handover.go", "!(read.Rescan && s.stale(now, read)) &&", "true &&"},
		{"not while more waits than a page holds", "handover.go", " && s.queue.waiting.n < min(read.Limit, s.cfg.MaxEvents/2)", ""},
		{"but not for good", "handover.go", "age >= resyncLate*s.cfg.Resync || ", ""},
		{"what is evicted is read from the table", "handover.go", "!s.evicted.asked(read) && ", ""},
		{"a read in the table ends the completeness", "handover.go", "\ts.setComplete(now, false)\n\tif s.evicted", "\tif s.evicted"},
		{"who comes back misses what was left out", "handover.go", "\t\ts.missed.take(&s.others)\n", ""},
		{"what is left out from now on", "handover.go", "\ts.evicted.set(read)\n", ""},
		{"a dropped row that is not here is read from the table", "handover.go", "\t\tif !listed[r.id] {\n\t\t\treturn false\n\t\t}\n", ""},
		{"a dropped row waits again", "handover.go", "\ts.queue.takeBack(listed)\n", ""},
		{"delete again what was not seen", "handover.go", "if snap.Shows(xid) {", "if snap.Shows(xid) && id < 0 {"},
		{"hand out nothing that is deleted", "handover.go", "\t\t\treturn deleted\n", "\t\t\treturn deleted && false\n"},
		{"the end of a log forgets no delete", "state.go", "\ts.others.reset()\n", "\ts.others.reset()\n\tclear(s.unseen)\n"},
		{"the end of a log forgets no transaction", "state.go", "\t\tif !r.out {\n\t\t\ts.queue.remove(r)\n", "\t\tr.note = 0\n\t\tif !r.out {\n\t\t\ts.queue.remove(r)\n"},
		{"look for what was not seen until it is", "handover.go", " || len(s.unseen) > 0", ""},
		{"remember what was not seen", "handover.go", "\t\t\ts.unseen[id] = r.note\n", ""},
		{"know what was deleted meanwhile", "handover.go", "\t\tdelete(listed, id)\n", "\t\t_ = id\n"},
		{"a row that the log brings late leaves its id only", "handover.go", "\t\t\ts.queue.forget(r)\n\t\t}\n\t\tswitch", "\t\t}\n\t\tswitch"},
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
		{"keep a dropped row that no snapshot shows", "handover.go", "\t\t\tback = append(back, r)\n\t\t}\n\t}\n\ts.queue.giveBack(back)\n}", "\t\t\ts.queue.remove(r)\n\t\t}\n\t}\n\ts.queue.giveBack(back)\n}"},
		{"forget what is deleted", "handover.go", "\t\ts.queue.remove(r)\n\t}\n}\n\n// deletedAgain", "\t}\n}\n\n// deletedAgain"},

		{"what comes back comes in order", "queue.go", "next != nil && next.compare(r) < 0", "false"},
		{"look at what comes back", "queue.go", "\tif len(rows) > 0 {\n\t\tq.at = q.waiting.first\n\t}\n", ""},
		{"look anew with another filter", "queue.go", "\t\tq.at = q.waiting.first\n\t}\n\tpage", "\t}\n\tpage"},
		{"leave out", "queue.go", "if q.filter.covers(r.ev) {", "if false {"},
		{"go on with what was added", "queue.go", "\tif q.at == nil {\n\t\tq.at = r\n\t}\n", ""},
		{"compare the keys that are left out", "filter.go", "\t\tif !f.keys[key] {\n\t\t\treturn false", "\t\tif !f.keys[key] {\n\t\t\treturn true"},
	})
}

// TestLogRulesAreNeeded: so does the model of the log, or one of its stories.
func TestLogRulesAreNeeded(t *testing.T) {
	killMutants(t, "TestLogModel|TestLogSkipsAScannedRowOnce|TestLogOfAnotherReplica|TestLogDropsWhatItHasNotBroughtAgain|TestLogScansInPieces|TestLogTellsWhatHoldsIt", []mutation{
		{"skip what was delivered", "logstate.go", "\t\tif !undone {\n\t\t\treturn false\n", "\t\tif !undone {\n\t\t\treturn true\n"},
		{"bring again what was dropped", "logstate.go", "\t\t\ts.undone[r.note.name] = id\n", "\t\t\tif r.out {\n\t\t\t\ts.undone[r.note.name] = id\n\t\t\t}\n"},
		{"know what the forwarder has", "logstate.go", "if r := s.queue.rows.Get(id); r != nil {\n\t\t\tr.note.tx", "if r := s.queue.rows.Get(id); r != nil && id < 0 {\n\t\t\tr.note.tx"},
		{"what the forwarder has joins its transaction", "logstate.go", "\t\t\tr.note.tx = e.tx\n\t\t\te.tx.left++\n", ""},
		{"a transaction waits for its entries", "logstate.go", "\te.tx.left++\n\ts.queue", "\ts.queue"},
		{"know how far the log has been", "logstate.go", "s.last, s.begun = e.name, true", "s.begun = true"},
		{"forget what is not repeated", "logstate.go", "\t\tclear(s.undone)\n\t\ts.last", "\t\ts.last"},
		{"skip what was scanned", "logstate.go", "\t\ts.skip[ev.ID] = true\n", ""},
		{"skip a scanned row once", "logstate.go", "\t\tdelete(s.skip, e.row)\n\t\treturn false", "\t\treturn false"},
		{"a transaction has an end", "logstate.go", "\tif s.tx == nil {\n\t\ts.tracker.Pass(pos)\n\t}", "\ts.tracker.Pass(pos)"},
		{"confirm nothing during a scan", "logstate.go", "\tif s.scan != nil {\n\t\treturn s.before", "\tif false {\n\t\treturn s.before"},
		{"scan nothing that the forwarder has", "logstate.go", "case r == nil:", "case r == nil || true:"},
		{"the scan waits for what the forwarder has", "logstate.go", "\t\t\tr.note.tx = s.scan\n\t\t\ts.scan.left++\n", "\t\t\tr.note.tx = s.scan\n"},
		{"the scan has an end", "logstate.go", "if s.scanEnd && s.scan.left == 0 {", "if s.scan.left == 0 {"},
		{"drop what waits at a reset", "logstate.go", "\t\t\ts.queue.remove(r)\n\t\t}\n\t}\n\tpos", "\t\t}\n\t}\n\tpos"},
		{"begin anew at a reset", "logstate.go", "\ts.tracker = checkpoint.Tracker[P]{}\n", ""},
		{"know what was confirmed", "logstate.go", "\t} else if reached {\n\t\ts.tracker.Pass(pos)\n", "\t} else if reached {\n\t\t_ = pos\n"},
		{"what was dropped comes again", "logstate.go", "\t\ts.queue.takeBack(s.queue.listed(read.Known))\n", ""},
		{"what was dropped and is not brought again goes", "logstate.go", "\t\ts.dropLoose()\n", ""},
		{"what is deleted is done", "logstate.go", "\t\t\tdelete(s.undone, e.name)\n\t\t\tcontinue", "\t\t\tcontinue"},
		{"finish a transaction", "logstate.go", "\t\t\ts.tracker.Finish(e.tx.mark)\n", ""},
		{"tell the first that holds", "logstate.go", "(first == nil || cmp.Or(r.note.name.compare(first.note.name), cmp.Compare(r.id, first.id)) < 0)", "(first == nil || r.id > first.id)"},
		{"what is not brought again holds nothing", "logstate.go", "if r.note.tx != nil && (first", "if (first"},
		{"delete no row of a message", "logstate.go", "if !r.note.none {\n\t\t\trows", "if true {\n\t\t\trows"},
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
			bin := mutants.Build(t, dir, m.file, text, func(file string) bool {
				// What imports much is not built dozens of times.
				return strings.HasSuffix(file, "mutation_test.go") || strings.HasSuffix(file, "forwarder_test.go")
			})
			out, err := exec.CommandContext(t.Context(), bin, "-test.run", "^("+test+")$", "-seeds", strconv.Itoa(*seedsFlag)).CombinedOutput()
			if err == nil {
				t.Errorf("%s passes %d seeds without this rule", test, *seedsFlag)
			} else if !strings.Contains(string(out), "--- FAIL: Test") {
				t.Errorf("%s ended without a failure: %v\n%s", test, err, out)
			}
		})
	}
}
