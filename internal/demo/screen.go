package demo

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// screen is the demo's output: lines that stay, and on a terminal one live line below them
// that is drawn again and again. It is safe for concurrent use, and as an io.Writer it takes
// log lines without tearing the live line.
type screen struct {
	mu    sync.Mutex
	out   io.Writer
	width func() int // nil where the output is no terminal
	marks marks
	live  string
	err   error // the first failed write; nothing is written after it
}

// marks are the few signs that need more than ASCII.
type marks struct {
	done, failed string
	spinner      []string
}

var (
	unicodeMarks = marks{"✓", "✗", []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}}
	asciiMarks   = marks{"ok", "--", []string{"|", "/", "-", `\`}}
)

// spinEvery is how long the spinner rests.
const spinEvery = 100 * time.Millisecond

// newScreen finds out what the output can show.
func newScreen(out io.Writer, getenv func(string) string) *screen {
	s := &screen{out: out, marks: asciiMarks}
	if speaksUTF8(getenv) {
		s.marks = unicodeMarks
	}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) && getenv("TERM") != "dumb" {
		s.width = func() int {
			if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
				return width
			}
			return 80
		}
	}
	return s
}

// speaksUTF8 reads the locale as the C library does.
func speaksUTF8(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToUpper(getenv(name)); value != "" {
			return strings.Contains(value, "UTF-8") || strings.Contains(value, "UTF8")
		}
	}
	return false
}

// terminal says whether there is a live line.
func (s *screen) terminal() bool { return s.width != nil }

// printf prints lines that stay.
func (s *screen) printf(format string, args ...any) {
	_, _ = s.Write(fmt.Appendf(nil, format+"\n", args...))
}

// Write prints whole lines that stay, above the live line. An error is kept for close.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text bytes.Buffer
	if s.live != "" {
		text.WriteString(clearLine)
	}
	text.Write(p)
	text.WriteString(s.live)
	s.write(text.Bytes())
	return len(p), nil
}

// clearLine goes to the start of the line and empties it.
const clearLine = "\r\x1b[2K"

// show draws the live line again, behind the spinner. Only for terminals.
func (s *screen) show(spins time.Duration, render func(width int) string) {
	spin := s.marks.spinner[int(spins/spinEvery)%len(s.marks.spinner)]
	// The last column stays empty: filling it makes some terminals wrap.
	text := spin + " " + render(s.width()-3)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = text
	s.write([]byte(clearLine + text))
}

// hide removes the live line.
func (s *screen) hide() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != "" {
		s.live = ""
		s.write([]byte(clearLine))
	}
}

// write must be called with the lock held.
func (s *screen) write(p []byte) {
	if s.err == nil {
		_, s.err = s.out.Write(p)
	}
}

// broken returns the error of the first write that failed.
func (s *screen) broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return fmt.Errorf("writing to the screen: %w", s.err)
	}
	return nil
}

// step does one piece of work that takes a while: on a terminal with a live line that tells
// how long it has taken, else with a line when it begins. The result of do is printed as the
// line that stays.
func (s *screen) step(name, doing string, do func() (detail string, err error)) error {
	began := time.Now()
	if s.terminal() {
		stop := make(chan struct{})
		var spinner sync.WaitGroup
		spinner.Go(func() {
			tick := time.NewTicker(spinEvery)
			defer tick.Stop()
			for {
				took := time.Since(began)
				s.show(took, func(width int) string {
					return cut(fmt.Sprintf("%s ... %.1f s", doing, took.Seconds()), width)
				})
				select {
				case <-tick.C:
				case <-stop:
					return
				}
			}
		})
		defer func() { close(stop); spinner.Wait(); s.hide() }()
	} else {
		s.printf("  %s ...", doing)
	}
	detail, err := do()
	if err != nil {
		s.printf("  %s %s", s.marks.failed, doing)
		return fmt.Errorf("%s: %w", doing, err)
	}
	s.printf("  %s %-11s %s", s.marks.done, name, detail)
	return nil
}
