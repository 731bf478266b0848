package sink

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-forwarder/forwarder/source"
)

// learn asks the brokers about topics that are marked busy, and lets their groups go.
func (p *Producer) learn(topics []*topic) {
	asked := time.Now()
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.name
		t.mu.Lock()
		t.tried = asked
		t.doubted = false
		t.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.AskTimeout)
	defer cancel()
	answers, err := p.askBrokers(ctx, names, asked)
	for _, t := range topics {
		if set := answers[t.name]; set != nil {
			p.answered(t, set)
		} else {
			p.unanswered(t, err)
		}
	}
}

// askBrokers fetches the settings of topics: one request about their existence and
// partitions, one about the configuration of those that exist. Every topic has an answer
// unless err is not nil.
func (p *Producer) askBrokers(ctx context.Context, names []string, asked time.Time) (map[string]*settings, error) {
	client := p.links.current.Load().client
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		if p.ctx.Err() != nil {
			return nil, ErrClosed
		}
		err = p.health.cause(err)
		cause, _ := p.cfg.explain(err)
		return nil, fmt.Errorf("asking kafka at %s about topics: %w%s", p.cfg.reached(), err, cause)
	}

	answers := make(map[string]*settings, len(names))
	var existing []string
	for i := range resp.Topics {
		md := &resp.Topics[i]
		if md.Topic == nil {
			continue
		}
		if err := kerr.ErrorForCode(md.ErrorCode); err != nil {
			answers[*md.Topic] = &settings{topic: *md.Topic, asked: asked, err: topicError(*md.Topic, err)}
			continue
		}
		existing = append(existing, *md.Topic)
	}
	configs := p.readConfigs(ctx, client, existing)
	for i := range resp.Topics {
		if md := &resp.Topics[i]; md.Topic != nil && md.ErrorCode == 0 {
			answers[*md.Topic] = newSettings(md, configs[*md.Topic], asked, p.cfg.MaxBatchBytes)
		}
	}
	for _, name := range names {
		if answers[name] == nil {
			return answers, fmt.Errorf("asking kafka at %s about topics: the answer leaves out topic %q", p.cfg.reached(), name)
		}
	}
	return answers, nil
}

// readConfigs returns the configuration of the topics whose configuration may be read. The
// right to read it is not needed: without it Kafka's defaults are taken.
func (p *Producer) readConfigs(ctx context.Context, client *kgo.Client, names []string) map[string]map[string]string {
	if len(names) == 0 {
		return nil
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range names {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType = kmsg.ConfigResourceTypeTopic
		r.ResourceName = name
		r.ConfigNames = configNames
		req.Resources = append(req.Resources, r)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		p.log.Debug("reading the configuration of topics; taking Kafka's defaults", "count", len(names), "err", err)
		return nil
	}
	configs := make(map[string]map[string]string, len(names))
	for i := range resp.Resources {
		r := &resp.Resources[i]
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			p.log.Debug("reading the configuration of a topic; taking Kafka's defaults", "topic", r.ResourceName, "err", err)
			continue
		}
		config := make(map[string]string, len(r.Configs))
		for _, c := range r.Configs {
			if c.Value != nil {
				config[c.Name] = *c.Value
			}
		}
		configs[r.ResourceName] = config
	}
	return configs
}

// answered takes new settings into use and lets the topic's groups go.
func (p *Producer) answered(t *topic, set *settings) {
	t.mu.Lock()
	old := t.set
	t.set = set
	if old == nil || old.before != set.before || old.after != set.after {
		t.sendTime = false
	}
	var remade, resized bool
	if t.link != nil && set.err == nil {
		remade = set.id != t.linkID
		resized = set.batchLimit() != t.limit.Load()
	}
	known := t.link
	if remade || resized {
		t.ready = false
	}
	t.mu.Unlock()

	if old != nil && old.err == nil && set.err == nil {
		if old.partitions != set.partitions {
			p.log.Warn("the topic's partition count changed: keys move to other partitions", "topic", t.name, "from", old.partitions, "to", set.partitions)
		}
		if remade {
			p.log.Warn("the topic was deleted and made again", "topic", t.name)
		}
		if known != nil && (remade || old.partitions != set.partitions) {
			known.client.ForceMetadataRefresh()
		}
	}
	if remade || resized {
		// Waiting for the topic to fall idle may take a while; other topics do not wait for it.
		if p.spawn(func() { p.move(t); p.release(t) }) {
			return
		}
	}
	p.release(t)
}

