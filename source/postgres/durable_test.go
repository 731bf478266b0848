package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// lasting is a forwarder over a durable stream.
type lasting struct {
	*Durable
	t         testing.TB
	forwarder *lanes.Forwarder
	sink      *recorder
	logged    *logText
	stop      func() // ends both in order, once
	crash     func() // ends both at once, as far as a goroutine can be ended
}

// durable opens the outbox with a durable slot and forwards it until the test ends.
func (w *world) durable(sink *recorder, owner lanes.Owner, change ...func(*Config)) *lasting {
	w.t.Helper()
	l := &lasting{t: w.t, sink: sink, logged: &logText{}}
	cfg := w.config(append([]func(*Config){func(c *Config) { c.Logger = l.logged.logger() }}, change...)...)
	var err error
	if l.Durable, err = OpenDurable(w.t.Context(), cfg); err != nil {
		w.t.Fatal(err)
	}
	l.forwarder, err = lanes.NewForwarder(lanes.Config{Lanes: l.Lanes()}, l.Durable, sink, l.logged.logger(), patience)
	if err != nil {
		w.t.Fatal(err)
	}
	if owner == nil {
		owner = lanes.Sole{Lanes: l.Lanes()}
	}
	ctx, cancel := context.WithCancel(context.Background())
	reading, unread := context.WithCancel(context.Background())
	var forwarding, streaming sync.WaitGroup
	forwarding.Go(func() {
		if err := l.forwarder.Run(ctx, l.Owner(owner)); err != nil && !errors.Is(err, lanes.ErrGrace) {
			w.t.Errorf("the forwarder ended with: %v", err)
		}
	})
	streaming.Go(func() {
		if err := l.Run(reading); err != nil {
			w.t.Errorf("the stream ended with: %v", err)
		}
	})
	end := sync.OnceFunc(func() {
		cancel()
		forwarding.Wait()
		unread()
		streaming.Wait()
		l.Close()
	})
	l.stop = end
	l.crash = func() {
		unread()
		streaming.Wait()
	}
	w.t.Cleanup(func() {
		sink.release()
		l.stop()
		if w.t.Failed() {
			w.t.Logf("log:\n%s", l.logged)
		}
		// The test may have ended its own server; on a shared one a slot that stays keeps the database.
		_, _ = w.conn.Exec(context.Background(), "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", l.slot)
	})
	return l
}

func (l *lasting) live() {
	l.t.Helper()
	eventually(l.t, "the log is streamed", func() bool { return l.Stats().Streaming })
}

// confirmed is what the server knows as confirmed.
func (l *lasting) confirmedAt(w *world) pglogrepl.LSN {
	l.t.Helper()
	lsn, err := pglogrepl.ParseLSN(value[string](w, "SELECT coalesce((SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1), '0/0')", l.slot))
	if err != nil {
		l.t.Fatal(err)
	}
	return lsn
}

func (w *world) lsn() pglogrepl.LSN {
	w.t.Helper()
	lsn, err := pglogrepl.ParseLSN(value[string](w, "SELECT pg_current_wal_insert_lsn()::text"))
	if err != nil {
		w.t.Fatal(err)
	}
	return lsn
}

// delivered waits until n events are acknowledged and the outbox is empty, and asserts that
// they were n.
func (l *lasting) delivered(w *world, n int) {
	l.t.Helper()
	eventually(l.t, fmt.Sprintf("%d events are delivered and deleted", n), func() bool { return l.sink.count() >= n && w.rows() == 0 })
	if got := l.sink.count(); got != n {
		l.t.Errorf("%d events were acknowledged, want %d", got, n)
	}
}

// TestDurableUnderLoad: rows from before the slot, under load, through lost connections and a
// clean restart: every event once, in the order of its key.
func TestDurableUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, counters)
	w.publish()
	w.write(2, 10)
	sink := &recorder{}
	first := w.durable(sink, nil)
	end := w.keepCutting()
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		w.write(6, 100)
	}()
	eventually(t, "a good part is delivered", func() bool { return sink.count() > 5000 })
	first.stop()
	second := w.durable(sink, nil)
	<-writing
	end()
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	eventually(t, "everything is confirmed", func() bool { return second.Stats().Waiting+second.Stats().Out == 0 })
	w.judge(sink.events())
	t.Logf("%d events, %+v", sink.count(), second.Stats())
}

