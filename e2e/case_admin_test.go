package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// get reads a page of the admin server.
func (p *process) get(path string) string {
	p.t.Helper()
	client := http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + p.admin + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		p.t.Fatalf("%s: %s: %s", path, answer.Status, body)
	}
	return string(body)
}

// waits is what the admin server says about one thing that waits.
type waits struct {
	Part     string
	ID       int64 `json:",string"`
	Topic    string
	Key      *string
	Reason   string
	Attempts int
}

func (p *process) parked() []waits {
	p.t.Helper()
	var answer struct{ Parked []waits }
	if err := json.Unmarshal([]byte(p.get("/parked")), &answer); err != nil {
		p.t.Fatalf("/parked: %v", err)
	}
	return answer.Parked
}

// awaitParked waits until n things wait and returns them.
func (p *process) awaitParked(n int) []waits {
	p.t.Helper()
	var list []waits
	eventually(p.t, 20*time.Second, fmt.Sprintf("%d things wait", n), func() bool {
		list = p.parked()
		return len(list) == n
	})
	return list
}

// retry is `forwarder parked --retry`. It demands that n things are tried again.
func (p *process) retry(n int) {
	p.t.Helper()
	stdout, stderr, code := forwarder(p.t, nil, "parked", "--retry", "--admin-listen", p.admin)
	if want := fmt.Sprintf("%d tried again now\n", n); code != 0 || stdout != want {
		p.t.Fatalf("forwarder parked --retry: exit code %d, %q, want %q\n%s", code, stdout, want, stderr)
	}
}

// forwarder runs a command to its end.
func forwarder(t *testing.T, settings []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = environment(settings...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("forwarder %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// cpuSeconds is the metric of the processor time that the process has used.
const cpuSeconds = "process_cpu_seconds_total"

// metrics reads the metrics that have no label but "part", which is joined to the name by a
// dot, and no prefix.
func (p *process) metrics() map[string]float64 {
	p.t.Helper()
	all := map[string]float64{}
	for line := range strings.Lines(p.get("/metrics")) {
		name, number, found := strings.Cut(strings.TrimSpace(line), " ")
		name, ours := strings.CutPrefix(name, "forwarder_")
		if !found || !ours && name != cpuSeconds {
			continue
		}
		if base, label, labelled := strings.Cut(name, `{part="`); labelled {
			name = base + "." + strings.TrimSuffix(label, `"}`)
		}
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			p.t.Fatalf("the metric %q: %v", line, err)
		}
		all[name] = v
	}
	p.addUp(all)
	return all
}

// addUp demands that every event that was read is accounted for.
func (p *process) addUp(m map[string]float64) {
	p.t.Helper()
	for _, name := range []string{"events_read_total", "events_acknowledged_total", "events_in_memory", "events_dropped_total"} {
		if _, ok := m[name]; !ok {
			p.t.Fatalf("there is no metric forwarder_%s", name)
		}
	}
	if read, known := m["events_read_total"], m["events_acknowledged_total"]+m["events_in_memory"]+m["events_dropped_total"]; read != known {
		p.t.Fatalf("%v events were read and %v are accounted for: %v", read, known, m)
	}
}

// logLine is one line of a log in JSON.
type logLine struct {
	Level, Msg string
	text       string
}

// inJSON makes the forwarder write its log so that lines can read it.
const inJSON = "FORWARDER_LOG_FORMAT=json"

func (p *process) lines() []logLine {
	p.t.Helper()
	var all []logLine
	for text := range strings.Lines(p.output()) {
		var l logLine
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			if !strings.HasSuffix(text, "\n") {
				continue // being written
			}
			p.t.Fatalf("the log line %q: %v", text, err)
		}
		l.text = text
		all = append(all, l)
	}
	return all
}

// quiet demands that the log has nothing above Info.
func (p *process) quiet() {
	p.t.Helper()
	for _, l := range p.lines() {
		if l.Level != "INFO" && l.Level != "DEBUG" {
			p.t.Errorf("a warning without a cause: %s", l.text)
		}
	}
}
