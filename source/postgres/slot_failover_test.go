package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/source"
)

// pair is a primary whose standby copies its slots, with an outbox for a durable stream.
type pair struct {
	*world           // on the primary
	primary, standby *servers.Postgres
	both             func(*Config) // leads to whichever is the primary
}

func newPair(t *testing.T, statements ...string) *pair {
	t.Helper()
	p := &pair{primary: newestServer(t)}
	worldAt(t, p.primary.URL("postgres"), "SELECT pg_create_physical_replication_slot('standby')")
	p.standby = standbyOf(t, p.primary, map[string]string{
		"primary_slot_name": "standby", "hot_standby_feedback": "on", "sync_replication_slots": "on",
	})
	p.world = worldAt(t, p.primary.URL("postgres"), statements...)
	p.beside(Config{})
	p.publish()
	p.reconfigure("synchronized_standby_slots", "standby")
	either := hosts(t, p.standby, p.primary) + "&target_session_attrs=read-write"
	p.both = func(c *Config) { c.URL = either }
	return p
}

// failover lets the slot exist on standbys.
func failover(c *Config) { c.SlotFailover = true }

// synced waits until the standby has the slot with everything that is written confirmed.
func (p *pair) synced(slot string) {
	p.t.Helper()
	at := p.lsn()
	standby := worldAt(p.t, p.standby.URL("postgres"))
	eventually(p.t, "the standby has the slot", func() bool {
		p.exec("SELECT pg_log_standby_snapshot()")         // lets the slot move on
		standby.exec("SELECT pg_catalog.pg_reload_conf()") // wakes who copies it
		return value[bool](standby, "SELECT coalesce((SELECT synced AND NOT temporary AND confirmed_flush_lsn >= $2::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $1), false)", slot, at.String())
	})
}

// promote kills the primary and returns the world on what was its standby.
func (p *pair) promote() *world {
	p.t.Helper()
	if err := p.primary.Kill(); err != nil {
		p.t.Fatal(err)
	}
	return worldAt(p.t, p.standby.URL("postgres"), "SELECT pg_promote()")
}

// say writes numbers as messages, a transaction each.
func (w *world) say(from, to int) {
	w.t.Helper()
	for i := from; i <= to; i++ {
		w.exec("SELECT pg_logical_emit_message(true, 'outbox', $1)", fmt.Sprintf(`{"topic": "t", "key": "k", "payload": "%d"}`, i))
	}
}

// TestC40FailoverSlot: what was in the log alone when the primary died, while nobody forwarded, is
// delivered by the promoted standby where the slot was there too. Without that it is lost, which is
// told.
func TestC40FailoverSlot(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprintf("failover %v", there), func(t *testing.T) {
			t.Parallel()
			p := newPair(t, outbox)
			change := []func(*Config){p.both}
			if there {
				change = append(change, failover)
			}
			sink := &recorder{}
			l := p.durable(sink, nil, change...)
			l.live()
			p.insert(1, 50)
			l.delivered(p.world, 50)
			if there {
				p.synced(l.slot)
			}
			l.stop()
			p.say(51, 60)
			p.exec("BEGIN; INSERT INTO outbox (topic, key, payload) VALUES ('t', 'k', '61'); DELETE FROM outbox; COMMIT")
			p.insert(62, 70)
			p.standbyCaughtUp()
			promoted := p.promote()
			promoted.say(71, 75)
			again := &recorder{}
			l = promoted.durable(again, nil, change...)
			l.live()
			promoted.insert(76, 80)
			eventually(t, "the last is delivered", func() bool { return slices.Contains(again.payloads(), "80") && promoted.rows() == 0 })
			told := strings.Contains(l.logged.String(), "the replication slot is made anew")
			if !there {
				wantPayloads(t, again, numbers(62, 70), numbers(76, 80))
				if !told || !strings.Contains(l.logged.String(), "it is gone") {
					t.Error("it was not told that messages may be lost")
				}
				return
			}
			t.Logf("%d repeats", again.count()-30)
			wantPayloads(t, again, numbers(51, 80))
			if told || strings.Contains(l.logged.String(), "WARN") {
				t.Errorf("it warned:\n%s", l.logged)
			}
		})
	}
}

