package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// result is what a shell sees of a process.
type result struct {
	code           int
	stdout, stderr string
}

// lastLine is the last line on standard error.
func (r result) lastLine() string {
	lines := strings.Split(strings.TrimRight(r.stderr, "\n"), "\n")
	return lines[len(lines)-1]
}

// execute runs a command to its end, with only these variables of its own.
func execute(t *testing.T, cmd *exec.Cmd, environ ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	cmd.Stderr = &stderr
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, environ...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// TestC99NothingIsConnected points every address at a listener that must stay untouched.
func TestC99NothingIsConnected(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan net.Addr, 16)
	go func() {
		defer close(connected)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connected <- conn.RemoteAddr()
			conn.Close()
		}
	}()
	addr := listener.Addr().String()
	for _, args := range [][]string{
		{"run", "--source-url", "postgres://u:hunter2@" + addr + "/db", "--brokers", addr},
		{"init", "--source-url", "postgres://u:hunter2@" + addr + "/db"},
		{"parked", "--admin-listen", addr, "--retry"},
	} {
		got := execute(t, exec.Command(binary, args...), "FORWARDER_SHUTDOWN_GRACE=30", "FORWARDER_KAFKA_ACKS=1")
		if got.code != 2 || !strings.Contains(got.stderr, "2 problems") || got.stdout != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", args[0], got.code, got.stdout, got.stderr)
		}
	}
	listener.Close()
	for from := range connected {
		t.Errorf("%v connected", from)
	}
}

