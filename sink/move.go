package sink

import (
	"errors"
	"time"
)

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
	if p.renew(old) {
		p.dropLink(t)
	}
}

// renew puts a new link in the place of old.
func (p *Producer) renew(old *link) bool {
	err := p.links.renew(old)
	if err != nil && !errors.Is(err, ErrClosed) {
		p.log.Error("replacing the kafka client", "err", err)
	}
	return err == nil
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
	if p.renew(cur) {
		p.leaveOldLinks()
	}
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

// The topics that rows name without there being such topics are remembered while there are
// no more than mostTopics of any kind, and else for missingKeep after their last event.
const (
	mostTopics  = 4096
	missingKeep = 10 * time.Second
)

// forgetMissing keeps memory from filling with the names of topics that do not exist. Only
// Submit calls it, which is also the only one to find topics for new groups.
func (p *Producer) forgetMissing() {
	now := time.Now()
	if now.Sub(p.forgot) < time.Second {
		return
	}
	p.forgot = now
	all := p.allTopics()
	if len(all) <= mostTopics {
		return
	}
	for _, t := range all {
		t.mu.Lock()
		gone := t.idle() && t.link == nil && now.Sub(t.used) > missingKeep
		t.mu.Unlock()
		if gone {
			p.mu.Lock()
			delete(p.topics, t.name)
			p.mu.Unlock()
		}
	}
}
