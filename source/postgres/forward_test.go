package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// recorder is a broker that remembers what it acknowledged. Events for which keep is true
// stay in flight until release.
type recorder struct {
	keep   func(*source.Event) bool
	refuse func(*source.Event) bool // for good

	mu      sync.Mutex
	acked   []*source.Event
	kept    []*source.Event
	reports func([]source.Outcome)
}

func (r *recorder) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = report
	for _, run := range runs {
		var held []source.TopicKey
		for _, ev := range run {
			if r.keep != nil && r.keep(ev) {
				r.kept = append(r.kept, ev)
				continue
			}
			if class, refused := r.refused(ev, held); refused {
				held = append(held, ev.TopicKey())
				report([]source.Outcome{{ID: ev.ID, Class: class, Err: errors.New("refused")}})
				continue
			}
			r.ack(ev)
		}
	}
}

// refused says whether an event is refused, or held back by one of its key in the same run.
func (r *recorder) refused(ev *source.Event, held []source.TopicKey) (source.Class, bool) {
	if ev.Key != nil && slices.Contains(held, ev.TopicKey()) {
		return source.HeldBack, true
	}
	return source.Record, r.refuse != nil && r.refuse(ev)
}

// Recall takes nothing back: what is kept counts as on the wire.
func (r *recorder) Recall() {}

func (r *recorder) ack(ev *source.Event) {
	r.acked = append(r.acked, ev)
	r.reports([]source.Outcome{{ID: ev.ID, Class: source.Acked}})
}

// release acknowledges what is in flight, and everything from now on.
func (r *recorder) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep = nil
	for _, ev := range r.kept {
		r.ack(ev)
	}
	r.kept = nil
}

func (r *recorder) inFlight() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.kept)
}

func (r *recorder) events() []*source.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.acked)
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.acked)
}

// witness is a source that notes the reads that pass it.
type witness struct {
	*Source
	mu     sync.Mutex
	begun  int
	failed []error
	starts int             // reads from the start of the table that were answered
	last   source.Read     // the last read with a floor above the start
	seen   map[int64][]int // by row, the numbers of the reads that returned it
}

func (w *witness) Read(ctx context.Context, read *source.Read) (*source.Page, error) {
	w.mu.Lock()
	w.begun++
	n := w.begun
	w.mu.Unlock()
	page, err := w.Source.Read(ctx, read)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			w.failed = append(w.failed, err)
		}
		return nil, err
	}
	if read.Floor == lanes.Start {
		w.starts++
	} else {
		w.last = *read
		w.last.Known = slices.Clone(read.Known)
	}
	for _, ev := range page.Events {
		w.seen[ev.ID] = append(w.seen[ev.ID], n)
	}
	return page, nil
}

func (w *witness) reads() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun
}

func (w *witness) failures() []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.failed)
}

// forwarding is a forwarder at work.
type forwarding struct {
	*lanes.Forwarder
	t      testing.TB
	source *witness
	sink   *recorder
	stop   func() // ends it in order, once
	logged *logText
}

// forward starts a forwarder over the source.
func forward(t testing.TB, s *Source, sink *recorder, change ...func(*lanes.Config)) *forwarding {
	t.Helper()
	cfg := lanes.Config{Lanes: s.Lanes()}
	for _, c := range change {
		c(&cfg)
	}
	f := &forwarding{t: t, source: &witness{Source: s, seen: make(map[int64][]int)}, sink: sink, logged: &logText{}}
	var err error
	f.Forwarder, err = lanes.NewForwarder(cfg, f.source, sink, f.logged.logger(), patience)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, lanes.Sole{Lanes: s.Lanes()}) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the forwarder ended with: %v", err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// acked waits for the next acknowledgements, n in all.
func (f *forwarding) acked(n int) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("%d events acknowledged", n), func() bool { return f.sink.count() >= n })
}

// drained waits until the outbox is empty.
func (f *forwarding) drained(w *world) {
	f.t.Helper()
	eventually(f.t, "the outbox is empty", func() bool { return w.rows() == 0 })
}

// logText gathers a log.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// logger writes everything, from debug on.
func (l *logText) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// quick lets a transaction be set aside after a moment.
func quick(cfg *lanes.Config) { cfg.TransactionAge = 20 * time.Millisecond }
