package lanes

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/mutants"
)

var mutantsFlag = flag.Bool("mutants", false, "also look for the mutants that take many seeds")

// A mutation leaves one rule out of the code. What it would break must not go unnoticed.
type mutation struct {
	name     string
	file     string
	old, new string // old occurs once in the file
}

// TestFloorRulesAreNeeded: the model of the floor fails for each rule that is left out.
func TestFloorRulesAreNeeded(t *testing.T) {
	killMutants(t, "TestFloorModel", 1000, []mutation{
		{"throw the page away", "floor.go", "if f.ended(snap) {\n\t\treturn false\n\t}", "f.ended(snap)"},
		{"pull the floor back", "floor.go", "f.pull(floor)", ""},
		{"pull back what parts remember", "floor.go", "f.held[part] = min(at, floor)", "f.held[part] = at"},
		{"remember the floor of the moment", "floor.go", "f.aside[xid] = sent", "f.aside[xid] = math.MaxInt64"},
		{"set long transactions aside", "floor.go", "now.Sub(since) > f.Age", "since.IsZero()"},
		{"do not wait for who is set aside", "floor.go", "if _, ok := f.aside[xid]; ok || slices", "if slices"},
		{"wait for the transactions of a mark", "floor.go", "m.fence <= oldest {", "true {"},
		{"wait for a fence", "floor.go", "m.fence != 0 && ", ""},
		{"no xmax is a fence", "floor.go", "mark{covered, page.Fence, f.reads}", "mark{covered, snap.Xmax, f.reads}"},
		{"take the fence of a delete", "floor.go", "\t\t\tm.fence = xid\n", ""},
		{"do not wait for our own deletes", "floor.go", "f.ours = append(f.ours, xid)", ""},
		{"nor for those of other replicas", "floor.go", "range page.Ours {", "range page.Ours[:0] {"},
		{"forget our own deletes", "floor.go", "f.ours = slices.DeleteFunc(f.ours, snap.Shows)", ""},
		{"know where the floor stood", "floor.go", "f.marks = append(f.marks, mark{f.at, settledFence, f.reads})", ""},
		{"keep the marks that are not reached", "floor.go", "return m.id <= f.at", "return m.id <= best"},
		{"wait for the oldest transaction", "floor.go", "oldest = min(oldest, xid)", ""},
		{"rise no higher than the page", "floor.go", "min(best, covered)", "best"},
		{"a full page covers up to its end", "floor.go", "covered = last", ""},
		{"rise", "floor.go", "f.at = max(f.at, min(best, covered))", ""},
		{"start from the floor of now", "floor.go", "f.held[part] = min(at, id)", "f.held[part] = max(at, id)"},
		{"start before what is dropped", "floor.go", "f.held[part] = min(at, id)", "f.held[part] = at"},
		{"pull back for who comes back", "floor.go", "f.pull(at)", ""},
		{"read from the start again", "floor.go", "func (f *Floor[P]) Reset() { f.pull(Start) }", "func (f *Floor[P]) Reset() {}"},
	})
}

// TestStoryRulesAreNeeded: a model or a simulation finds these in one seed of thousands, a story at
// once.
func TestStoryRulesAreNeeded(t *testing.T) {
	killFleetMutants(t, "TestFenceOfAnEarlierDelete|TestEventsAheadOfAFailedOneDoNotWait|TestEventAheadOfAFailedOneFailsLater|TestReadSaysAgainWhatMayNotHaveBeenHeard", []mutation{
		{"say it again after a failure", "engine.go", "\te.gained, e.dropped = true, true", "\te.gained = true"},
		{"keep what is ahead of the failed", "settle.go", "w.part.Kind == WholeTopic || slices.Contains(held, w)", "true"},
		{"a fence is above who ran at the read", "floor.go", "m.fence == 0 && m.read <= reads", "m.fence == 0"},
	})
}

