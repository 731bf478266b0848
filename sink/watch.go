package sink

import (
	"maps"
	"slices"
	"time"
)

// While anything is in flight, a goroutine looks at it from time to time: it reports the
// outcomes that a flight has while others keep it waiting, and finds out what delays them.
const (
	// watchEvery is how long an outcome may wait for the rest of its flight.
	watchEvery = 20 * time.Millisecond
	// watchSlow is used when nothing has come home for a while.
	watchSlow = 500 * time.Millisecond
	// patience is the age at which something in flight counts as delayed. A leader that
	// moves or a broker that restarts in an orderly way takes less.
	patience = 5 * time.Second
)

// enlist adds a flight, unless the Producer is closed.
func (p *Producer) enlist(f *flight) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		f.landed = func(*flight) {}
		return false
	}
	p.flights[f] = struct{}{}
	if !p.watching {
		p.watching = true
		p.work.Go(p.watch)
	}
	return true
}

// land removes a flight whose outcomes are complete.
func (p *Producer) land(f *flight) {
	p.mu.Lock()
	delete(p.flights, f)
	if len(p.flights) == 0 {
		p.settled.Broadcast()
	}
	p.mu.Unlock()
}

// watch runs until nothing is in flight.
func (p *Producer) watch() {
	timer := time.NewTimer(watchEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.ctx.Done():
			return
		}
		p.mu.Lock()
		flights := slices.Collect(maps.Keys(p.flights))
		if len(flights) == 0 {
			p.watching = false
			p.mu.Unlock()
			p.health.flowing()
			return
		}
		p.mu.Unlock()

		fresh := false
		for _, f := range flights {
			fresh = f.reportPart() || fresh
		}
		oldest := eldest(flights)
		age := time.Since(oldest.began)
		if age < patience {
			p.health.flowing()
		} else {
			p.investigate(oldest)
		}
		// By the youngest: its outcomes must not wait for one that a dead partition holds up.
		if fresh || time.Since(youngest(flights).began) < time.Second {
			timer.Reset(watchEvery)
		} else {
			timer.Reset(watchSlow)
		}
	}
}

func eldest(flights []*flight) *flight {
	return slices.MinFunc(flights, func(a, b *flight) int { return a.began.Compare(b.began) })
}

func youngest(flights []*flight) *flight {
	return slices.MaxFunc(flights, func(a, b *flight) int { return a.began.Compare(b.began) })
}

// investigate asks the brokers about the topics of a delayed flight and tells health.
func (p *Producer) investigate(f *flight) {
	var ask []*topic
	now := time.Now()
	d := delay{since: f.began}
	for _, t := range f.waitingFor() {
		t.mu.Lock()
		if !t.busy && now.Sub(t.tried) > patience {
			t.busy = true
			ask = append(ask, t)
		}
		if d.topic == "" {
			d.topic = t.name
		}
		if t.set != nil && t.set.trouble != "" && d.reason == "" {
			d.topic, d.reason = t.name, t.set.trouble
		}
		t.mu.Unlock()
	}
	if len(ask) > 0 && !p.spawn(func() { p.learn(ask) }) {
		return // Close has begun and settles everything
	}
	p.health.delayed(d)
}

// Waiting says in words why events do not reach Kafka at the moment. It is empty when
// everything is fine.
func (p *Producer) Waiting() []string { return p.health.reasons(time.Now()) }
