package mongo

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/internal/repeat"
	"github.com/outbox-forwarder/forwarder/lanes"
)

// link keeps an outbox's change stream: it is begun anew whenever it is lost, and its state is
// told.
type link struct {
	src *Source
	log *repeat.Log

	mu        sync.Mutex // guards what follows
	streaming bool
	since     time.Time // of streaming
	waits     string    // why there is no change stream, in an operator's words
	broken    bool      // and nobody but an operator mends it
	begun     uint64    // how often one was begun
	again     uint64    // how often one went on after an interruption
	lastHeard time.Time
	lastTime  bson.Timestamp // of the last change
}

func newLink(src *Source) *link {
	return &link{src: src, log: repeat.New(src.log, lanes.LogEvery), since: time.Now(), waits: "it is starting"}
}

const (
	minReconnect = 100 * time.Millisecond
	maxReconnect = 5 * time.Second
)

// keep follows change streams until ctx is done, with pauses that grow while they cannot be had.
func (l *link) keep(ctx context.Context, follow func(context.Context) error) {
	wait := minReconnect
	for {
		began := time.Now()
		err := follow(ctx)
		if ctx.Err() != nil {
			return
		}
		l.lost(ctx, err)
		if time.Since(began) > time.Minute {
			wait = minReconnect
		}
		if pause(ctx, wait) != nil {
			return
		}
		wait = min(2*wait, maxReconnect)
	}
}

// Causes for the change stream's own log.
const (
	causeLost        = "lost"
	causeInterrupted = "interrupted"
	causeRecord      = "record"
)

// lost notes why there is no change stream, and says so.
func (l *link) lost(ctx context.Context, err error) {
	text, broken := err.Error(), code(err) == unauthorized
	if broken {
		text = l.src.streamProblem(err)
	}
	l.set(false, text, broken)
	level, message := lossOf(err)
	if broken {
		level, message = slog.LevelError, "the outbox cannot be streamed until this is mended"
	}
	l.log.Log(ctx, level, causeLost, message, "collection", l.src.Table(), "err", text)
}

// interrupted notes that the change stream waits to go on.
func (l *link) interrupted(ctx context.Context, err error) {
	l.set(false, err.Error(), false)
	l.log.Log(ctx, slog.LevelWarn, causeInterrupted, "the change stream is interrupted, it goes on from where it was", "collection", l.src.Table(), "err", err)
}

// gained notes that a change stream was begun.
func (l *link) gained() {
	l.set(true, "", false)
	l.mu.Lock()
	l.begun++
	first := l.begun == 1
	l.mu.Unlock()
	if first {
		l.src.log.Info("streaming", "collection", l.src.Table())
	}
	l.log.Recovered(causeLost, "the outbox is streamed again")
}

// resumed counts that a change stream went on after an interruption.
func (l *link) resumed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again++
}

// idle notes that there is nothing to stream for us.
func (l *link) idle(why string) { l.set(false, why, false) }

// wait notes what the change stream waits for, before it is there.
func (l *link) wait(what string) { l.set(false, what, false) }

// warn says something about the outbox, at most once in a while for each cause.
func (l *link) warn(ctx context.Context, cause, what string, args ...any) {
	l.log.Log(ctx, slog.LevelWarn, cause, what, append([]any{"collection", l.src.Table()}, args...)...)
}

func (l *link) set(streaming bool, waits string, broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streaming != streaming {
		l.streaming, l.since = streaming, time.Now()
	}
	if streaming {
		l.lastHeard = time.Now()
	}
	l.waits, l.broken = waits, broken
}

// heard notes that the server has answered, with a change of that time if there is one.
func (l *link) heard(at bson.Timestamp) {
	l.mu.Lock()
	l.lastHeard = time.Now()
	if !at.IsZero() {
		l.lastTime = at
	}
	streaming := l.streaming
	l.mu.Unlock()
	if !streaming {
		l.set(true, "", false)
		l.log.Recovered(causeInterrupted, "the change stream goes on")
		l.log.Recovered(causeLost, "the outbox is streamed again")
	}
}

func (l *link) unready() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.broken {
		return nil
	}
	return []string{l.waits}
}
