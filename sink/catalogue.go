package sink

import (
	"context"
	"errors"
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
	if set.guessed && old != nil && !old.guessed && old.err == nil && old.id == set.id {
		// The configuration could not be read this time; it was before.
		set.inherit(old)
	}
	if old == nil || old.before != set.before || old.after != set.after {
		t.sendTime = false
	}
	t.set = set
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
		if p.spawn(func() { p.move(t); p.leaveOldLinks(); p.release(t) }) {
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

// topicError words the brokers' answer about a topic that cannot be used.
func topicError(name string, err error) error {
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("topic %q: the topic does not exist; create it: %w", name, err)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("topic %q: the user may not see it; grant Write on the topic: %w", name, err)
	default:
		return fmt.Errorf("topic %q: the brokers cannot say more about it now: %w", name, err)
	}
}