// TestEngineRulesAreNeeded: the simulation fails for each rule that is left out.
func TestEngineRulesAreNeeded(t *testing.T) {
	killMutants(t, "TestSimulation", 1500, []mutation{
		{"hold overlapping parts", "ready.go", "other != nil && other != w && !other.trial && other.part.overlaps(w.part)", "false"},
		{"remember a failed event", "settle.go", "e.floor.Hold(w.part, it.id)\n\t\t\t\te.drop(it)", "e.drop(it)"},
		{"remember a queued event", "settle.go", "e.floor.Hold(w.part, it.id)\n\t\te.drop(it)", "e.drop(it)"},
		{"remember an event without room", "engine.go", "e.floor.Hold(l.behind.part, ev.ID)", ""},
		{"read a new lane from the start", "ownership.go", "e.floor.Hold(l.behind.part, Start)", ""},
		{"put back at the head", "settle.go", "append(back, l.queue[l.head:]...)", "append(slices.Clone(l.queue[l.head:]), back...)"},
		{"send a suspect alone", "ready.go", "it.suspect && q.flying == 0 && ", "it.suspect && "},
		{"park a lone suspect", "settle.go", "if r.lone {", "if false {"},
		{"drop what waits with the failed", "settle.go", "\t} else {\n\t\te.dropQueued(&e.lanes[part.Lane], w)\n\t}", "\t}"},
		{"absorb the trials of a lane", "settle.go", "\t\te.absorb(part)\n", ""},
		{"suspend when the trust ends", "ready.go", "\te.checkTrust(now)\n", ""},
		{"delete in order", "deletes.go", "append(slices.Clone(ids), sh.acked...)", "append(sh.acked, ids...)"},
		{"one delete of a lane at a time", "deletes.go", "sh.out || ", ""},
		{"name the moment of the next delete", "ready.go", "at(e.deleteDue(sh))", "at(sh.since.Add(e.cfg.DeleteWait))"},
		{"tell the fence of the read", "ready.go", "e.full || !now.Before(e.fencedAt.Add(fenceEvery)) && e.floor.WantsFence()", "false"},
		{"pass over what is behind", "engine.go", "|| e.passesOver(ev) {", "{"},
		{"one run in flight", "ready.go", "|| l.run != nil ||", "||"},
		{"know the acknowledged", "ready.go", "known = append(known, e.ids...)", "for id, it := range e.known.All() {\n\t\tif it.state != acknowledged {\n\t\t\tknown = append(known, id)\n\t\t}\n\t}"},
		{"throw the page away", "engine.go", "if !e.floor.Observe(now, page) {", "if e.floor.Observe(now, page); false {"},
		{"delete again", "deletes.go", "sh.acked = append(slices.Clone(ids), sh.acked...)", ""},
		{"wake up after a pause", "ready.go", "at(e.pausedUntil)", ""},
		{"bound the parts", "settle.go", "e.kinds[OneKey]+e.kinds[OneRow] >= e.cfg.MaxParts", "false"},
		{"bound the page", "ready.go", "min(e.cfg.PageEvents, e.cfg.MaxEvents-e.known.Len(), ", "min(e.cfg.PageEvents, "},
		{"forget the parts of a lost lane", "ownership.go", "if part.Kind != WholeTopic && part.Lane == id && (", "if part.Kind == WholeLane && part.Lane == id && ("},
		{"say that lanes were gained", "ready.go", "\te.gained = e.gained || w.gained\n", ""},
		{"bound the undeleted", "ready.go", "|| e.undeleted >= max(e.cfg.MaxEvents/2, 1) {", "{"},
	})
}

// TestMirrorHintsAreNeeded: the simulation with a mirror fails where a read does not say that
// events were dropped.
func TestMirrorHintsAreNeeded(t *testing.T) {
	killMutants(t, "TestSimulationWithMirror", 1500, []mutation{
		{"say that events were dropped", "engine.go", "\te.dropped = true\n\te.stats.Dropped++\n", "\te.stats.Dropped++\n"},
		{"say that events were passed over", "engine.go", "\t\t} else {\n\t\t\te.dropped = true\n\t\t}\n", "\t\t}\n"},
		{"say that a row may come back", "ready.go", "\te.dropped = e.dropped || w.part.Kind == OneRow // it was among Known\n", ""},
	})
}