// TestDurableDeliversWhatIsNotInTheTable: rows that their writer deletes itself, and messages.
func TestDurableDeliversWhatIsNotInTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	sink := &recorder{}
	l := w.durable(sink, nil)
	l.live()
	w.exec("BEGIN; INSERT INTO outbox (topic, key, payload) VALUES ('t', 'k', 'gone'); DELETE FROM outbox; COMMIT")
	for _, content := range []string{
		`{"topic": "t", "key": "k", "headers": {"a": "b", "n": null}, "payload": {"x": 1.10, "y":[1]}}`,
		`{"topic": "t", "payload": "text \u00fc"}`,
		`{"topic": "t", "key": "", "payload": null}`,
		`{"topic": "t", "key": "k", "payload_base64": "AP8K"}`,
		`{"topic": "t", "paylaod": 1}`,
		`no json`,
		`{"key": "k"}`,
	} {
		w.exec("SELECT pg_logical_emit_message(true, 'outbox', $1)", content)
	}
	w.exec("SELECT pg_logical_emit_message(true, 'other', 'x'), pg_logical_emit_message(false, 'outbox', 'x'), pg_logical_emit_message(false, 'outbox', 'x')")
	w.exec("BEGIN; SELECT pg_logical_emit_message(true, 'outbox', '{\"topic\": \"t\"}'); ROLLBACK")
	w.exec("INSERT INTO outbox (topic, key, payload) VALUES ('t', 'k', 'row')")
	l.delivered(w, 9)
	var got []string
	for _, ev := range sink.events() {
		got = append(got, fmt.Sprintf("%s %q(%v) %q(%v) %d headers, defect %v", ev.Topic, ev.Key, ev.Key == nil, ev.Payload, ev.Payload == nil, len(ev.Headers), ev.Defect != nil))
		if ev.Name() == "" || ev.Created.IsZero() || time.Since(ev.Created).Abs() > time.Hour {
			t.Errorf("named %q, created %v", ev.Name(), ev.Created)
		}
		if ev.Ref != "" && !strings.Contains(ev.Ref, "/") && ev.Ref != "1" && ev.Ref != "2" {
			t.Errorf("named %q", ev.Ref)
		}
	}
	// Those of other keys may overtake.
	for _, want := range []string{
		`t "k"(false) "gone"(false) 0 headers, defect false`,
		`t "k"(false) "{\"x\": 1.10, \"y\":[1]}"(false) 2 headers, defect false`,
		`t ""(true) "text ü"(false) 0 headers, defect false`,
		`t ""(false) ""(true) 0 headers, defect false`,
		`t "k"(false) "\x00\xff\n"(false) 0 headers, defect false`,
		` ""(true) ""(true) 0 headers, defect true`,
		` "k"(false) ""(true) 0 headers, defect true`,
		`t "k"(false) "row"(false) 0 headers, defect false`,
	} {
		if !strings.Contains(strings.Join(got, "\n")+"\n", want+"\n") {
			t.Errorf("not delivered: %s\namong\n%s", want, strings.Join(got, "\n"))
		}
	}
	if n := strings.Count(l.logged.String(), "messages outside of a transaction"); n != 1 {
		t.Errorf("the messages outside of a transaction were told %d times", n)
	}
}

