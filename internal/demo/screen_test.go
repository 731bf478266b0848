package demo

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// buffer is a bytes.Buffer for several goroutines, which tells when a text has appeared.
type buffer struct {
	mu     sync.Mutex
	text   bytes.Buffer
	awaits string
	seen   chan struct{}
}

// newBuffer makes a buffer whose seen is closed when the text awaited has been written.
func newBuffer(awaits string) *buffer { return &buffer{awaits: awaits, seen: make(chan struct{})} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.text.Write(p)
	if b.awaits != "" && strings.Contains(b.text.String(), b.awaits) {
		b.awaits = ""
		close(b.seen)
	}
	return n, err
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func noEnvironment(string) string { return "" }

// terminalScreen is a screen on a pretended terminal.
func terminalScreen(out *buffer, width int) *screen {
	s := newScreen(out, noEnvironment)
	s.width = func() int { return width }
	return s
}

func TestScreenKeepsTheLiveLineBelow(t *testing.T) {
	out := newBuffer("")
	s := terminalScreen(out, 20)
	s.printf("first")
	s.show(0, func(width int) string { return cut("live 1 and much more text", width) })
	s.printf("second")
	s.show(spinEvery, func(int) string { return "live 2" })
	s.hide()
	s.hide()
	s.printf("third")
	want := "first\n" +
		clearLine + "| live 1 and much m" +
		clearLine + "second\n" + "| live 1 and much m" +
		clearLine + "/ live 2" +
		clearLine + "third\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func TestScreenTakesLogLines(t *testing.T) {
	out := newBuffer("")
	s := terminalScreen(out, 20)
	s.show(0, func(int) string { return "live" })
	slog.New(slog.NewTextHandler(s, nil)).Warn("the broker is away")
	if got := out.String(); !strings.Contains(got, clearLine+"time=") || !strings.HasSuffix(got, `msg="the broker is away"`+"\n| live") {
		t.Errorf("got %q", got)
	}
}

func TestStepsOnATerminalAndElsewhere(t *testing.T) {
	boom := errors.New("boom")
	out := newBuffer("")
	s := newScreen(out, noEnvironment)
	if err := s.step("Kafka", "starting Kafka", func() (string, error) { return "127.0.0.1:9092", nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.step("Outbox", "creating the outbox", func() (string, error) { return "", boom }); !errors.Is(err, boom) || err.Error() != "creating the outbox: boom" {
		t.Errorf("got %v", err)
	}
	want := "  starting Kafka ...\n  ok Kafka       127.0.0.1:9092\n  creating the outbox ...\n  -- creating the outbox\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if strings.ContainsAny(out.String(), "\r\x1b") {
		t.Error("control characters where there is no terminal")
	}

	// On a terminal the work lasts until the spinner has been drawn.
	out = newBuffer("/ starting Kafka ... 0.")
	s = terminalScreen(out, 80)
	if err := s.step("Kafka", "starting Kafka", func() (string, error) { <-out.seen; return "127.0.0.1:9092", nil }); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if last := strings.LastIndex(text, clearLine); !strings.Contains(text, clearLine+"  ok Kafka       127.0.0.1:9092\n") || last < 0 || text[last:] != clearLine {
		t.Errorf("got %q", text)
	}
}

func TestScreenStopsAtTheFirstFailedWrite(t *testing.T) {
	closed := &closedPipe{}
	s := newScreen(closed, noEnvironment)
	if err := s.broken(); err != nil {
		t.Errorf("before a write: %v", err)
	}
	s.printf("one")
	s.printf("two")
	if err := s.broken(); !errors.Is(err, errClosedPipe) || closed.writes != 1 {
		t.Errorf("got %v after %d writes", err, closed.writes)
	}
}

var errClosedPipe = errors.New("broken pipe")

type closedPipe struct{ writes int }

func (c *closedPipe) Write([]byte) (int, error) {
	c.writes++
	return 0, errClosedPipe
}

func TestMarksFollowTheLocale(t *testing.T) {
	for _, c := range []struct {
		environment map[string]string
		want        string
	}{
		{nil, "ok"},
		{map[string]string{"LANG": "C"}, "ok"},
		{map[string]string{"LANG": "de_DE.UTF-8"}, "✓"},
		{map[string]string{"LANG": "de_DE.utf8"}, "✓"},
		{map[string]string{"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, "ok"},
		{map[string]string{"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "✓"},
	} {
		s := newScreen(newBuffer(""), func(name string) string { return c.environment[name] })
		if s.marks.done != c.want {
			t.Errorf("%v: got %q, want %q", c.environment, s.marks.done, c.want)
		}
		if s.terminal() {
			t.Error("a buffer passes for a terminal")
		}
	}
}
