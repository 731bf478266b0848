package mongo

import (
	"context"
	"time"
)

// pace keeps reads that are dear and find nothing to a share of the time: a read goes past
// everything that waits (a topic that is missing, another replica's lanes), and would otherwise
// do so again at every poll.
type pace struct {
	last time.Time     // when the last walk ended
	cost time.Duration // of the last walk, zero where it was cheap or found something
}

const (
	cheapWalk = 20 * time.Millisecond
	longest   = time.Second
)

// note takes in what a walk cost and found.
func (p *pace) note(cost time.Duration, found int) {
	p.last, p.cost = time.Now(), 0
	if found == 0 && cost > cheapWalk {
		p.cost = cost
	}
}

// wait lets four times what the last walk cost pass since then, a second at most.
func (p *pace) wait(ctx context.Context) error {
	if p.cost == 0 {
		return nil
	}
	if rest := min(4*p.cost, longest) - time.Since(p.last); rest > 0 {
		return pause(ctx, rest)
	}
	return nil
}