func TestC100ExitCodes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	broken := write("broken.yaml", "log: {")
	typo := write("typo.yaml", "log: {levle: info}")
	missing := filepath.Join(dir, "missing.yaml")
	const url, kafka = "--source-url=postgres://u@127.0.0.1:1/db", "--brokers=127.0.0.1:1"
	const commands = "the commands are check, demo, help, init, ..."

	for _, c := range []struct {
		args    string
		environ []string
		code    int
		stdout  string // what it begins with
		last    string // the last line on standard error, whole, or its beginning before "..."
	}{
		{args: "version", stdout: "forwarder v1.2.3 go"},
		{args: "--version", stdout: "forwarder v1.2.3 go"},
		{args: "help", stdout: "forwarder moves events"},
		{args: "--help", stdout: "forwarder moves events"},
		{args: "-h", stdout: "forwarder moves events"},
		{args: "help run", stdout: "Forwards events"},
		{args: "run --help", stdout: "Forwards events"},
		{args: "demo -h", stdout: "Starts a PostgreSQL"},
		{args: "init --print", stdout: "CREATE"},

		{args: "", code: 2, last: "forwarder: no command is given; " + commands},
		{args: "rnu", code: 2, last: "forwarder: unknown command rnu; did you mean run?"},
		{args: "--source-url=x run", code: 2, last: "forwarder: a flag stands before the command; write forwarder COMMAND first; " + commands},
		{args: "help rnu", code: 2, last: "forwarder: unknown command rnu; did you mean run?"},
		{args: "run --borkers=x", code: 2, last: "forwarder: unknown flag --borkers; did you mean --brokers?"},
		{args: "run --source-url", code: 2, last: "forwarder: the flag --source-url has no value; write --source-url VALUE"},
		{args: "run --source-url=a --source-url=b", code: 2, last: "forwarder: the flag --source-url is given twice; keep one of them"},
		{args: "run now", code: 2, last: "forwarder: forwarder run takes flags only, but there is a word without one; ..."},
		{args: "init --print=perhaps", code: 2, last: "forwarder: the flag --print is either there or not; write it without a value"},
		{args: "version --json", code: 2, last: "forwarder: unknown flag --json; see forwarder version --help"},

		{args: "run", code: 2, last: "  source.postgres.url: is not set; ..."},
		{args: "init", code: 2, last: "forwarder: source.postgres.url: is not set; ..."},
		{args: "parked --admin-listen=none", code: 2, last: `forwarder: admin.listen = "none" (--admin-listen): is none, ...`},
		{args: "demo --rate=0 --duration=30", code: 2, last: `  --duration = "30": has no unit; did you mean 30s? ...`},
		{args: "run " + kafka + " --source-url=mysql://h/db", code: 2, last: "forwarder: source.postgres.url = mysql://(hidden) (--source-url): is not a PostgreSQL URL; begin it with postgres:// or postgresql://, in small letters"},
		{args: "run " + kafka + " --source-url=mongodb://h", code: 2, last: "forwarder: source.mongo.database: is not set, and source.mongo.url names no database; write it behind the host, mongodb://host:27017/database, or give source.mongo.database"},
		{args: "run " + kafka + " " + url + " --mode=push", code: 2, last: "forwarder: source.postgres.mode = \"push\" (--mode): is not an allowed value; write one of poll, stream"},
		{args: "check", code: 2, last: "  source.postgres.url: is not set; give --source-url, FORWARDER_SOURCE_POSTGRES_URL, or source.postgres.url in the file that --config names"},
		{args: "run " + kafka + " " + url + " --admin-listen=", code: 2, last: `forwarder: admin.listen = "" (--admin-listen): is empty; give it a value, or leave it out`},
		{args: "status --source-url postgres://app@127.0.0.1:1/app", environ: []string{"FORWARDER_SOURCE_POSTGRES_SLOT=durable"}, code: 1, last: "forwarder: connecting to PostgreSQL: ..."},
		{args: "run " + kafka + " " + url, environ: []string{"FORWARDER_SOURCE_POSTGRES_SLOT=durable"}, code: 2, last: `forwarder: source.postgres.slot = "durable" (FORWARDER_SOURCE_POSTGRES_SLOT): is given, but source.postgres.mode is poll; set source.postgres.mode to stream, or remove it`},
		{args: "run " + kafka, environ: []string{"FORWARDER_SOURCE_POSTGRES_URL=postgres://u:${PGPASS}@h/db"}, code: 2, last: `forwarder: source.postgres.url = postgres://(hidden) (FORWARDER_SOURCE_POSTGRES_URL): uses the variable PGPASS, which is not set; ...`},

		{args: "run --config=" + missing, code: 2, last: "forwarder: --config = \"" + missing + "\": cannot be read: no such file or directory; ..."},
		{args: "run --config=" + dir, code: 2, last: "forwarder: --config = \"" + dir + "\": cannot be read: is a directory; ..."},
		{args: "run --config=" + broken, code: 2, last: "forwarder: --config = \"" + broken + "\" (" + broken + ":..."},
		{args: "init --print --config=" + typo, code: 2, last: "forwarder: log.levle (" + typo + ":1): is not a setting; did you mean log.level?"},

		{args: "parked --admin-listen=127.0.0.1:1", code: 1, last: "forwarder: ..."},
	} {
		t.Run(c.args, func(t *testing.T) {
			got := execute(t, exec.Command(binary, strings.Fields(c.args)...), c.environ...)
			if got.code != c.code {
				t.Errorf("exit code is %d, want %d", got.code, c.code)
			}
			if !strings.HasPrefix(got.stdout, c.stdout) || c.code != 0 && got.stdout != "" {
				t.Errorf("standard output is %q, want %q", got.stdout, c.stdout)
			}
			want, open := strings.CutSuffix(c.last, "...")
			if last := got.lastLine(); last != want && !(open && strings.HasPrefix(last, want)) {
				t.Errorf("last line on standard error is\n%q, want\n%q", last, c.last)
			}
		})
	}
}

func TestC100UnreachableAdminSaysWhere(t *testing.T) {
	got := execute(t, exec.Command(binary, "parked", "--admin-listen", "127.0.0.1:1"))
	if got.code != 1 || !strings.Contains(got.lastLine(), "127.0.0.1:1") || !strings.Contains(got.lastLine(), "refused") {
		t.Errorf("exit %d, last line %q", got.code, got.lastLine())
	}
}

