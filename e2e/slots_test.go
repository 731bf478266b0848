package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// TestC55SlotsAreListedAndDropped: the slot of a forwarder that has gone is found and removed,
// and not while one reads it.
func TestC55SlotsAreListedAndDropped(t *testing.T) {
	w := newWorldIn(t, durable, nil, nil, "events")
	type slot struct {
		Name, Database, Table string
		Temporary             bool
		Active                int   `json:"active_pid"`
		Retained              int64 `json:"retained_bytes"`
	}
	var database string
	if err := w.connect().QueryRow(t.Context(), "SELECT current_database()").Scan(&database); err != nil {
		t.Fatal(err)
	}
	list := func() (ours []slot) { // the server is shared
		t.Helper()
		stdout, stderr, code := forwarder(t, nil, "slots", "--json", "--source-url", w.url)
		if code != 0 {
			t.Fatalf("slots: exit code %d: %s", code, stderr)
		}
		for line := range strings.Lines(stdout) {
			var s slot
			if err := json.Unmarshal([]byte(line), &s); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if s.Database == database {
				ours = append(ours, s)
			}
		}
		return ours
	}
	drop := func(name string, more ...string) (string, int) {
		t.Helper()
		stdout, stderr, code := forwarder(t, nil, append([]string{"slots", "drop", name, "--source-url", w.url}, more...)...)
		return stdout + stderr, code
	}

	p := w.start()
	w.write(func(c *oracle.WriterConfig) { c.Events = 500 }).wait()
	w.verdict()
	slots := list()
	if len(slots) != 1 || slots[0].Active == 0 || slots[0].Temporary || slots[0].Table != "public.outbox" {
		t.Fatalf("the slots are %+v, want one durable slot that is read", slots)
	}
	name := slots[0].Name
	if text, code := drop(name, "--yes"); code != 1 || !strings.Contains(text, "stop the forwarder") {
		t.Errorf("dropping a slot that is read: exit code %d: %s", code, text)
	}
	p.stop()

	if text, code := drop(name); code != 1 || !strings.Contains(text, "Type yes") || !strings.Contains(text, "MiB") {
		t.Errorf("dropping without an answer: exit code %d: %s", code, text)
	}
	if slots := list(); len(slots) != 1 || slots[0].Active != 0 {
		t.Fatalf("the slots are %+v, want one that nobody reads", slots)
	}
	if text, _, code := forwarder(t, nil, "slots", "--source-url", w.url); code != 0 || !strings.Contains(text, name) || !strings.Contains(text, "durable") {
		t.Errorf("slots: exit code %d: %s", code, text)
	}
	if text, code := drop("no_such_slot", "--yes"); code != 1 || !strings.Contains(text, "no_such_slot") {
		t.Errorf("dropping what is not there: exit code %d: %s", code, text)
	}
	if text, code := drop(name, "--yes"); code != 0 || text != name+" is dropped\n" {
		t.Errorf("dropping: exit code %d: %s", code, text)
	}
	if slots := list(); len(slots) != 0 {
		t.Errorf("the slots are %+v, want none", slots)
	}
}

// TestCheckFindsWhatAStartWouldFind lists all of it at once, and changes nothing.
func TestCheckFindsWhatAStartWouldFind(t *testing.T) {
	w := newWorld(t, nil, nil)
	check := func(settings []string, more ...string) (string, int) {
		t.Helper()
		stdout, stderr, code := forwarder(t, settings, append([]string{"check", "--source-url", w.url, "--brokers", w.broker}, more...)...)
		return stdout + stderr, code
	}
	for _, m := range []mode{polled, streamed, durable} {
		if text, code := check(m.settings); code != 0 || text != "ok\n" {
			t.Errorf("%s: exit code %d: %s", m.name, code, text)
		}
	}
	w.execute(w.connect(), "DROP PUBLICATION outbox_publication")
	w.execute(w.connect(), "DROP TABLE outbox_members")
	if text, code := check(nil); code != 2 || !strings.Contains(text, "outbox_members") {
		t.Errorf("without a table: exit code %d: %s", code, text)
	}
	text, code := check(streamed.settings)
	if code != 2 || !strings.Contains(text, "problems") || !strings.Contains(text, "outbox_members") || !strings.Contains(text, `no publication "outbox_publication"`) {
		t.Errorf("without a table and a publication: exit code %d: %s", code, text)
	}
	if text, code := check(nil, "--brokers", "127.0.0.1:1"); code != 2 || !strings.Contains(text, "outbox_members") {
		t.Errorf("brokers that are away hide a problem of the database: exit code %d: %s", code, text)
	}
	w.initialise()
	stdout, stderr, code := forwarder(t, nil, "check", "--source-url", w.url, "--brokers", "127.0.0.1:1")
	if code != 1 || stdout != "" || !strings.Contains(stderr, "127.0.0.1:1") {
		t.Errorf("a broker that is away: exit code %d: %s%s", code, stdout, stderr)
	}
	if f := w.fleet(); f == nil || len(f.lanes) != 0 {
		t.Errorf("a check has become a member: %s", f)
	}
}
