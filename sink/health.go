package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// health follows what the clients see of the brokers, words it, and logs its changes. It is
// a hook of every client.
type health struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	brokers map[string]*brokerHealth // by address; bounded by the cluster's size
	away    bool                     // logged: no broker is reachable
	since   time.Time                // when the first of the failures began that made it so
	delay   *delay                   // what is in flight for too long, if anything
	lapses  int                      // not yet logged
	lapsed  time.Time                // when lapses were last logged

	refusal atomic.Pointer[refusal]
}

// brokerHealth is how the last attempt to connect to a broker ended.
type brokerHealth struct {
	failing time.Time // since when attempts fail; zero when the last one succeeded
	err     error
}

// delay says what has been in flight for longer than patience.
type delay struct {
	since  time.Time
	topic  string
	reason string // what the brokers say about the topic; may be empty
	logged bool
}

// refusal is a failure that concerns all records.
type refusal struct {
	since time.Time
	err   error
}

func newHealth(cfg Config) *health {
	return &health{cfg: cfg, log: cfg.Logger, brokers: make(map[string]*brokerHealth)}
}

// OnBrokerConnect is called by the client after each attempt to connect, log-in included.
func (h *health) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) {
		return // ours
	}
	addr := net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port)))
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.brokers[addr]
	if b == nil {
		b = new(brokerHealth)
		h.brokers[addr] = b
	}
	if err == nil {
		*b = brokerHealth{}
		if h.away {
			h.away = false
			h.log.Info("kafka is reachable again", "broker", addr, "after", time.Since(h.since).Round(time.Millisecond))
		}
		return
	}
	if b.failing.IsZero() {
		b.failing = time.Now()
	}
	b.err = err
	if !h.away && h.noneUp() {
		h.away = true
		h.since = b.failing
		cause, _ := h.cfg.explain(err)
		h.log.Warn("no kafka broker is reachable", "brokers", h.cfg.reached(), "broker", addr, "err", fmt.Sprint(err, cause))
	}
}

// noneUp reports whether the last attempt at every known broker failed. Called with mu held.
func (h *health) noneUp() bool {
	for _, b := range h.brokers {
		if b.failing.IsZero() {
			return false
		}
	}
	return len(h.brokers) > 0
}

// cause returns the connection error behind a failure that only says that time was up.
func (h *health) cause(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, addr := range slices.Sorted(maps.Keys(h.brokers)) {
		if b := h.brokers[addr]; b.err != nil {
			return fmt.Errorf("no answer in time; connecting to %s: %w", addr, b.err)
		}
	}
	return fmt.Errorf("no answer in time: %w", err)
}

// refused notes a failure that concerns all records, until one is acknowledged.
func (h *health) refused(err error) {
	if h.refusal.CompareAndSwap(nil, &refusal{time.Now(), err}) {
		cause, _ := h.cfg.explain(err)
		h.log.Warn("kafka refuses all records", "brokers", h.cfg.reached(), "err", fmt.Sprint(err, cause))
	}
}

// acked notes an acknowledgement. It is called for every record.
func (h *health) acked() {
	if r := h.refusal.Load(); r != nil && h.refusal.CompareAndSwap(r, nil) {
		h.log.Info("kafka takes records again", "after", time.Since(r.since).Round(time.Millisecond))
	}
}

// delayed notes that something is in flight for too long.
func (h *health) delayed(d delay) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.delay != nil {
		d.logged = h.delay.logged
	}
	h.delay = &d
	// Where no broker is reachable that was the news.
	if !d.logged && !h.away {
		h.delay.logged = true
		h.log.Warn("kafka does not acknowledge", "topic", d.topic, "since", time.Since(d.since).Round(time.Second), "reason", d.reason)
	}
}

// flowing notes that nothing is in flight for too long.
func (h *health) flowing() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.delay != nil && h.delay.logged {
		h.log.Info("kafka acknowledges again", "topic", h.delay.topic)
	}
	h.delay = nil
}

// lapseEvery is the shortest time between two lines about lapses.
const lapseEvery = 30 * time.Second

// lapse is called by the client when a broker has lost track of the producer's sequence
// numbers, so that what is sent again may be written twice.
func (h *health) lapse(topic string, partition int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lapses++
	if now := time.Now(); now.Sub(h.lapsed) >= lapseEvery {
		h.log.Warn("a broker lost track of what it had written; records may repeat", "topic", topic, "partition", partition, "count", h.lapses)
		h.lapsed, h.lapses = now, 0
	}
}

// reasons words everything that keeps events from reaching Kafka.
func (h *health) reasons(now time.Time) []string {
	var out []string
	if r := h.refusal.Load(); r != nil {
		cause, _ := h.cfg.explain(r.err)
		out = append(out, fmt.Sprintf("kafka: all records refused for %s: %v%s", whole(now, r.since), r.err, cause))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.away {
		// Each address is named: a listener that advertises a wrong one shows only here.
		for _, addr := range slices.Sorted(maps.Keys(h.brokers)) {
			b := h.brokers[addr]
			cause, _ := h.cfg.explain(b.err)
			out = append(out, fmt.Sprintf("kafka: no broker reachable at %s for %s: %v%s", addr, whole(now, b.failing), b.err, cause))
		}
		return out
	}
	if d := h.delay; d != nil {
		text := fmt.Sprintf("kafka: no acknowledgement for topic %q for %s", d.topic, whole(now, d.since))
		if d.reason != "" {
			text += ": " + d.reason
		}
		out = append(out, text)
		for _, addr := range slices.Sorted(maps.Keys(h.brokers)) {
			if b := h.brokers[addr]; !b.failing.IsZero() {
				out = append(out, fmt.Sprintf("kafka: broker %s not reachable for %s: %v", addr, whole(now, b.failing), b.err))
			}
		}
	}
	return out
}

func whole(now, since time.Time) time.Duration { return now.Sub(since).Round(time.Second) }
