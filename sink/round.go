package sink

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outbox-forwarder/forwarder/source"
)

// A round is one hand-over of groups to the client: a Submit, or the release of the groups
// that waited for a topic.
type round struct {
	p   *Producer
	now time.Time
	// final: settings are as good as they get; nothing waits for better ones.
	final   bool
	ask     []*topic // to be asked about when the round ends; each is marked busy
	clients []usedClient
}

// usedClient is a client that got records in the round.
type usedClient struct {
	client *kgo.Client
	// quiet: it had little in flight before the round, so the round's records go out at once
	// instead of lingering for company.
	quiet bool
}

// quietBelow is the number of records in flight up to which latency comes before batching. A
// few hundred records in flight mean a rate at which a linger of milliseconds saves more
// than it costs.
const quietBelow = 256

func (p *Producer) newRound() *round { return &round{p: p, now: time.Now()} }

// launch sends one run on its way.
func (r *round) launch(run []*source.Event, report func([]source.Outcome)) {
	p := r.p
	f := newFlight(run, report, p.land)
	slots := newSlots(run)
	if !p.enlist(f) {
		g := f.newGroup(nil, slots)
		g.settleAll(source.Broker, ErrClosed)
		return
	}
	for len(slots) > 0 {
		e := slots[0].event
		if err := defect(e); err != nil {
			g := f.newGroup(nil, slots[:1])
			if f.heldBack(e) {
				g.settleAll(source.HeldBack, errHeldBack)
			} else {
				g.settleAll(source.Record, err)
			}
			slots = slots[1:]
			continue
		}
		n := 1
		for n < len(slots) && slots[n].event.Topic == e.Topic && slots[n].event.Defect == nil {
			n++
		}
		r.admit(f.newGroup(p.topic(e.Topic), slots[:n:n]))
		slots = slots[n:]
	}
}

// defect returns why the event cannot be a record of any topic, or nil.
func defect(e *source.Event) error {
	if e.Defect != nil { // which may be why there is no topic
		return &RejectedError{Topic: e.Topic, Reason: Defect, Err: e.Defect}
	}
	if err := checkTopicName(e.Topic); err != nil {
		return &RejectedError{Topic: e.Topic, Reason: IllegalTopic, Err: err}
	}
	return nil
}

// admit hands a new group over, or lets it wait for its topic.
func (r *round) admit(g *group) {
	t := g.topic
	t.mu.Lock()
	t.used = r.now
	if !t.ready || !t.usable(r.now) {
		r.wait(g)
		t.mu.Unlock()
		return
	}
	if !t.busy && r.now.Sub(t.tried) > r.p.cfg.TopicMaxAge {
		t.busy = true
		r.ask = append(r.ask, t)
	}
	terms := r.take(t, g)
	t.mu.Unlock()
	r.hand(g, terms)
}

// wait queues a group until its topic is ready. Called with topic.mu held.
func (r *round) wait(g *group) {
	t := g.topic
	t.ready = false
	t.waiting = append(t.waiting, g)
	if !t.busy {
		t.busy = true
		r.ask = append(r.ask, t)
	}
}

// terms are what a group is handed over with, fixed under topic.mu.
type terms struct {
	set      *settings
	client   *kgo.Client // nil when nothing may be produced
	sendTime bool
}

// take counts the group into its topic and gives the topic a link. Called with topic.mu held.
func (r *round) take(t *topic, g *group) terms {
	t.open++
	g.admitted = true
	if t.set.err != nil {
		return terms{set: t.set}
	}
	if cur := r.p.links.current.Load(); t.link == nil || t.open == 1 && t.link != cur {
		r.p.dropLink(t)
		t.limit.Store(t.set.batchLimit())
		t.linkID = t.set.id
		t.link = r.p.links.acquire()
	}
	g.partitions = t.partitionCount()
	return terms{t.set, t.link.client, t.sendTime}
}

// hand gives the group's records to the client, in order.
func (r *round) hand(g *group, with terms) {
	if with.client == nil {
		g.settleAll(source.Topic, with.set.err)
		return
	}
	r.use(with.client)
	b := newBuilder(g.slots)
	for i := range g.slots {
		s := &g.slots[i]
		if g.flight.heldBack(s.event) {
			s.settle(source.HeldBack, errHeldBack)
			continue
		}
		var timestamp time.Time
		if !with.sendTime {
			timestamp = with.set.timestamp(s.event.Created, r.now)
		}
		b.build(&s.record, s.event, timestamp)
		if err := with.set.check(&s.record); err != nil {
			// The limit may have been raised since it was read: ask before turning away.
			if !r.final && r.now.Sub(with.set.asked) >= recheckAfter {
				r.postpone(g.split(i))
				break
			}
			s.settle(source.Record, err)
			continue
		}
		s.record.Context = s
		s.record.Partition = g.partitions
		// The record belongs to the client from here on.
		with.client.Produce(context.Background(), &s.record, r.p.promised)
	}
	if b.reserved > 0 {
		r.p.warnReserved(g.topic)
	}
}

func (r *round) postpone(g *group) {
	g.topic.mu.Lock()
	r.wait(g)
	g.topic.mu.Unlock()
}

// settleAll gives all events of a group that has not been handed over the same outcome.
func (g *group) settleAll(class source.Class, err error) {
	for i := range g.slots {
		g.slots[i].settle(class, err)
	}
}

// use notes that a client is about to get records.
func (r *round) use(c *kgo.Client) {
	for i := range r.clients {
		if r.clients[i].client == c {
			return
		}
	}
	r.clients = append(r.clients, usedClient{c, c.BufferedProduceRecords() < quietBelow})
}

// cancelled is a context that has ended.
var cancelled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// end puts the questions that came up and sends what needs not linger.
func (r *round) end() {
	for _, u := range r.clients {
		if u.quiet {
			// Flush ends every linger before it waits, and does not wait on this context.
			_ = u.client.Flush(cancelled)
		}
	}
	if topics := r.ask; len(topics) > 0 {
		if !r.p.spawn(func() { r.p.learn(topics) }) {
			for _, t := range topics {
				r.p.unanswered(t, ErrClosed)
			}
		}
	}
}

func (p *Producer) warnReserved(t *topic) {
	t.mu.Lock()
	first := !t.warned
	t.warned = true
	t.mu.Unlock()
	if first {
		p.log.Warn(fmt.Sprintf("events carry a header named %q, which is reserved for the row's id; theirs is left out", IDHeader), "topic", t.name)
	}
}
