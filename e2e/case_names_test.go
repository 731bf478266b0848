package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// TestC79IllegalTopicNames has rows whose topic is no name that Kafka takes, between good ones.
func TestC79IllegalTopicNames(t *testing.T) {
	s := newStage(t, nil, nil)
	s.sql("ALTER TABLE outbox ALTER COLUMN topic DROP NOT NULL")
	good := s.makeTopic("", 3, nil)
	illegal := []any{"", "a b!", strings.Repeat("x", 250), ".", "..", nil, "ä"}
	causes := []string{"is empty", "' '", "249", `"."`, `".."`, "is empty", "'ä'"}
	var rows []row
	for i, topic := range illegal {
		rows = append(rows, row{topic, "k", "bad", nil}, row{good, "k", fmt.Sprint(i), nil}, row{topic, nil, "bad", nil})
	}
	ids := s.put(rows...)
	p := s.start(inJSON)
	s.arrive(good, len(illegal), drainLimit)
	// A NULL and an empty topic are one: the rows with a key wait as one part.
	list := p.awaitParked(2*len(illegal) - 1)
	byRow := map[int64]waits{}
	for _, w := range list {
		byRow[w.ID] = w
	}
	for i := range illegal {
		for _, id := range []int64{ids[3*i], ids[3*i+2]} {
			w, found := byRow[id]
			if !found && illegal[i] == nil && id == ids[3*i] {
				continue // behind the one with the empty topic
			}
			if !found || !containsAll(w.Reason, []string{"not a legal Kafka topic name", causes[i]}) {
				t.Errorf("row %d with topic %v: %+v, want the cause %q", id, illegal[i], w, causes[i])
			}
		}
	}
	eventually(t, drainLimit, "only the bad rows are left", func() bool { return s.left() == int64(2*len(illegal)) })
	if got, want := values(s.records(good), "k"), "0,1,2,3,4,5,6"; got != want {
		t.Errorf("the good topic has %s, want %s", got, want)
	}
	if m := p.metrics(); m["parked.row"] != float64(len(illegal)) || m["parked.topic"] != 0 {
		t.Errorf("the metrics say %v", m)
	}

	// Corrected rows go out.
	s.sql("UPDATE outbox SET topic = $1", good)
	p.retry(len(list))
	s.arrive(good, 3*len(illegal), drainLimit)
	s.awaitEmpty()
	p.awaitParked(0)
	p.stop()
}

// TestC99MistakesAreAllListed makes mistakes in the file, the environment and a flag at once.
func TestC99MistakesAreAllListed(t *testing.T) {
	s := newBareStage(t, nil, nil)
	file := filepath.Join(t.TempDir(), "forwarder.yaml")
	yaml := `
source:
  postgres:
    url: postgres://relay:${NO_SUCH_VARIABLE}@127.0.0.1:1/app
    mode: peek
    slott: x
shutdown:
  grace: 30
memory:
  events: 0
`
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := forwarder(t, []string{"FORWARDER_LOG_LEVEL=loud"}, "run", "--config", file, "--brokers", "nowhere")
	if code != 2 || stdout != "" {
		t.Errorf("exit code %d, stdout %q, want 2 and nothing", code, stdout)
	}
	for _, part := range []string{"NO_SUCH_VARIABLE", "source.postgres.mode", "slott", "shutdown.grace", "memory.events", "log.level", "FORWARDER_LOG_LEVEL", "kafka.brokers"} {
		if !strings.Contains(stderr, part) {
			t.Errorf("the problems do not name %s:\n%s", part, stderr)
		}
	}
	var connections int
	s.value(&connections, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	if connections != 0 {
		t.Errorf("%d connections were made", connections)
	}
}

// TestC100ExitCodes runs what fails and what does not to its end.
func TestC100ExitCodes(t *testing.T) {
	s := newBareStage(t, nil, nil)
	var tables int
	address := serverstest.FreeAddress(t)
	for _, c := range []struct {
		name string
		args []string
		code int
		last string // on standard error, in its last line
	}{
		{"help", []string{"run", "--help"}, 0, ""},
		{"version", []string{"version"}, 0, ""},
		{"print", []string{"init", "--print", "--source-url", s.url}, 0, ""},
		{"unknown command", []string{"rum"}, 2, "run"},
		{"unknown flag", []string{"run", "--broker", "x"}, 2, "--brokers"},
		{"nothing given", []string{"run"}, 2, "source.postgres.url"},
		{"unreadable file", []string{"run", "--config", "/no/such/file"}, 2, "/no/such/file"},
		{"no table", []string{"run", "--source-url", s.url, "--brokers", s.broker, "--admin-listen", address}, 2, "forwarder init"},
		{"no database", []string{"run", "--source-url", strings.Replace(s.url, "/test_", "/none_", 1), "--brokers", s.broker, "--admin-listen", address}, 2, "none_"},
		{"nobody to ask", []string{"parked", "--admin-listen", address}, 1, address},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := forwarder(t, nil, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d:\n%s", code, c.code, stderr)
			}
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			if !strings.Contains(lines[len(lines)-1], c.last) {
				t.Errorf("the last line is %q, want one with %q", lines[len(lines)-1], c.last)
			}
			if code == 0 && stdout == "" {
				t.Error("no answer")
			}
		})
	}
	s.value(&tables, "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE relkind = 'r' AND nspname = 'public'")
	if tables != 0 {
		t.Errorf("%d tables were made", tables)
	}
}
