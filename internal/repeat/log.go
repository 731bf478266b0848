package repeat

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// maxCauses bounds the causes that are remembered. A cause that is forgotten is logged in
// full when it occurs again.
const maxCauses = 1024

// Log writes to a logger and leaves repetitions out. It is safe for concurrent use.
type Log struct {
	logger *slog.Logger
	every  time.Duration

	mu     sync.Mutex
	causes map[string]*cause
}

// cause is active from its first Log to its Recovered.
type cause struct {
	since  time.Time // first occurrence
	logged time.Time // last line
	seen   time.Time // last occurrence
	left   int       // occurrences since the last line
}

// New returns a Log that writes each cause at most once in every.
func New(logger *slog.Logger, every time.Duration) *Log {
	return &Log{logger: logger, every: every, causes: map[string]*cause{}}
}

// Log writes the message, unless key was written less than the period ago: then it is
// counted, and the next line for the key says how many were left out (repeated=N).
func (l *Log) Log(ctx context.Context, level slog.Level, key, msg string, args ...any) {
	if left, ok := l.occur(key); ok {
		if left > 0 {
			args = append(args[:len(args):len(args)], slog.Int("repeated", left))
		}
		l.logger.Log(ctx, level, msg, args...)
	}
}

// occur notes an occurrence. It returns whether a line is due, and how many were left out.
func (l *Log) occur(key string) (left int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	c := l.causes[key]
	if c == nil {
		if len(l.causes) >= maxCauses {
			l.forgetOldest()
		}
		l.causes[key] = &cause{since: now, logged: now, seen: now}
		return 0, true
	}
	c.seen = now
	if now.Sub(c.logged) < l.every {
		c.left++
		return 0, false
	}
	left = c.left
	c.logged, c.left = now, 0
	return left, true
}

func (l *Log) forgetOldest() {
	var oldest string
	var seen time.Time
	for key, c := range l.causes {
		if seen.IsZero() || c.seen.Before(seen) {
			oldest, seen = key, c.seen
		}
	}
	delete(l.causes, oldest)
}

// Recovered writes the message at Info if key occurred since it last recovered, with the
// time that it lasted (lasted) and the occurrences that were left out of the log. Else it
// does nothing, and is cheap enough to be called after every success.
func (l *Log) Recovered(key, msg string, args ...any) {
	l.mu.Lock()
	c := l.causes[key]
	delete(l.causes, key)
	l.mu.Unlock()
	if c == nil {
		return
	}
	args = append(args[:len(args):len(args)], slog.Duration("lasted", time.Since(c.since)))
	if c.left > 0 {
		args = append(args, slog.Int("repeated", c.left))
	}
	l.logger.Info(msg, args...)
}
