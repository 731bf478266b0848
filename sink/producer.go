package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/source"
)

// ErrClosed is the error of the outcomes of events that the Producer no longer sends.
var ErrClosed = errors.New("the producer is closed")

// errHeldBack is the error of HeldBack outcomes.
var errHeldBack = errors.New("an earlier event of the key failed in the same run")

// A Producer sends events to Kafka. Make one with New and end it with Close.
//
// Lock order: topic.mu, links.mu, Producer.mu, each optional; flight.mu is taken alone. None
// of them but links.mu is held while the client is called.
type Producer struct {
	cfg    Config
	log    *slog.Logger
	links  links
	health *health

	ctx    context.Context // ends when Close begins
	cancel context.CancelFunc
	work   sync.WaitGroup // our goroutines, see spawn

	serial sync.Mutex // held by Submit
	forgot time.Time  // when forgetMissing last looked; guarded by serial

	mu       sync.Mutex
	closed   bool
	clients  map[*kgo.Client]struct{} // not yet closed
	topics   map[string]*topic
	flights  map[*flight]struct{}
	watching bool
	settled  *sync.Cond // flights has become empty

	promised func(*kgo.Record, error) // the method value of promise, made once
}

// New returns a Producer that connects when it is first used. The only goroutines that it
// starts are the Kafka client's own.
func New(cfg Config) (*Producer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	p := &Producer{
		cfg:     cfg,
		log:     cfg.Logger,
		health:  newHealth(cfg),
		clients: make(map[*kgo.Client]struct{}),
		topics:  make(map[string]*topic),
		flights: make(map[*flight]struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.settled = sync.NewCond(&p.mu)
	p.promised = p.promise
	p.links.open = p.openClient
	p.links.retire = p.retireClient
	if err := p.links.renew(nil); err != nil {
		p.cancel()
		return nil, err
	}
	return p, nil
}

// Submit sends the runs and returns when the client has them or a question about their topic
// is under way. Each run is one lane's events in order. report gets exactly one outcome for
// each event, in any number of calls from any goroutine, also before Submit returns; it must
// not block. Concurrent calls are carried out one after the other.
func (p *Producer) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	p.serial.Lock()
	defer p.serial.Unlock()
	p.replaceRuined()
	p.forgetMissing()
	r := p.newRound()
	for _, run := range runs {
		if len(run) > 0 {
			r.launch(run, report)
		}
	}
	r.end()
}

// Recall takes back what was submitted, for it is not ours to send any more: nothing of it is
// put on the wire from now on, and its events get the outcome Broker. Those that were on the
// wire may have been written, or may yet be. It does not wait; what is submitted from now on
// is not touched.
//
// The client keeps a record that waits behind one in flight, whatever becomes of its context.
// So the clients are closed, and a new one takes over.
func (p *Producer) Recall() {
	if !p.renew(p.links.current.Load()) {
		return
	}
	cur := p.links.current.Load().client
	p.mu.Lock()
	var old []*kgo.Client
	for c := range p.clients {
		if c != cur {
			old = append(old, c)
			delete(p.clients, c)
		}
	}
	p.mu.Unlock()
	for _, c := range old {
		if !p.spawn(c.Close) {
			c.Close()
		}
	}
}

// Close ends all sending. Events that are on their way get their outcomes before it returns:
// those whose acknowledgement has not come are reported as Broker, and may have been written.
// It does not wait for brokers.
func (p *Producer) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if first {
		p.cancel()
		for _, c := range p.takeClients() {
			c.Close()
		}
	}
	p.work.Wait()
	p.mu.Lock()
	for len(p.flights) > 0 {
		p.settled.Wait()
	}
	p.mu.Unlock()
}

// spawn runs fn in a goroutine that Close awaits, unless Close has begun.
func (p *Producer) spawn(fn func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.work.Go(fn)
	return true
}

// promise takes the client's word on a record. The client calls it serially.
func (p *Producer) promise(r *kgo.Record, err error) {
	s := r.Context.(*slot)
	if err == nil {
		p.health.acked()
		s.settle(source.Acked, nil)
		return
	}
	class := classify(err)
	t := s.group.topic
	switch {
	case doubts(class):
		t.doubt(errors.Is(err, kerr.InvalidTimestamp))
	case errors.Is(err, kgo.ErrClientClosed):
	default:
		// With unlimited retries the client gives a record up only when its producer id is
		// beyond repair, and that does not heal by itself.
		t.ruin()
		p.health.refused(err)
	}
	s.settle(class, p.describe(class, s.event.Topic, err))
}

// describe words a failure for whoever has to act on it.
func (p *Producer) describe(class source.Class, topic string, err error) error {
	switch {
	case errors.Is(err, kgo.ErrClientClosed):
		return ErrClosed
	case class == source.Broker:
		cause, _ := p.cfg.explain(err)
		return fmt.Errorf("kafka at %s: %w%s", p.cfg.reached(), err, cause)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("topic %q: the user may not write it; grant Write on the topic: %w", topic, err)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("topic %q: the topic does not exist; create it: %w", topic, err)
	case errors.Is(err, kerr.UnknownTopicID):
		return fmt.Errorf("topic %q: the topic was deleted and made again: %w", topic, err)
	default:
		return fmt.Errorf("topic %q: the broker refused the batch: %w", topic, err)
	}
}

// openClient makes a Kafka client; it is the links' open.
func (p *Producer) openClient() (*kgo.Client, error) {
	part := newPartitioner(func(name string) *atomic.Int32 { return &p.topic(name).seen })
	limit := func(name string) int32 {
		// The client asks about the empty name to validate its configuration.
		if name == "" {
			return int32(p.cfg.MaxBatchBytes)
		}
		return p.topic(name).limit.Load()
	}
	client, err := kgo.NewClient(clientOptions(p.cfg, limit, part, p.health)...)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.clients[client] = struct{}{}
	}
	p.mu.Unlock()
	if closed {
		client.Close()
		return nil, ErrClosed
	}
	return client, nil
}

// retireClient closes a client that has nothing in flight. It may be called with locks held.
func (p *Producer) retireClient(c *kgo.Client) {
	// When Close has begun it closes every client itself.
	p.spawn(func() {
		p.mu.Lock()
		_, ours := p.clients[c]
		delete(p.clients, c)
		p.mu.Unlock()
		if ours {
			c.Close()
		}
	})
}

// takeClients returns the clients that are still to be closed and forgets them.
func (p *Producer) takeClients() []*kgo.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Collect(maps.Keys(p.clients))
	clear(p.clients)
	return all
}

// topic returns what is known about a topic.
func (p *Producer) topic(name string) *topic {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.topics[name]
	if t == nil {
		t = &topic{name: name}
		p.topics[name] = t
	}
	return t
}

// allTopics returns the topics of this moment.
func (p *Producer) allTopics() []*topic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.topics))
}
