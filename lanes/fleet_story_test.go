package lanes

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// fleetStory runs worlds in which nothing goes wrong but what the story is about.
func fleetStory(t *testing.T, tell func(r *rand.Rand, p *fleetPlan)) *fleetSum {
	t.Helper()
	var sum fleetSum
	for seed := range uint64(40) {
		w, err := simulateFleet(seed, func(r *rand.Rand) fleetPlan {
			p := newFleetPlan(r)
			quiet := fleetPlan{
				config: p.config, lanes: p.lanes, ttl: p.ttl, replicas: 2 + r.IntN(2), most: p.most, latency: p.latency, ack: p.ack,
				writeEvery: p.writeEvery, writeUntil: p.writeUntil, keys: p.keys, grace: 20 * time.Second, planned: true,
			}
			tell(r, &quiet)
			return quiet
		})
		sum.add(w)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	t.Log(&sum)
	return &sum
}

// TestC86LeaseShorterThanAPublish: leases are renewed while records wait for their
// acknowledgement, however long that takes.
func TestC86LeaseShorterThanAPublish(t *testing.T) {
	sum := fleetStory(t, func(_ *rand.Rand, p *fleetPlan) {
		p.ttl = time.Second
		p.ack = 1600 * time.Millisecond
		p.writeEvery = 100 * time.Millisecond
		p.config.MaxEvents, p.config.RunEvents, p.config.PageEvents = 200, 500, 1000
	})
	if sum.repeats+sum.deaths+sum.ends > 0 {
		t.Errorf("%d repeats, %d replicas declared dead, %d leases ended", sum.repeats, sum.deaths, sum.ends)
	}
}

// TestC87PausedHolder: a replica that was stopped for longer than its lease submits nothing when
// it goes on. What it had handed to the client may be repeated, and no more.
func TestC87PausedHolder(t *testing.T) {
	sum := fleetStory(t, func(r *rand.Rand, p *fleetPlan) {
		p.planned = false
		p.pauses = p.ttl + time.Duration(r.Int64N(int64(p.ttl)))
		p.blocked = 0.03
		p.writeUntil = 8 * p.ttl
	})
	if sum.deaths == 0 || sum.refused == 0 {
		t.Errorf("%d replicas declared dead, %d runs refused: the story does not happen", sum.deaths, sum.refused)
	}
}

// TestC90PlannedMovesRepeatNothing: joins, clean stops, retirements and rolling restarts, with
// acknowledgements that take their time. It is C05 and C97 too: a replica that starts works
// on nothing that another one has in hand.
func TestC90PlannedMovesRepeatNothing(t *testing.T) {
	sum := fleetStory(t, func(r *rand.Rand, p *fleetPlan) {
		p.joins, p.stops, p.retires, p.rolls = 2*time.Second, 2*time.Second, 5*time.Second, 6*time.Second
		p.ack = pick(r, 20*time.Millisecond, 200*time.Millisecond, time.Second)
		p.writeUntil = 15 * time.Second
	})
	if sum.repeats+sum.deaths+sum.ends > 0 || sum.stops < 150 {
		t.Errorf("%d repeats, %d replicas declared dead, %d leases ended in %d stops", sum.repeats, sum.deaths, sum.ends, sum.stops)
	}
}

// TestExclusivePlannedMovesRepeatNothing: the same where one replica has everything and the others
// stand by, also beside replicas that could share.
func TestExclusivePlannedMovesRepeatNothing(t *testing.T) {
	for _, alone := range []float64{1, 0.5} {
		sum := fleetStory(t, func(r *rand.Rand, p *fleetPlan) {
			p.alone = alone
			p.joins, p.stops, p.retires, p.rolls = 2*time.Second, 2*time.Second, 5*time.Second, 6*time.Second
			p.ack = pick(r, 20*time.Millisecond, 200*time.Millisecond, time.Second)
			p.writeUntil = 15 * time.Second
		})
		if sum.repeats+sum.deaths+sum.ends > 0 || sum.stops < 150 {
			t.Errorf("%d repeats, %d replicas declared dead, %d leases ended in %d stops", sum.repeats, sum.deaths, sum.ends, sum.stops)
		}
	}
}

// TestC39QuickRestart: a replica that is back before its old lease has ended waits for it like
// everyone else.
func TestC39QuickRestart(t *testing.T) {
	sum := fleetStory(t, func(_ *rand.Rand, p *fleetPlan) {
		p.planned = false
		p.kills = 2 * p.ttl
		p.writeUntil = 10 * p.ttl
	})
	if sum.kills < 40 {
		t.Errorf("%d crashes", sum.kills)
	}
}

// TestC51StoreAway: a store that is away for longer than the lease suspends everyone, and costs
// neither rows nor order.
func TestC51StoreAway(t *testing.T) {
	sum := fleetStory(t, func(_ *rand.Rand, p *fleetPlan) {
		p.planned = false
		p.outages = 2 * p.ttl
		p.writeUntil = 10 * p.ttl
	})
	if sum.ends < 40 {
		t.Errorf("%d leases ended", sum.ends)
	}
}

// TestC95NumberOfLanesChanged: every replica ends when it finds out. Those with the new number
// begin once the members of before are gone.
func TestC95NumberOfLanesChanged(t *testing.T) {
	sum := fleetStory(t, func(_ *rand.Rand, p *fleetPlan) {
		p.planned = false
		p.changes = 4 * p.ttl
		p.writeUntil = 15 * p.ttl
	})
	if sum.changes < 40 {
		t.Errorf("%d changes", sum.changes)
	}
}

// TestC87RegainedLane: the events that were in flight when a lane was lost are not put back when it is
// ours again before their outcomes are known: somebody else may have delivered them, and more.
func TestC87RegainedLane(t *testing.T) {
	e := NewEngine(Config{Lanes: 1})
	page := func(ids ...int64) *source.Page {
		p := &source.Page{}
		for _, id := range ids {
			p.Events = append(p.Events, &source.Event{ID: id, Topic: "t", Key: []byte("k")})
		}
		return p
	}
	ready := func(what string, submits int) Ready {
		t.Helper()
		r := e.Ready(epoch)
		if len(r.Submit) != submits {
			t.Fatalf("%s: runs %v", what, r.Submit)
		}
		return r
	}
	e.Gain(epoch, 0)
	ready("gained", 0)
	e.Page(epoch, page(1, 2, 3))
	ready("read", 1)
	e.Lose(0)
	e.Gain(epoch, 0)
	if r := ready("regained", 0); r.Read != nil {
		t.Errorf("the lane is read while its old run is in flight: %+v", r.Read)
	}
	e.Outcomes(epoch, []source.Outcome{
		{ID: 1, Class: source.Acked}, {ID: 2, Class: source.Broker, Err: errSimulated}, {ID: 3, Class: source.Broker, Err: errSimulated},
	})
	r := ready("the outcomes are there", 0)
	if r.Read == nil || r.Read.Floor != Start || len(r.Read.Known) != 1 || r.Read.Known[0] != 1 {
		t.Fatalf("the lane is read by %+v", r.Read)
	}
	e.Page(epoch, page(11, 12))
	if r := ready("read again", 1); r.Submit[0][0].ID != 11 {
		t.Errorf("row %d is submitted first", r.Submit[0][0].ID)
	}
}

// TestGainWhileSuspended: what is taken while the trust in the leases has ended is begun with their
// renewal.
func TestGainWhileSuspended(t *testing.T) {
	e := NewEngine(Config{Lanes: 2})
	e.Trust(epoch, epoch.Add(time.Second))
	e.Gain(epoch, 0)
	e.Ready(epoch)
	e.Page(epoch, &source.Page{Events: []*source.Event{{ID: 1, Topic: "t"}, {ID: 2, Topic: "t"}}})
	late := epoch.Add(time.Second)
	if r := e.Ready(late); len(r.Submit) > 0 || r.Read != nil {
		t.Errorf("the trust has ended: %+v", r)
	}
	e.Gain(late, 0, 1)
	if r := e.Ready(late.Add(time.Second)); len(r.Submit) > 0 || r.Read != nil {
		t.Errorf("lanes were taken without trust: %+v", r)
	}
	again := late.Add(2 * time.Second)
	e.Trust(again, again.Add(time.Second))
	if r := e.Ready(again); len(r.Submit) > 0 || r.Read == nil || r.Read.Lanes != nil || r.Read.Floor != Start {
		t.Errorf("the trust is renewed: %+v", r)
	}
}

// TestDrainAfterStop: a lane that Stop has drained is given up when the owner asks for it, while
// another one still has something in flight.
func TestDrainAfterStop(t *testing.T) {
	e := NewEngine(Config{Lanes: 2})
	e.Gain(epoch, 0, 1)
	e.Ready(epoch)
	e.Page(epoch, &source.Page{Events: []*source.Event{{ID: 1, Lane: 1, Topic: "t"}}})
	e.Ready(epoch)
	e.Stop()
	e.Ready(epoch)
	e.Drain(0, 1)
	if r := e.Ready(epoch); len(r.Drained) != 1 || r.Drained[0] != 0 || e.Done() {
		t.Errorf("drained %v, done %v", r.Drained, e.Done())
	}
	e.Outcomes(epoch, []source.Outcome{{ID: 1, Class: source.Acked}})
	r := e.Ready(epoch)
	if len(r.Delete) != 1 || len(r.Drained) != 0 {
		t.Fatalf("deletes %v, drained %v", r.Delete, r.Drained)
	}
	e.Deleted(r.Delete[0])
	if r := e.Ready(epoch); len(r.Drained) != 1 || r.Drained[0] != 1 || !e.Done() {
		t.Errorf("drained %v, done %v", r.Drained, e.Done())
	}
}
