package e2e

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// hold makes every delete from the outbox wait until release is called or the session that
// holds the lock is gone, so that events stay acknowledged and not deleted.
func (w *world) hold() (release func()) {
	w.t.Helper()
	conn := w.connect()
	w.execute(conn, `CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_advisory_xact_lock_shared(17); RETURN NULL; END $$`)
	w.execute(conn, "CREATE TRIGGER wait_for_test BEFORE DELETE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION wait_for_test()")
	w.execute(conn, "SELECT pg_advisory_lock(17)")
	return func() {
		w.t.Helper()
		w.execute(conn, "SELECT pg_advisory_unlock(17)")
	}
}

// TestC17DatabaseGoneBeforeDelete takes the database away while all events are acknowledged
// and none is deleted.
func TestC17DatabaseGoneBeforeDelete(t *testing.T) {
	for name, end := range map[string]func(*servers.Postgres) error{"stopped": (*servers.Postgres).Stop, "killed": (*servers.Postgres).Kill} {
		t.Run(name, func(t *testing.T) {
			db := privatePostgres(t)
			w := newWorld(t, db, nil)
			w.hold()
			w.write(func(c *oracle.WriterConfig) { c.Events, c.Keys, c.Rollback = 500, 20, 0 }).wait()
			p := w.start()
			w.received(w.left())
			if err := errors.Join(end(db), db.Start(t.Context())); err != nil {
				t.Fatal(err)
			}
			v := w.verdict()
			noRepeats(t, v)
			p.stop()
		})
	}
}

// TestC17KilledBeforeDelete kills the forwarder while all events are acknowledged and none is
// deleted: all are sent once more, the same in every byte and in the order of their keys.
func TestC17KilledBeforeDelete(t *testing.T) {
	w := newWorld(t, nil, nil)
	release := w.hold()
	w.write(func(c *oracle.WriterConfig) { c.Events, c.Keys, c.Rollback = 500, 20, 0 }).wait()
	events := w.left()
	p := w.start(shortLease)
	w.received(events)
	p.kill()
	// A delete that the killed process sent waits in the server for the lock. It must not be
	// granted: the rows would go as if the process had lived.
	w.execute(w.connect(), "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'")
	release()
	if left := w.left(); left != events {
		t.Fatalf("%d rows are left of %d, so the deletes were not held back", left, events)
	}
	p = w.start(shortLease)
	v := w.verdict()
	if v.Repeated != events {
		t.Errorf("%d repeats, want each of the %d events once more", v.Repeated, events)
	}
	p.stop()
}

// TestC18NoBroker inserts while no broker answers: the rows stay until it does. In the one
// variant nobody listens, in the other connections are accepted and nothing is answered.
func TestC18NoBroker(t *testing.T) {
	kafka := privateKafka(t)
	for _, c := range []struct {
		name    string
		end     func() error
		restore func() error
	}{
		{"stopped", kafka.Stop, func() error { return kafka.Start(t.Context()) }},
		{"silent", func() error { return syscall.Kill(kafka.PID(), syscall.SIGSTOP) }, func() error { return syscall.Kill(kafka.PID(), syscall.SIGCONT) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorldOn(t, nil, kafka, c.name)
			p := w.start()
			p.awaitReady()
			if err := c.end(); err != nil {
				t.Fatal(err)
			}
			restored := false
			t.Cleanup(func() {
				if !restored {
					_ = c.restore() // the test has failed already
				}
			})
			w.write(func(c *oracle.WriterConfig) { c.Events, c.Keys, c.MaxPerTransaction, c.Rollback = 100, 10, 1, 0 }).wait()
			always(t, 4*time.Second, "all 100 rows stay in the table", func() bool { return w.left() == 100 && p.running() })
			restored = true
			if err := c.restore(); err != nil {
				t.Fatal(err)
			}
			v := w.verdict()
			if v.Delivered != 100 {
				t.Errorf("%d events arrived, want 100", v.Delivered)
			}
			p.stop()
		})
	}
}