// TestC23ConfirmedIsDelivered: the slot never passes a transaction of which anything is not
// delivered, whatever keep-alives come, and what was not confirmed comes again after a crash.
func TestC23ConfirmedIsDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.setDatabase("wal_sender_timeout", "1s")
	w.publish()
	sink := &recorder{}
	l := w.durable(sink, nil)
	l.live()
	w.exec("INSERT INTO outbox (topic, key) VALUES ('t', 'before')")
	l.delivered(w, 1)
	before := w.lsn()
	sink.mu.Lock()
	sink.keep = func(ev *source.Event) bool { return string(ev.Key) == "kept" }
	sink.mu.Unlock()
	w.exec("INSERT INTO outbox (topic, key, payload) VALUES ('t', 'a', '1'), ('t', 'b', '2'), ('t', 'kept', '3')")
	after := w.lsn()
	w.exec("INSERT INTO outbox (topic, key, payload) SELECT 't', 'later' || i, 'x' FROM generate_series(1, 6) i")
	eventually(t, "one is in flight, the others are delivered", func() bool { return sink.inFlight() == 1 && sink.count() == 9 && w.rows() == 1 })
	waited := time.Now().Add(2 * time.Second) // several keep-alives
	eventually(t, "keep-alives have passed", func() bool { return time.Now().After(waited) })
	if at := l.confirmedAt(w); at > after || at < before-1<<20 {
		t.Errorf("confirmed %s, and the transaction that is not delivered ends before %s", at, after)
	}
	l.crash()
	if at := l.confirmedAt(w); at > after {
		t.Errorf("confirmed %s at the end", at)
	}
	// The transaction comes again as a whole, and so does what came after it.
	second := &recorder{}
	l = w.durable(second, nil)
	l.delivered(w, 9)
	var payloads []string
	for _, ev := range second.events() {
		payloads = append(payloads, string(ev.Payload))
	}
	slices.Sort(payloads)
	if !slices.Equal(payloads, []string{"1", "2", "3", "x", "x", "x", "x", "x", "x"}) {
		t.Errorf("the second run's events are %q", payloads)
	}
	eventually(t, "everything is confirmed", func() bool { return l.confirmedAt(w) > after })
}

// TestC24RefusedRecord: a record that is refused for good holds the slot before its transaction,
// while the rows after it are delivered. Its own row stays.
func TestC24RefusedRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.setDatabase("wal_sender_timeout", "1s")
	w.publish()
	sink := &recorder{refuse: func(ev *source.Event) bool { return string(ev.Payload) == "bad" }}
	l := w.durable(sink, nil)
	l.live()
	w.exec("INSERT INTO outbox (topic, key, payload) SELECT 't', 'k' || i, CASE i WHEN 10 THEN 'bad' ELSE 'good' END::bytea FROM generate_series(1, 20) i")
	after := w.lsn()
	w.exec("INSERT INTO outbox (topic, key, payload) SELECT 't', 'k' || i, 'good' FROM generate_series(1, 20) i")
	eventually(t, "all but its key's are delivered", func() bool { return sink.count() == 38 && w.rows() == 2 })
	parked := l.forwarder.Parked()
	if len(parked) != 1 || !strings.Contains(fmt.Sprint(parked[0].Event), "10") && !strings.Contains(fmt.Sprintf("%+v", parked[0]), "10") {
		t.Errorf("parked: %+v", parked)
	}
	waited := time.Now().Add(time.Second)
	eventually(t, "keep-alives have passed", func() bool { return time.Now().After(waited) })
	if at := l.confirmedAt(w); at > after {
		t.Errorf("confirmed %s, and the transaction ends before %s", at, after)
	}
}

// TestC52DurableSlowSink: while the broker takes nothing and memory is full, the log is not read
// on, and the session lives on with the position as it was.
func TestC52DurableSlowSink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.setDatabase("wal_sender_timeout", "3s")
	w.publish()
	sink := &recorder{keep: func(*source.Event) bool { return true }}
	l := w.durable(sink, nil)
	l.live()
	w.exec("INSERT INTO outbox (topic, key) SELECT 't', 'k' || i FROM generate_series(1, 80000) i")
	after := w.lsn()
	eventually(t, "memory is full", func() bool { s := l.Stats(); return s.Waiting+s.Out >= 65536 })
	ended := time.Now().Add(minSilence + 3*time.Second)
	eventually(t, "everybody's time is over", func() bool { return time.Now().After(ended) })
	if at := l.confirmedAt(w); at >= after {
		t.Errorf("confirmed %s, and nothing is delivered up to %s", at, after)
	}
	sink.release()
	l.delivered(w, 80000)
	if begun := l.Stats().Begun; begun != 1 {
		t.Errorf("the log was begun %d times", begun)
	}
}

// TestC22DurableQuiet: while the outbox is quiet and others write, the slot keeps no log.
func TestC22DurableQuiet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "CREATE TABLE other (text text)")
	w.setDatabase("wal_sender_timeout", "3s")
	w.publish()
	l := w.durable(&recorder{}, nil)
	l.live()
	w.exec("INSERT INTO outbox (topic) VALUES ('t')")
	l.delivered(w, 1)
	w.exec("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
	end := w.lsn()
	eventually(t, "the slot is past what others wrote", func() bool { return l.confirmedAt(w) >= end })
}