// unanswered lets the topic's groups go with what was known before, or gives them up for now.
func (p *Producer) unanswered(t *topic, err error) {
	t.mu.Lock()
	t.doubted = true
	if t.set != nil {
		t.mu.Unlock()
		p.release(t)
		return
	}
	waiting := t.waiting
	t.waiting = nil
	t.busy = false
	t.mu.Unlock()
	for _, g := range waiting {
		g.settleAll(source.Broker, err)
	}
}

// release hands over the groups that waited for the topic, in order, and makes it ready.
func (p *Producer) release(t *topic) {
	r := p.newRound()
	r.final = true
	for {
		t.mu.Lock()
		waiting := t.waiting
		t.waiting = nil
		if len(waiting) == 0 {
			t.ready = true
			t.busy = false
			t.mu.Unlock()
			break
		}
		with := make([]terms, len(waiting))
		for i, g := range waiting {
			with[i] = r.take(t, g)
		}
		t.mu.Unlock()
		for i, g := range waiting {
			r.hand(g, with[i])
		}
	}
	r.end()
}

// moveWithin bounds how long a topic's new groups wait for its old ones to come home, so that
// a partition that does not answer cannot hold the others. A move that does not come about is
// tried again when the topic is asked about next.
const moveWithin = 2 * time.Second

// move takes a topic off its link, whose client holds outdated facts about it, once nothing
// of it is in flight there.
func (p *Producer) move(t *topic) {
	t.mu.Lock()
	var drained chan struct{}
	if t.open > 0 {
		drained = make(chan struct{})
		t.drained = drained
	}
	old := t.link
	t.mu.Unlock()
	if drained != nil {
		timer := time.NewTimer(moveWithin)
		defer timer.Stop()
		select {
		case <-drained:
		case <-timer.C:
		case <-p.ctx.Done():
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drained = nil
	if t.open > 0 {
		return
	}
	if err := p.links.renew(old); err != nil {
		p.log.Error("taking a new client into use", "topic", t.name, "err", err)
		return
	}
	p.dropLink(t)
}

// dropLink takes the topic off its link. Called with topic.mu held.
func (p *Producer) dropLink(t *topic) {
	if t.link != nil {
		p.links.release(t.link)
		t.link = nil
		t.seen.Store(0)
	}
}

// replaceRuined takes a new client into use when the current one failed for good: its
// producer id was refused, and the client would not ask for another.
func (p *Producer) replaceRuined() {
	cur := p.links.current.Load()
	if !cur.ruined.Load() || time.Since(cur.born) < time.Second {
		return
	}
	if err := p.links.renew(cur); err != nil {
		p.log.Error("replacing a failed client", "err", err)
		return
	}
	p.leaveOldLinks()
}

// leaveOldLinks takes idle topics off links that are not current, so that those can be closed.
// The others follow with their next group that finds nothing in flight.
func (p *Producer) leaveOldLinks() {
	cur := p.links.current.Load()
	for _, t := range p.allTopics() {
		t.mu.Lock()
		if t.open == 0 && t.link != cur {
			p.dropLink(t)
		}
		t.mu.Unlock()
	}
}

// The topics that rows name without there being such topics are remembered up to this count
// and for at least this long.
const (
	mostTopics  = 4096
	missingKeep = time.Minute
)

// forgetMissing keeps the rows' imagination from filling memory with topics.
// Only Submit finds topics for new groups, and it is not running twice.
func (p *Producer) forgetMissing() {
	p.mu.Lock()
	count := len(p.topics)
	p.mu.Unlock()
	if count <= mostTopics {
		return
	}
	old := time.Now().Add(-missingKeep)
	for _, t := range p.allTopics() {
		t.mu.Lock()
		gone := t.idle() && t.link == nil && t.used.Before(old)
		t.mu.Unlock()
		if gone {
			p.mu.Lock()
			delete(p.topics, t.name)
			p.mu.Unlock()
		}
	}
}

// topicError words the brokers' answer about a topic that cannot be used.
func topicError(name string, err error) error {
	switch err {
	case kerr.UnknownTopicOrPartition:
		return fmt.Errorf("topic %q: the topic does not exist; create it: %w", name, err)
	case kerr.TopicAuthorizationFailed:
		return fmt.Errorf("topic %q: the user may not see it; grant Write on the topic: %w", name, err)
	default:
		return fmt.Errorf("topic %q: the brokers cannot say more about it now: %w", name, err)
	}
}