// TestC100OutputThatGoesNowhere: whoever asks for an answer and cannot get it sees a failure.
func TestC100OutputThatGoesNowhere(t *testing.T) {
	for _, args := range []string{"version", "help", "run --help", "init --print"} {
		shell := func(redirect string) result {
			return execute(t, exec.Command("sh", "-c", binary+" "+args+" "+redirect))
		}
		for redirect, want := range map[string]string{
			">&-":        "forwarder: writing to standard output: it is closed",
			">/dev/full": "forwarder: writing to standard output: write /dev/stdout: no space left on device",
		} {
			if got := shell(redirect); got.code != 1 || got.lastLine() != want {
				t.Errorf("%s %s: exit %d, last line %q", args, redirect, got.code, got.lastLine())
			}
		}
		if got := shell(">/dev/null"); got.code != 0 || got.stderr != "" {
			t.Errorf("%s >/dev/null: exit %d, %q", args, got.code, got.stderr)
		}

		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		reader.Close()
		cmd := exec.Command(binary, strings.Fields(args)...)
		cmd.Stdout = writer
		if got := execute(t, cmd); got.code != 1 || !strings.HasSuffix(got.lastLine(), "broken pipe") {
			t.Errorf("%s into a pipe that nobody reads: exit %d, last line %q", args, got.code, got.lastLine())
		}
		writer.Close()
	}
}

// selfAs returns the test binary as the program, with another body of run.
func selfAs(t *testing.T) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(self, "run", "--source-url", "postgres://u@h/db", "--brokers", "k:1")
}

func TestC100PanicAndFatal(t *testing.T) {
	for body, want := range map[string]string{
		"panic": "forwarder: internal error: broken; invariant",
		"fatal": "forwarder: the server; has gone",
	} {
		got := execute(t, selfAs(t), asProgram+"="+body)
		if got.code != 1 || got.lastLine() != want {
			t.Errorf("%s: exit %d, last line %q", body, got.code, got.lastLine())
		}
	}
	// The runtime ends a panic of another goroutine by itself.
	got := execute(t, selfAs(t), asProgram+"=goroutine panic")
	if got.code <= 0 || !strings.Contains(got.stderr, "broken invariant") {
		t.Errorf("a goroutine's panic: exit %d, %q", got.code, got.stderr)
	}
}

// TestSignals: the first stops in order, the second at once.
func TestSignals(t *testing.T) {
	for _, c := range []struct {
		body string
		says []string // what it says before each signal
		code int
		last string
	}{
		{"waits", []string{"ready"}, 0, ""},
		{"is stuck", []string{"ready", "stopping"}, 1, "forwarder: ended at once by a second signal; what was not deleted is sent again"},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			cmd := selfAs(t)
			var stderr bytes.Buffer
			cmd.Stderr, cmd.Env = &stderr, []string{asProgram + "=" + c.body}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(stdout)
			for i, want := range c.says {
				if line, err := lines.ReadString('\n'); err != nil || line != want+"\n" {
					t.Errorf("%s: it says %q, %v; want %q", c.body, line, err, want)
				}
				if i > 0 {
					<-time.After(2 * doubledSignal) // a second signal at once counts as the first
				}
				// The first is doubled, as timeout(1) does.
				for range 2 - i {
					if err := cmd.Process.Signal(sig); err != nil {
						t.Error(err)
					}
				}
			}
			if _, err := io.Copy(io.Discard, lines); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // a non-zero code is an error; the code is looked at below
			if got := (result{code: cmd.ProcessState.ExitCode(), stderr: stderr.String()}); got.code != c.code || got.lastLine() != c.last {
				t.Errorf("%s, %v: exit %d, last line %q", c.body, sig, got.code, got.lastLine())
			}
		}
	}
}
