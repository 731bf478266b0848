package e2e

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

var (
	chaosTime = flag.Duration("chaos", 2*time.Minute, "how long TestReplicasChaos goes on when it polls; every action happens once at least")
	chaosLog  = flag.Duration("chaos.stream", time.Second, "how long it goes on in each mode that streams")
	chaosSeed = flag.Uint64("chaos.seed", 0, "the seed of TestReplicasChaos; 0 draws one")
)

// chaosTTL is short, so that many leases end in a run.
const chaosTTL = 2 * time.Second

// chaos is three replicas under load, and what is done to them.
type chaos struct {
	*world
	db     *servers.Postgres
	broker *servers.Kafka
	random *rand.Rand
	procs  []*process
	// stretch is the most records between two actions.
	stretch int64

	actions, paused int
}

// TestReplicasChaos does to three replicas under load what a bad week does, in an order drawn
// from a seed. Nothing may be lost, and no event may be seen for the first time after a newer
// one of its key.
func TestReplicasChaos(t *testing.T) {
	for _, m := range []mode{polled, streamed, durable} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel() // a busy machine is a part of it
			replicasInChaos(t, m)
		})
	}
}

func replicasInChaos(t *testing.T, m mode) {
	seed, during := *chaosSeed, *chaosLog
	if m.name == polled.name {
		during = *chaosTime
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("replay with -chaos.seed %d", seed)
	db, kafka := privatePostgres(t), privateKafka(t)
	c := &chaos{world: newWorldIn(t, m, db, kafka, "events"), db: db, broker: kafka, random: rand.New(rand.NewPCG(seed, 0)), stretch: 4000}
	writer := c.write(func(c *oracle.WriterConfig) { usual(c); c.Seed = seed })
	actions := []action{{"PostgreSQL restarts", func() { restart(t, c.db.Stop, c.db.Start) }}}
	if m.name != polled.name {
		actions = append(actions, action{"the connections to the log are cut", c.cutLog}, action{"the replication slots are dropped", c.dropSlots})
	}
	c.play(writer, during, actions...)
}

// action is something that is done to the replicas or to what they need.
type action struct {
	name string
	do   func()
}

// play starts the replicas, does what every world has in store for them and the given actions,
// each once at least, and judges.
func (c *chaos) play(writer *writer, during time.Duration, actions ...action) {
	t := c.t
	for range 3 {
		c.procs = append(c.procs, c.start(leaseTTL(chaosTTL)))
	}
	c.awaitBalance(c.procs...)
	actions = append(actions, []action{
		{"kill -9 and start", c.kill},
		{"kill -STOP for three leases", c.stopAndContinue},
		{"clean restart", func() { c.cleanRestart(c.holder()) }},
		{"rolling restart", c.rollingRestart},
		{"a fourth joins and leaves", c.fourth},
		{"Kafka restarts", func() { restart(t, c.broker.Stop, c.broker.Start) }},
	}...)
	defer func() {
		if t.Failed() {
			t.Logf("%d records received, %d rows left, writer %+v", c.checker.Received(), c.left(), writer.Stats())
		}
	}()
	begun := time.Now()
	for round := 0; round == 0 || time.Since(begun) < during; round++ {
		c.random.Shuffle(len(actions), func(i, j int) { actions[i], actions[j] = actions[j], actions[i] })
		for _, a := range actions {
			if round > 0 && time.Since(begun) > during {
				break
			}
			// As random a moment as a time is a number of records from now, and it shows that
			// they flow again after the action before.
			c.received(c.checker.Received() + 1 + c.random.Int64N(c.stretch))
			t.Logf("%s: %s", time.Since(begun).Round(100*time.Millisecond), a.name)
			c.actions++
			a.do()
			for _, p := range c.procs {
				p.mustRun()
			}
		}
	}
	c.received(c.checker.Received() + 1)
	c.awaitBalance(c.procs...)
	writer.stop()
	v := c.judge()
	if err := v.ErrWithPauses(); err != nil {
		t.Fatalf("promises broken: %v", err)
	}
	t.Logf("%d actions in %s: %d repeats, %d of the repeated stretches no suffix, with %d pauses",
		c.actions, time.Since(begun).Round(time.Second), v.Repeated, v.BrokenRepeats, c.paused)
	violations := 0.0
	for _, p := range c.procs {
		violations += p.metrics()["order_violations_total"]
	}
	if violations != 0 {
		t.Errorf("the replicas count %v order violations themselves", violations)
	}
	endInOrder(c.procs...)
}

// holder draws a replica, of those that can have lanes, and returns when it has some, so that
// something is at stake.
func (c *chaos) holder() int {
	c.t.Helper()
	i := c.random.IntN(len(c.procs))
	if c.mode.exclusive {
		c.awaitFleet(20*time.Second, "a replica has the lanes", func(f *fleet) bool {
			i = slices.IndexFunc(c.procs, func(p *process) bool { return f.of(p) > 0 })
			return i >= 0
		})
	}
	c.awaitFleet(20*time.Second, "the chosen replica has lanes", func(f *fleet) bool { return f.of(c.procs[i]) > 0 })
	return i
}

func (c *chaos) kill() {
	i := c.holder()
	c.procs[i].kill()
	c.procs[i] = c.start(leaseTTL(chaosTTL))
}

// stopAndContinue pauses a replica that holds lanes, sees others take all of them, and lets it
// go on.
func (c *chaos) stopAndContinue() {
	p := c.procs[c.holder()]
	c.paused++
	begun := time.Now()
	p.pause()
	c.awaitFleet(chaosTTL+10*time.Second, "others have the lanes of the paused replica", func(f *fleet) bool {
		sum := 0
		for _, n := range f.lanes {
			sum += n
		}
		return f.of(p) < 0 && sum == lanesOf
	})
	c.t.Logf("its lanes have other owners after %s", time.Since(begun).Round(10*time.Millisecond))
	pause(c.t, 3*chaosTTL-time.Since(begun))
	p.resume()
}

func (c *chaos) cleanRestart(i int) {
	c.procs[i].stop()
	c.procs[i] = c.start(leaseTTL(chaosTTL))
}

func (c *chaos) rollingRestart() {
	for i := range c.procs {
		c.cleanRestart(i)
		c.procs[i].awaitReady()
	}
}

func (c *chaos) fourth() {
	p := c.start(leaseTTL(chaosTTL))
	c.awaitFleet(20*time.Second, "the fourth has lanes", func(f *fleet) bool { return f.of(p) > 0 || c.mode.exclusive && f.of(p) == 0 })
	c.received(c.checker.Received() + 1 + c.random.Int64N(c.stretch/2))
	p.stop()
}

// cutLog ends the sessions that stream.
func (c *chaos) cutLog() {
	c.execute(c.connect(), "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
}

// dropSlots drops the slots that can be dropped while forwarders want them back.
func (c *chaos) dropSlots() {
	conn := c.connect()
	for range 20 {
		c.execute(conn, "SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE active")
		if _, err := conn.Exec(c.t.Context(), "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"); err == nil {
			return
		}
	}
	c.t.Log("a forwarder was always faster: no slot was dropped")
}

// TestReplicasPlannedMovesRepeatNothing moves lanes in every planned way under load: joins and
// leaves, a rolling restart, and a replica that is asked to retire (C90, C97).
func TestReplicasPlannedMovesRepeatNothing(t *testing.T) {
	w := newWorld(t, nil, nil)
	writer := w.write(usual)
	procs := w.replicas(2)
	const rounds = 10
	for round := range rounds {
		third := w.start()
		// By turns it is stopped as soon as it owns something, and when all is balanced.
		if round%2 == 0 {
			w.awaitFleet(20*time.Second, "the third has lanes", func(f *fleet) bool { return f.of(third) > 0 })
		} else {
			w.awaitBalance(append(slices.Clone(procs), third)...)
		}
		w.received(w.checker.Received() + 200)
		third.stop()
	}
	w.awaitBalance(procs...)
	for i := range procs {
		procs[i].stop()
		procs[i] = w.start()
		w.awaitBalance(procs...)
	}

	stdout, stderr, code := forwarder(t, nil, "retire", "--admin-listen", procs[0].admin)
	if code != 0 {
		t.Fatalf("forwarder retire: exit code %d: %s%s", code, stdout, stderr)
	}
	w.awaitFleet(20*time.Second, "the other replica has all lanes", func(f *fleet) bool { return f.of(procs[1]) == lanesOf })
	before := w.checker.Received()
	w.received(before + 2000)
	if n := w.fleet().of(procs[0]); n != 0 {
		t.Errorf("the retired replica has %d lanes, want to see it as a member with none", n)
	}
	writer.stop()
	noRepeats(t, w.verdict())
	for _, p := range procs {
		if n := p.metrics()["order_violations_total"]; n != 0 {
			t.Errorf("a replica counts %v order violations", n)
		}
	}
	endInOrder(procs...)
}
