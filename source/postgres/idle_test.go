package postgres

import (
	"bufio"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
)

// TestIdleForwarderSendsOneStatementForEachPoll counts in the server's log.
func TestIdleForwarderSendsOneStatementForEachPoll(t *testing.T) {
	t.Parallel()
	server := ownServer(t, map[string]string{"log_statement": "all", "log_line_prefix": "%a|"})
	w := worldAt(t, server.URL("postgres"), outbox)
	w.beside(Config{})
	s := w.open()
	before := statementsLogged(t, server.LogPath())
	f := forward(t, s, &recorder{}, func(cfg *lanes.Config) { cfg.MaxPoll, cfg.Rescan = 10*time.Millisecond, 100*time.Millisecond })
	const polls = 200
	eventually(t, "many polls", func() bool { return f.source.reads() >= polls })
	f.stop()
	if errs := f.source.failures(); len(errs) > 0 {
		t.Fatalf("reads failed: %v", errs)
	}
	// The last read may have been given up before it was sent.
	sent := statementsLogged(t, server.LogPath()) - before
	if begun := f.source.reads(); sent != begun && sent != begun-1 {
		t.Errorf("%d statements for %d polls", sent, begun)
	}
	if f.source.starts < 2 {
		t.Errorf("%d polls began at the start of the table: the count should hold them too", f.source.starts)
	}
}

// statementsLogged counts what the forwarder's sessions have sent.
func statementsLogged(t *testing.T, path string) int {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n := 0
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ours := strings.CutPrefix(lines.Text(), applicationName+"|LOG:  ")
		if ours && (strings.HasPrefix(rest, "execute ") || strings.HasPrefix(rest, "statement: ")) {
			n++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}
