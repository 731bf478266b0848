package repeat

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// newLog returns a Log of 30 s and what it wrote, a line each, without times.
func newLog() (*Log, func() []string) {
	var buf bytes.Buffer
	handler := slog.NewTextHandler(&buf, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})
	return New(slog.New(handler), 30*time.Second), func() []string {
		return strings.Split(strings.TrimSuffix(buf.String(), "\n"), "\n")
	}
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("log is\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestARepeatedCauseIsLoggedOncePerPeriodWithItsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog()
		for range 70 {
			l.Log(context.Background(), slog.LevelWarn, "broker", "waiting", "err", "refused")
			time.Sleep(time.Second)
		}
		wantLines(t, lines(),
			"level=WARN msg=waiting err=refused",
			"level=WARN msg=waiting err=refused repeated=29",
			"level=WARN msg=waiting err=refused repeated=29")
	})
}

func TestALineIsDueAfterExactlyThePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog()
		l.Log(context.Background(), slog.LevelWarn, "k", "one")
		time.Sleep(30*time.Second - time.Nanosecond)
		l.Log(context.Background(), slog.LevelWarn, "k", "two")
		time.Sleep(time.Nanosecond)
		l.Log(context.Background(), slog.LevelWarn, "k", "three")
		wantLines(t, lines(), "level=WARN msg=one", "level=WARN msg=three repeated=1")
	})
}

func TestDifferentKeysDoNotSilenceEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog()
		for range 3 {
			l.Log(context.Background(), slog.LevelWarn, "a", "first")
			l.Log(context.Background(), slog.LevelError, "b", "second")
		}
		wantLines(t, lines(), "level=WARN msg=first", "level=ERROR msg=second")
	})
}

func TestRecoveryIsLoggedOnceAndTheCauseStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog()
		l.Recovered("k", "back") // never away
		for range 4 {
			l.Log(context.Background(), slog.LevelWarn, "k", "away")
			time.Sleep(time.Second)
		}
		l.Recovered("k", "back", "count", 7)
		l.Recovered("k", "back")
		l.Log(context.Background(), slog.LevelWarn, "k", "away")
		wantLines(t, lines(),
			"level=WARN msg=away",
			"level=INFO msg=back count=7 lasted=4s repeated=3",
			"level=WARN msg=away")
	})
}

func TestTheCallersArgumentsAreNotWrittenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newLog()
		args := append(make([]any, 0, 8), "a", 1)
		l.Log(context.Background(), slog.LevelWarn, "k", "m", args...)
		l.Log(context.Background(), slog.LevelWarn, "k", "m", args...)
		time.Sleep(time.Minute)
		l.Log(context.Background(), slog.LevelWarn, "k", "m", args...)
		l.Recovered("k", "m", args...)
		if spare := args[:cap(args)]; spare[2] != nil {
			t.Errorf("the spare room of the caller's slice holds %v", spare[2])
		}
	})
}

func TestManyCausesAreForgottenOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog()
		for i := range maxCauses {
			l.Log(context.Background(), slog.LevelWarn, fmt.Sprint(i), "m")
			time.Sleep(time.Microsecond)
		}
		l.Log(context.Background(), slog.LevelWarn, "0", "m") // seen again: 1 is the oldest now
		time.Sleep(time.Microsecond)
		l.Log(context.Background(), slog.LevelWarn, "one more", "m")
		if len(l.causes) != maxCauses {
			t.Errorf("%d causes are remembered, want %d", len(l.causes), maxCauses)
		}
		before := len(lines())
		l.Log(context.Background(), slog.LevelWarn, "0", "m")
		if len(lines()) != before {
			t.Error("cause 0 was forgotten although it was seen lately")
		}
		l.Log(context.Background(), slog.LevelWarn, "1", "m")
		if len(lines()) != before+1 {
			t.Error("cause 1 was kept although it was the oldest")
		}
	})
}

func TestConcurrentCausesAreCountedExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLog()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 1000 {
					l.Log(context.Background(), slog.LevelWarn, "k", "m")
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		l.Log(context.Background(), slog.LevelWarn, "k", "m")
		wantLines(t, lines(), "level=WARN msg=m", "level=WARN msg=m repeated=7999")
	})
}
