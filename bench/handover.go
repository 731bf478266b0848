package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// move is one kind of hand-over, and how long it took in each run.
type move struct {
	name     string
	target   time.Duration
	do       func(*replicas) error
	balanced []time.Duration // until the lanes were shared fairly
	longest  []time.Duration // the longest that an event waited, from commit to consumed
}

// handOver measures how long lanes and their events wait when replicas come and go under an
// even load. The longest wait of any event is what its users see of a move: the time to the
// first record by the new owner is at most that.
func (s *stage) handOver(ctx context.Context, t *table) (err error) {
	topic, err := s.set(ctx, t, modes[t.name()][0])
	if err != nil {
		return err
	}
	r, err := s.startFleet(ctx, t, 2, "FORWARDER_LANES_LEASE_TTL="+s.leaseTTL.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	l, err := s.write(ctx, t, topic)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	// Each move but a join is made by the replica that has been there for longest.
	oldest := func(r *replicas) *subject {
		p := r.procs[0]
		r.procs = r.procs[1:]
		return p
	}
	moves := []*move{
		{name: "join", target: 5 * time.Second, do: (*replicas).add},
		{name: "clean stop", target: 2 * time.Second, do: func(r *replicas) error { return oldest(r).stop() }},
		{name: "crash", target: s.leaseTTL + 2*time.Second, do: func(r *replicas) error { return oldest(r).kill() }},
	}
	order := []*move{moves[0], moves[1], moves[0], moves[2]} // after which there are two again
	for run := range s.runs {
		for _, m := range order {
			progress("hand-over, run %d of %d: %s", run+1, s.runs, m.name)
			if err := m.measure(ctx, t, r, &l.watch); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
	}
	fmt.Printf("\nhand-over: %.0f events/s, 2 and 3 replicas, lanes.lease_ttl %s, seconds\n", s.rate, s.leaseTTL)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\truns\tlanes balanced, median\tlongest\tlongest wait of an event, median\tlongest\ttarget\t")
	for _, m := range moves {
		fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t\n", m.name, len(m.balanced),
			middle(m.balanced).Seconds(), slices.Max(m.balanced).Seconds(), middle(m.longest).Seconds(), slices.Max(m.longest).Seconds(), m.target.Seconds())
	}
	return w.Flush()
}

func (m *move) measure(ctx context.Context, t *table, r *replicas, watch *oracle.Stopwatch) error {
	if err := pause(ctx, r.warmUp); err != nil {
		return err
	}
	watch.Recent() // what was measured before the move
	begun := time.Now()
	if err := m.do(r); err != nil {
		return err
	}
	if err := t.balanced(ctx, r); err != nil {
		return err
	}
	m.balanced = append(m.balanced, time.Since(begun))
	// Those that waited are out soon after.
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	m.longest = append(m.longest, watch.Recent().Max)
	return nil
}

func middle(list []time.Duration) time.Duration {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}