// TestC80BrokerDownMemory fills the outbox with far more than the forwarder may hold while the
// broker is away, watches its memory, and has everything drained afterwards.
func TestC80BrokerDownMemory(t *testing.T) {
	kafka := privateKafka(t)
	w := newWorld(t, nil, kafka)
	p := w.start()
	p.awaitReady()
	if err := kafka.Stop(); err != nil {
		t.Fatal(err)
	}
	const events, payload = 15_000, 10_000
	if err := oracle.Preload(t.Context(), oracle.PreloadConfig{URL: w.url, Topic: w.topic, Events: events, Keys: 1000, PayloadBytes: payload}); err != nil {
		t.Fatal(err)
	}
	// Give it time to read what it will, then the memory has to stand still.
	var before int64
	samples := 0
	always(t, 8*time.Second, "the forwarder lives", func() bool {
		if now, _ := p.memory(); samples < 80 { // the first 4 s
			before = max(before, now)
		}
		samples++
		return p.running()
	})
	after, peak := p.memory()
	t.Logf("backlog %d MiB: memory %d MiB, then %d MiB, peak %d MiB", events*payload>>20, before>>20, after>>20, peak>>20)
	if after > before*5/4 {
		t.Errorf("memory grew from %d to %d bytes while nothing could be sent", before, after)
	}
	if err := kafka.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.verdict()
	if peak > 128<<20 {
		t.Errorf("the peak of memory is %d bytes without a broker, want at most 128 MiB", peak)
	}
	// The backlog's rush with records of this size costs more, but not all of a small container.
	_, peak = p.memory()
	t.Logf("peak with the drain %d MiB", peak>>20)
	if peak > 256<<20 {
		t.Errorf("the peak of memory is %d bytes, want at most 256 MiB", peak)
	}
	p.stop()
}

// TestC07NothingHeldWhileSending lets the broker fall silent with records in flight: no
// transaction of the forwarder may be open, and a migration gets its lock at once.
func TestC07NothingHeldWhileSending(t *testing.T) {
	kafka := privateKafka(t)
	w := newWorld(t, nil, kafka)
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate, c.Hold = 1000, 0 })
	p := w.start()
	w.received(1000)
	if err := syscall.Kill(kafka.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(kafka.PID(), syscall.SIGCONT) }) // harmless where it runs
	begun := writer.Stats().Committed
	eventually(t, 20*time.Second, "a thousand events wait for the broker", func() bool { return writer.Stats().Committed > begun+1000 })
	writer.stop()
	if w.left() == 0 {
		t.Fatal("nothing waits, so nothing is in flight")
	}

	conn := w.connect()
	always(t, 2*time.Second, "no session of the forwarder is idle in a transaction", func() bool {
		var open int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name <> $1 AND state LIKE 'idle in transaction%'`, oracle.ApplicationName).Scan(&open)
		if err != nil {
			t.Fatal(err)
		}
		return open == 0
	})
	w.execute(conn, "SET lock_timeout = '1s'")
	w.execute(conn, "ALTER TABLE outbox ADD COLUMN trace text")

	if err := syscall.Kill(kafka.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.verdict()
	p.stop()
}

// TestC93SIGTERMWithoutBroker stops a forwarder whose records in flight nobody acknowledges, by
// one signal within its grace, and by a second one at once. No row may be lost by either.
func TestC93SIGTERMWithoutBroker(t *testing.T) {
	kafka := privateKafka(t)
	w := newWorld(t, nil, kafka)
	// stuck returns a forwarder with events in flight to a broker that is gone.
	stuck := func(grace time.Duration) *process {
		p := w.start("FORWARDER_SHUTDOWN_GRACE="+grace.String(), shortLease)
		w.write(func(c *oracle.WriterConfig) { c.Events = 500 }).wait()
		w.awaitEmpty()
		if err := kafka.Stop(); err != nil {
			t.Fatal(err)
		}
		w.write(func(c *oracle.WriterConfig) { c.Events = 500 }).wait()
		eventually(t, 20*time.Second, "a forwarder that says why it is not ready", func() bool {
			ok, words := p.ready()
			return !ok && strings.Contains(words, "kafka")
		})
		return p
	}

	const grace = 3 * time.Second
	p := stuck(grace)
	waiting := w.left()
	begun := time.Now()
	p.terminate()
	code := p.wait(grace + 2*time.Second)
	t.Logf("exit code %d after %s with a grace of %s", code, time.Since(begun).Round(time.Millisecond), grace)
	if code != 1 || !strings.Contains(p.output(), "they stay in the outbox") {
		t.Errorf("exit code %d, want 1 and the reason: a stop that had to give up is no clean one", code)
	}
	if left := w.left(); left != waiting {
		t.Errorf("%d rows are left, want all %d", left, waiting)
	}

	if err := kafka.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p = stuck(time.Minute)
	p.terminate()
	always(t, time.Second, "the first signal waits for acknowledgements", p.running)
	begun = time.Now()
	p.terminate()
	code = p.wait(2 * time.Second)
	t.Logf("exit code %d, %s after the second signal", code, time.Since(begun).Round(time.Millisecond))
	if code != 1 {
		t.Errorf("exit code %d, want 1 after a stop that was cut short", code)
	}

	if err := kafka.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p = w.start(shortLease)
	w.verdict()
	p.stop()
}