// TestFailoverSlotUnderLoad: a forwarder that lives goes on from the standby's slot when the primary
// dies under load. Nothing is lost or out of order, and what comes again is what was delivered
// since the standby had copied the slot.
func TestFailoverSlotUnderLoad(t *testing.T) {
	t.Parallel()
	p := newPair(t, outbox, counters)
	sink := &recorder{}
	l := p.durable(sink, nil, p.both, failover)
	l.live()
	p.write(2, 10)
	eventually(t, "all are delivered and confirmed", func() bool { return p.rows() == 0 && l.Stats().Waiting+l.Stats().Out == 0 })
	p.synced(l.slot)
	before := sink.count()
	ctx, end := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	var cfg Config
	p.both(&cfg)
	for i := range 4 {
		writers.Go(func() { writeOn(ctx, cfg.URL, fmt.Sprint("k", i)) })
	}
	more := func(n int) {
		t.Helper()
		so := sink.count()
		eventually(t, "more is delivered", func() bool { return sink.count() > so+n })
	}
	more(500)
	promoted := p.promote()
	old := sink.count()
	eventually(t, "the log is streamed again", func() bool { s := l.Stats(); return s.Streaming && s.Begun == 2 })
	more(500)
	end()
	writers.Wait()
	total := value[int](promoted, "SELECT sum(n) FROM counters")
	var once, again []*source.Event
	eventually(t, "all is delivered", func() bool {
		once, again = repeated(sink.events())
		return len(once) >= total && promoted.rows() == 0
	})
	t.Logf("%d events, of which %d were delivered between the standby's copy of the slot and the end of the primary: %d repeats", total, old-before, len(again))
	if len(again) > old-before {
		t.Errorf("%d repeats of %d", len(again), old-before)
	}
	promoted.judge(once)
	if strings.Contains(l.logged.String(), "made anew") {
		t.Error("it warned of a slot that was lost")
	}
}

// repeated tells first occurrences of events from later ones.
func repeated(events []*source.Event) (once, again []*source.Event) {
	seen := make(map[string]bool)
	for _, ev := range events {
		name := string(ev.Key) + " " + string(ev.Payload)
		if seen[name] {
			again = append(again, ev)
		} else {
			once = append(once, ev)
		}
		seen[name] = true
	}
	return once, again
}

// writeOn writes events of a key one after the other, as rows and as messages in turn, to the
// primary of the moment.
func writeOn(ctx context.Context, address, key string) {
	writes := []string{
		"INSERT INTO outbox (topic, key, payload) SELECT 't', $1, convert_to(n::text, 'UTF8') FROM c",
		"SELECT pg_logical_emit_message(true, 'outbox', json_build_object('topic', 't', 'key', $1::text, 'payload', n::text)::text) FROM c",
	}
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, address)
		if err != nil { // there is none at the moment
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		for i := 0; ctx.Err() == nil && err == nil; i++ {
			_, err = conn.Exec(context.Background(), "WITH c AS (UPDATE counters SET n = n + 1 WHERE key = $1 RETURNING n) "+writes[i%2], key)
		}
		_ = conn.Close(context.Background())
	}
}

// TestSlotFailoverIsSwitchedOn: a slot that was made before the setting fails over from then on.
func TestSlotFailoverIsSwitchedOn(t *testing.T) {
	t.Parallel()
	w := worldAt(t, newestServer(t).URL("postgres"), outbox)
	w.beside(Config{})
	w.publish()
	fails := func(slot string) bool {
		return value[bool](w, "SELECT failover FROM pg_replication_slots WHERE slot_name = $1", slot)
	}
	sink := &recorder{}
	l := w.durable(sink, nil)
	l.live()
	if fails(l.slot) {
		t.Error("it fails over without the setting")
	}
	l.stop()
	w.insert(1, 5)
	l = w.durable(sink, nil, failover)
	l.delivered(w, 5)
	if !fails(l.slot) {
		t.Error("it does not fail over")
	}
}

// TestLastPositionOfAnotherHistory: what was delivered of a primary that died is not confirmed to a
// standby that was promoted without it, where the same positions are those of other transactions.
func TestLastPositionOfAnotherHistory(t *testing.T) {
	t.Parallel()
	p := newPair(t, outbox)
	sink := &recorder{}
	l := p.durable(sink, nil, p.both, failover)
	l.live()
	p.insert(1, 50)
	l.delivered(p.world, 50)
	p.synced(l.slot)
	p.reconfigure("synchronized_standby_slots", "")
	worldAt(t, p.standby.URL("postgres")).reconfigure("primary_conninfo", "")
	p.insert(51, 100)
	l.delivered(p.world, 100)
	if err := p.primary.Kill(); err != nil {
		t.Fatal(err)
	}
	l.crash()
	promoted := worldAt(t, p.standby.URL("postgres"), "SELECT pg_promote()")
	promoted.say(101, 110)
	l.leave()
	again := &recorder{}
	l = promoted.durable(again, nil, p.both, failover)
	eventually(t, "all are delivered", func() bool { return again.count() >= 10 })
	wantPayloads(t, again, numbers(101, 110))
	// In its own history it is.
	l.crash()
	before := l.confirmedAt(promoted)
	promoted.say(111, 111)
	l.log.Idle(promoted.lsn())
	l.leave()
	if at := l.confirmedAt(promoted); at <= before {
		t.Errorf("confirmed %s, as before", at)
	}
}
