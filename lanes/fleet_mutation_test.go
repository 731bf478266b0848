package lanes

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestLeaseRulesAreNeeded: the simulation of the fleet fails for each rule of ownership that is
// left out.
func TestLeaseRulesAreNeeded(t *testing.T) {
	killFleetMutants(t, "TestFleet", []mutation{
		{"trust from the start of the request", "keeper.go", "h.Trust(start.Add(k.cfg.TTL - k.cfg.margin()))\n\t// Released", "h.Trust(k.now().Add(k.cfg.TTL - k.cfg.margin()))\n\t// Released"},
		{"trust for less than the lease", "keeper.go", "return c.TTL / 10 }", "return 0 }"},
		{"drop everything when declared dead", "keeper.go", "k.lose(h)\n\t\tk.newLife()", "k.newLife()"},
		{"hear that we are dead", "keeper.go", "if !alive {", "if !alive && k.now().IsZero() {"},
		{"adopt what a lost answer gave", "holds.go", "case l.Owner == k.me && !held:", "case false:"},
		{"release what is drained", "keeper.go", "h.Drain(drain, func(lane source.Lane) { k.onDrained(me, lane) })", "h.Drain(drain, func(source.Lane) {})\n\t\tfor _, lane := range drain {\n\t\t\tk.onDrained(me, lane)\n\t\t}"},
		{"release last", "keeper.go", "errors.Join(k.rebalance(ctx, h, table), k.release(ctx))", "errors.Join(k.release(ctx), k.rebalance(ctx, h, table))"},
		{"keep the lanes of a stop that was cut short", "keeper.go", "if errors.Is(context.Cause(ctx), ErrGrace) {", "if false {"},
		{"suspend when the trust ends", "ready.go", "\te.checkTrust(now)\n", ""},
		{"read from the start after a suspension", "ownership.go", "e.Gain(now, source.Lane(id))", "e.turn(&e.lanes[id], owned)"},
		{"retire at a stop", "forwarder.go", "\towner.Retire()\n", ""},
		{"look at the clock before submitting", "forwarder.go", "(until == nil || f.now().Before(*until))", "until != nil"},
		{"submit in the term of the decision", "forwarder.go", "f.term.Load() == b.term && (", "("},
		{"give everything at once", "holds.go", "if k.alone && len(done) < len(k.draining) {", "if false {"},
		{"take what nobody owns", "fleet_store_test.go", "if l.Epoch != want.Epoch || l.Owner != \"\" && s.members[l.Owner] != nil {", "if false {"},
		{"leave what somebody may still hold", "fleet_store_test.go", "l.Epoch == 0 && s.mayBeHeld(me, s.made[l.Lane])", "false"},
		{"expire by the row and not by what was read", "fleet_store_test.go", "if m == nil || m.expires.After(s.w.now) {\n\t\treturn false", "if m == nil {\n\t\treturn false"},
	})
}

// TestRebalanceRulesAreNeeded: so do the properties of Rebalance.
func TestRebalanceRulesAreNeeded(t *testing.T) {
	killFleetMutants(t, "TestRebalance|TestRebalanceOldViews|TestRebalanceMovesOnce|TestC91NewReplicaGetsItsShare|TestC92RollingRestart|TestC92RestlessReplica|TestExclusive|TestExclusiveBesideShared|TestExclusiveJoinsShared", []mutation{
		{"who has more keeps more", "rebalance.go", "more != (s.owned[b.ID] > share)", "false"},
		{"how much more does not matter", "rebalance.go", "cmp.Or(b.Started.Compare(a.Started), cmp", "cmp.Or(cmp.Compare(s.owned[b.ID], s.owned[a.ID]), b.Started.Compare(a.Started), cmp"},
		{"only some have one more", "rebalance.go", "if i < extra {", "if i < extra || extra > 0 {"},
		{"ask for different lanes", "rebalance.go", "before += lack", ""},
		{"the newest has the rest of the division", "rebalance.go", "b.Started.Compare(a.Started)", "a.Started.Compare(b.Started)"},
		{"give what came last", "rebalance.go", "cmp.Compare(a.gained, b.gained)", "cmp.Compare(b.gained, a.gained)"},
		{"keep what has moved much", "rebalance.go", "max(l.Epoch-quietest-restless, 0)", "min(l.Epoch-quietest, 0)"},
		{"the retiring take nothing", "rebalance.go", "!live[m.ID] && !m.Retiring", "!live[m.ID]"},
		{"one exclusive member is enough", "rebalance.go", "case exclusive(members):", "case exclusive(members) && len(members) > 1 && exclusive(members[:1]):"},
		{"take everything or nothing", "rebalance.go", "len(s.free)+len(s.mine) < n", "false"},
		{"the holder keeps all", "rebalance.go", "cmp.Compare(s.owned[b.ID], s.owned[a.ID]), a.Started", "a.Started"},
		{"who has been there longest is next", "rebalance.go", "a.Started.Compare(b.Started)", "b.Started.Compare(a.Started)"},
	})
}

// killFleetMutants builds the package with each mutation and expects the tests to fail.
func killFleetMutants(t *testing.T, tests string, mutations []mutation) {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			bin := m.build(t, dir, func(file string) bool { return wantsServers(t, file) })
			out, err := exec.CommandContext(t.Context(), bin, "-test.run", "^("+tests+")$", "-fleet.seeds", "2000").CombinedOutput()
			if err == nil {
				t.Errorf("%s passes without this rule", tests)
			} else if !bytes.Contains(out, []byte("--- FAIL: Test")) {
				t.Errorf("%s ended without a failure: %v\n%s", tests, err, out)
			}
		})
	}
}

// wantsServers reports whether a file is a test that wants servers.
func wantsServers(t *testing.T, file string) bool {
	t.Helper()
	if !strings.HasSuffix(file, "_test.go") {
		return false
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(text, []byte("/internal/servers/serverstest\""))
}
