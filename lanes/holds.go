package lanes

import (
	"context"
	"fmt"
	"slices"

	"github.com/outbox-forwarder/forwarder/source"
)

// hold is a lane that we own.
type hold struct {
	epoch  int64
	gained int64 // the number of the gain that brought it
}

// claim takes lanes. Where they are all for one member, the first lane decides between those that
// try at the same time, so that nobody gets a part of them.
func (k *Keeper) claim(ctx context.Context, take []Lease) ([]Lease, error) {
	if !k.alone || len(k.holds) > 0 || len(take) == 1 {
		return k.leases.Take(ctx, k.me, take)
	}
	first, err := k.leases.Take(ctx, k.me, take[:1])
	if err != nil || len(first) == 0 {
		return nil, err
	}
	rest, err := k.leases.Take(ctx, k.me, take[1:])
	if err != nil {
		return nil, err // the next round shows the first one as ours
	}
	return append(first, rest...), nil
}

// own returns all that we hold, by lane.
func (k *Keeper) own() []Lease {
	var list []Lease
	for lane, held := range k.holds {
		list = append(list, Lease{Lane: lane, Owner: k.me, Epoch: held.epoch})
	}
	slices.SortFunc(list, func(a, b Lease) int { return int(a.Lane) - int(b.Lane) })
	return list
}

// adopt follows what the table says about us: a Take or a Release whose answer was lost, or a
// lane that somebody took in spite of us.
func (k *Keeper) adopt(h Holder, table Table) {
	k.mu.Lock()
	finished := slices.Clone(k.drained)
	k.mu.Unlock()
	var got []Lease
	var lost []source.Lane
	for _, l := range table.Leases {
		ours, held := k.holds[l.Lane]
		switch {
		case l.Owner == k.me && !held:
			got = append(got, l)
		case held && (l.Owner != k.me || l.Epoch != ours.epoch):
			delete(k.holds, l.Lane)
			delete(k.draining, l.Lane)
			if !slices.Contains(finished, l.Lane) {
				lost = append(lost, l.Lane)
			}
		}
	}
	if len(lost) > 0 {
		k.cfg.Logger.Warn("lanes were taken from this replica", "count", len(lost))
		h.Lose(lost)
	}
	k.gain(h, got)
}

func (k *Keeper) gain(h Holder, got []Lease) {
	var lanes []source.Lane
	k.gains++
	for _, l := range got {
		k.holds[l.Lane] = hold{l.Epoch, k.gains}
		lanes = append(lanes, l.Lane)
	}
	if len(lanes) > 0 {
		h.Gain(lanes)
	}
}

// lose drops everything at once.
func (k *Keeper) lose(h Holder) {
	var lanes []source.Lane
	for lane := range k.holds {
		lanes = append(lanes, lane)
	}
	clear(k.holds)
	clear(k.draining)
	if len(lanes) > 0 {
		slices.Sort(lanes)
		h.Lose(lanes)
	}
}

// onDrained is called by the holder for each lane that it has finished with. Word about an
// earlier life of ours comes too late to mean anything.
func (k *Keeper) onDrained(me string, lane source.Lane) {
	k.mu.Lock()
	if me == k.member {
		k.drained = append(k.drained, lane)
	}
	k.mu.Unlock()
	k.poke()
}

// release frees what was drained.
func (k *Keeper) release(ctx context.Context) error {
	k.mu.Lock()
	drained := k.drained
	k.drained = nil
	k.mu.Unlock()
	var done []Lease
	for _, lane := range drained {
		if ours, held := k.holds[lane]; held && k.draining[lane] {
			done = append(done, Lease{Lane: lane, Owner: k.me, Epoch: ours.epoch})
		}
	}
	if len(done) == 0 {
		return nil
	}
	if k.alone && len(done) < len(k.draining) { // the next member takes all of them, or none
		k.mu.Lock()
		k.drained = append(k.drained, drained...)
		k.mu.Unlock()
		return nil
	}
	if err := k.leases.Release(ctx, k.me, done); err != nil {
		k.mu.Lock()
		k.drained = append(k.drained, drained...)
		k.mu.Unlock()
		return fmt.Errorf("giving up lanes: %w", err)
	}
	for _, l := range done {
		delete(k.holds, l.Lane)
		delete(k.draining, l.Lane)
	}
	return nil
}
