package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

func TestPlain(t *testing.T) { inModes(t, plainRun, allModes...) }

func plainRun(t *testing.T, m mode) {
	w := newWorldIn(t, m, nil, nil, "events")
	p := w.start()
	events := int64(20_000)
	if m.mongo {
		events = 4000 // its transactions with a majority are that much slower
	}
	w.write(func(c *oracle.WriterConfig) { c.Events = events }).wait()
	v := w.verdict()
	noRepeats(t, v)
	p.stop()
	w.readWithKcat(v.Written)
}

// shortLease makes a restart after a kill wait for one second instead of ten until the lanes of
// the killed process are free.
const shortLease = "FORWARDER_LANES_LEASE_TTL=1s"

// TestKillNineTenTimes kills the forwarder while a backlog is drained and a writer goes on, so
// that each time events are read, in flight, and acknowledged without being deleted.
func TestKillNineTenTimes(t *testing.T) { inModes(t, killedTenTimes, allModes...) }

func killedTenTimes(t *testing.T, m mode) {
	w := newWorldIn(t, m, nil, nil, "events")
	const backlog = 40_000
	if err := oracle.Preload(t.Context(), oracle.PreloadConfig{URL: w.url, Topic: w.topic, Events: backlog, Keys: 1000, PayloadBytes: 200}); err != nil {
		t.Fatal(err)
	}
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate = 2000 })
	seed := rand.Uint64()
	t.Logf("seed of the moments: %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	inFlight := 0
	for round := range 10 {
		p := w.start(shortLease)
		// A number of records from now is as random a moment as a time, and it never comes
		// before the forwarder has begun.
		before := w.checker.Received()
		w.received(before + 1 + random.Int64N(4000))
		p.kill()
		if code := p.wait(time.Second); code != -1 {
			t.Fatalf("round %d: the forwarder had ended by itself, exit code %d", round, code)
		}
		if w.left() > 0 {
			inFlight++
		}
		w.forwarderGone()
	}
	if inFlight < 5 {
		t.Errorf("only %d of 10 kills came while events were waiting", inFlight)
	}
	p := w.start(shortLease)
	writer.stop()
	v := w.verdict()
	// What was acknowledged and not deleted is sent again. Ten kills in mid-stream without
	// any would mean that none came at such a moment.
	if v.Repeated == 0 {
		t.Error("no repeats: no kill came between acknowledgement and delete")
	}
	p.stop()
}

// TestSIGTERMUnderLoad stops the forwarder in order while events flow, again and again:
// nothing may be sent twice.
func TestSIGTERMUnderLoad(t *testing.T) { inModes(t, stoppedUnderLoad, allModes...) }

func stoppedUnderLoad(t *testing.T, m mode) {
	w := newWorldIn(t, m, nil, nil, "events")
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate = 3000 })
	for range 4 {
		p := w.start()
		w.received(w.checker.Received() + 2000)
		begun := time.Now()
		p.stop()
		t.Logf("stopped in %s", time.Since(begun).Round(time.Millisecond))
	}
	p := w.start()
	writer.stop()
	noRepeats(t, w.verdict())
	p.stop()
}

// TestPostgresRestart stops, starts, kills and starts the database under load. The process
// keeps what it knows, so that not even the records whose delete was cut off are sent again.
func TestPostgresRestart(t *testing.T) { inModes(t, postgresRestarts, polled, streamed, durable) }

func postgresRestarts(t *testing.T, m mode) {
	db := privatePostgres(t)
	w := newWorldIn(t, m, db, nil, "events")
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate = 2000 })
	p := w.start()
	for _, end := range []func() error{db.Stop, db.Kill, db.Stop} {
		w.received(w.checker.Received() + 2000)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		eventually(t, 20*time.Second, "an unready forwarder while the database is away", func() bool {
			ok, _ := p.ready()
			return !ok
		})
		if !p.running() {
			t.Fatal("the forwarder ended because the database was away")
		}
		if err := db.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.awaitReady()
	}
	writer.stop()
	noRepeats(t, w.verdict())
	p.stop()
}

// TestKafkaRestart stops, starts, kills and starts the broker under load.
func TestKafkaRestart(t *testing.T) {
	inModes(t, kafkaRestarts, polled, streamed, durable, mongoStreamed)
}

func kafkaRestarts(t *testing.T, m mode) {
	kafka := privateKafka(t)
	w := newWorldIn(t, m, nil, kafka, "events")
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate = 2000 })
	p := w.start()
	for _, end := range []func() error{kafka.Stop, kafka.Kill} {
		w.received(w.checker.Received() + 2000)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		eventually(t, 30*time.Second, "an unready forwarder while the broker is away", func() bool {
			ok, _ := p.ready()
			return !ok
		})
		if !p.running() {
			t.Fatal("the forwarder ended because the broker was away")
		}
		if err := kafka.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.awaitReady()
	}
	writer.stop()
	w.verdict()
	p.stop()
}