// TestStallRulesAreNeeded: so it does for the rules about runs that wait for part of their events.
func TestStallRulesAreNeeded(t *testing.T) {
	killMutants(t, "TestSimulation", 3000, []mutation{
		{"split only while the broker answers", "stall.go", " || e.reached.Before(r.sent) {", " {"},
		{"split nothing when the broker has gone quiet", "stall.go", "e.sent.After(e.reached) && (", "false && ("},
		{"split only runs that are ours", "stall.go", "|| l.ownership != owned ||", "||"},
		{"take all of a key along", "stall.go", "case it.ev.Key != nil:", "case it.ev.Key != nil && it.state == flying:"},
		{"bound the keys that wait", "stall.go", "e.kinds[OneKey]+e.kinds[OneRow]+parts > e.cfg.MaxParts ||", ""},
		{"bound the events that have stalled", "stall.go", "e.stalled+events > e.cfg.MaxEvents/4 ||", ""},
		{"bound their bytes", "stall.go", "|| e.stalledBytes+bytes > e.cfg.MaxBytes/4 {", "{"},
		{"remember where a key stalled", "stall.go", "\te.floor.Hold(part, e.floor.At()+1) // from the floor of now\n", ""},
		{"drop what is queued of the key", "stall.go", "\te.dropQueued(l, w)\n", ""},
		{"end the trial of the key", "stall.go", "case w.trial:", "case false:"},
		{"name the moment of the stall", "ready.go", "due.After(now) || e.freed && !due.IsZero()", "false"},
		{"wait for the key's events", "ready.go", "if w.stalled != nil {", "if false {"},
		{"end the key's wait", "settle.go", "\t\te.unblock(now, l, r.behind)\n", ""},
		{"forget the key of a lane that is not ours", "stall.go", "if l.ownership != owned && e.parts[w.part] == w {", "if false {"},
		{"keep the key of a lane that may stay ours", "ownership.go", " && (to == notOurs || w.stalled == nil) {", " {"},
		{"drain what has stalled", "ownership.go", "l.flying == 0 &&", "l.run == nil &&"},
		{"look at the lane of what comes back", "settle.go", "\t\te.busy.add(back[0].lane)\n", ""},
		{"await what has stalled in a lost lane", "ownership.go", "to == notOurs && l.flying > 0", "to == notOurs && l.run != nil"},
		{"end a lost lane's wait with the last event", "settle.go", "\tif l.flying > 0 {", "\tif l.run != nil {"},
		{"count what has stalled in an inquest", "settle.go", "if other.state == flying &&", "if other.state == flying && !other.run.stalled &&"},
	})
}

// TestRareEngineRulesAreNeeded has those that take many seeds, and runs them with -mutants only.
func TestRareEngineRulesAreNeeded(t *testing.T) {
	rare := []mutation{
		{"look again when others have stalled", "stall.go", "\t\t\t\tagain = true\n", ""},
		{"look again when keys were freed", "ready.go", "|| e.freed && !due.IsZero()", ""},
		{"remember where a part fell behind", "settle.go", "\te.floor.Hold(part, it.id)\n", ""},
		{"suspect what comes back", "settle.go", "if e.careful[it.ev.Topic] != nil {\n\t\t\te.suspect(it)", "if false {\n\t\t\te.suspect(it)"},
		{"name no lane that is ours as drained", "ownership.go", "e.drained = slices.DeleteFunc(e.drained, func(other source.Lane) bool { return other == id })", ""},
		{"drop what was ahead and failed", "settle.go", "e.dropQueued(&e.lanes[part.Lane], w) // what", "// what"},
		{"read from the start now and then", "ready.go", "e.floor.Reset()\n", "\n"},
		{"drop the rest of a lost lane", "settle.go", "if l.ownership != owned {\n\t\t\te.drop(it)\n\t\t\tcontinue\n\t\t}", ""},
	}
	if *mutantsFlag {
		killMutants(t, "TestSimulation", 20000, rare)
		return
	}
	for _, m := range rare {
		m.text(t)
	}
}

// pureFiles are all that a mutant needs: the core, and its model and simulation.
var pureFiles = []string{
	"config.go", "engine.go", "ownership.go", "deletes.go", "floor.go", "hash.go", "laneset.go", "part.go", "ready.go", "run.go", "settle.go", "stall.go", "stats.go",
	"table_test.go", "floor_test.go", "sim_test.go", "sim_plan_test.go", "sim_world_test.go", "sim_broker_test.go", "sim_ledger_test.go", "sim_log_test.go",
}

// killMutants builds the package with each mutation and expects the test to fail.
func killMutants(t *testing.T, test string, seeds int, mutations []mutation) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			bin := m.build(t, dir, func(file string) bool { return !slices.Contains(pureFiles, filepath.Base(file)) })
			out, err := exec.CommandContext(t.Context(), bin, "-test.run", "^"+test+"$", "-seeds", strconv.Itoa(seeds)).CombinedOutput()
			if err == nil {
				t.Errorf("%s passes %d seeds without this rule", test, seeds)
			} else if !strings.Contains(string(out), "replay: ") {
				t.Errorf("%s ended without naming a seed: %v\n%s", test, err, out)
			}
		})
	}
}

// text returns the mutated file.
func (m mutation) text(t *testing.T) string {
	t.Helper()
	return mutants.Text(t, m.file, m.old, m.new)
}

// build builds the test binary of the mutant, without the files that leaveOut names.
func (m mutation) build(t *testing.T, dir string, leaveOut func(file string) bool) string {
	t.Helper()
	return mutants.Build(t, dir, m.file, m.text(t), leaveOut)
}
