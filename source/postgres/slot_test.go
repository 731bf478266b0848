package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// giver is an owner that the test tells what to do.
type giver struct {
	holder chan lanes.Holder
	n      int
}

func newGiver(n int) *giver { return &giver{make(chan lanes.Holder, 1), n} }

// Own holds what the test gives, and gives everything up in the end.
func (g *giver) Own(ctx context.Context, h lanes.Holder) error {
	g.holder <- h
	<-ctx.Done()
	return nil
}

func (g *giver) Retire() {}

func (g *giver) all() []source.Lane {
	list := make([]source.Lane, g.n)
	for i := range list {
		list[i] = source.Lane(i)
	}
	return list
}

// payloads returns the payloads of what was acknowledged.
func (r *recorder) payloads() []string {
	var list []string
	for _, ev := range r.events() {
		list = append(list, string(ev.Payload))
	}
	return list
}

func (w *world) insert(from, to int) {
	w.t.Helper()
	w.exec("INSERT INTO outbox (topic, key, payload) SELECT 't', 'k', convert_to(i::text, 'UTF8') FROM generate_series($1::int, $2::int) i", from, to)
}

// numbers are the payloads of insert.
func numbers(from, to int) []string {
	var list []string
	for i := from; i <= to; i++ {
		list = append(list, fmt.Sprint(i))
	}
	return list
}

func wantPayloads(t testing.TB, sink *recorder, want ...[]string) {
	t.Helper()
	if got := sink.payloads(); !slices.Equal(got, slices.Concat(want...)) {
		t.Errorf("delivered %q, want %q", got, slices.Concat(want...))
	}
}

// TestDurableHandOver: when the lanes go to another replica in order, it finds the slot free and
// the last position confirmed, and repeats nothing. The one that has no lanes reads nothing.
func TestDurableHandOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	sinks := []*recorder{{}, {}}
	owners := []*giver{newGiver(256), newGiver(256)}
	replicas := []*lasting{w.durable(sinks[0], owners[0]), w.durable(sinks[1], owners[1])}
	holders := []lanes.Holder{<-owners[0].holder, <-owners[1].holder}
	holders[0].Gain(owners[0].all())
	have := 0
	for round := range 4 {
		me := round % 2
		replicas[me].live()
		if begun := replicas[1-me].Stats().Streaming; begun {
			t.Error("both stream")
		}
		w.insert(100*round+1, 100*round+100)
		have += 100
		eventually(t, "they are delivered", func() bool { return sinks[0].count()+sinks[1].count() >= have })
		var given sync.WaitGroup
		given.Add(256)
		holders[me].Drain(owners[me].all(), func(source.Lane) { given.Done() })
		given.Wait()
		if active := value[int](w, "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = $1", replicas[0].slot); active != 0 {
			t.Error("the lanes were given up before the slot")
		}
		holders[1-me].Gain(owners[1-me].all())
	}
	replicas[0].live()
	w.insert(401, 401)
	eventually(t, "the last is delivered", func() bool { return sinks[0].count()+sinks[1].count() >= 401 })
	wantPayloads(t, sinks[0], numbers(1, 100), numbers(201, 300), numbers(401, 401))
	wantPayloads(t, sinks[1], numbers(101, 200), numbers(301, 400))
	for _, r := range replicas {
		r.stop()
		if strings.Contains(r.logged.String(), "WARN") {
			t.Errorf("warned:\n%s", r.logged)
		}
	}
}

// TestC39SlotHeld: a slot that somebody else still holds is waited for, and it is said who.
func TestC39SlotHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	sinks := []*recorder{{}, {}}
	first := w.durable(sinks[0], nil)
	first.live()
	second := w.durable(sinks[1], nil) // as if the first one's lease had ended without its knowing
	eventually(t, "it is said who holds the slot", func() bool {
		pid := value[int](w, "SELECT coalesce((SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1), 0)", first.slot)
		return pid != 0 && strings.Contains(second.Stats().Waits, fmt.Sprint("is active for PID ", pid))
	})
	if len(second.Unready()) != 0 {
		t.Errorf("not ready: %q", second.Unready())
	}
	w.insert(1, 10)
	eventually(t, "they are delivered", func() bool { return sinks[0].count() == 10 })
	first.stop()
	second.live()
	w.insert(11, 20)
	eventually(t, "they are delivered", func() bool { return sinks[1].count() >= 10 })
	wantPayloads(t, sinks[0], numbers(1, 10))
	wantPayloads(t, sinks[1], numbers(11, 20))
	if n := strings.Count(second.logged.String(), "somebody else still streams"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}

// TestSlotBudget: a slot that keeps more than its budget is told of, and dropped and made anew
// where that is wished.
func TestSlotBudget(t *testing.T) {
	t.Parallel()
	for _, drop := range []bool{false, true} {
		t.Run(fmt.Sprint("drop ", drop), func(t *testing.T) {
			t.Parallel()
			server := ownServer(t, nil) // whose log nobody else fills
			w := worldAt(t, server.URL("postgres"), outbox, "CREATE TABLE other (text text)")
			w.beside(Config{})
			w.publish()
			sink := &recorder{keep: func(*source.Event) bool { return true }}
			l := w.durable(sink, nil, func(c *Config) { c.SlotBudget, c.DropOverBudget = 4<<20, drop })
			l.live()
			w.insert(1, 10)
			eventually(t, "they are in flight", func() bool { return sink.inFlight() > 0 })
			w.exec("INSERT INTO other SELECT repeat(md5(i::text), 30) FROM generate_series(1, 20000) i")
			eventually(t, "it is told", func() bool { return strings.Contains(l.logged.String(), "keeps more log than its budget") })
			if drop {
				eventually(t, "it is made anew", func() bool {
					return l.Stats().Begun == 2 && value[int](w, "SELECT (pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1", l.slot) < 4<<20
				})
			}
			sink.release()
			l.delivered(w, 10)
			wantPayloads(t, sink, numbers(1, 10))
		})
	}
}

// TestC55LeftoverSlot: slots are listed and dropped, but not while they are in use, and whoever
// polls beside one is told.
func TestC55LeftoverSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	l := w.durable(&recorder{}, nil)
	l.live()
	ours := func() (list []Slot) {
		t.Helper()
		slots, err := ListSlots(t.Context(), w.config())
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(slots, func(s Slot) bool { return s.Name != l.slot })
	}
	slots := ours()
	if len(slots) != 1 || slots[0].Table != "public.outbox" || slots[0].Active == 0 || slots[0].Temporary || slots[0].Status != "reserved" || slots[0].Database == "" {
		t.Errorf("slots: %+v", slots)
	}
	err := DropSlot(t.Context(), w.config(), l.slot)
	if !errors.Is(err, ErrSlotActive) || !strings.Contains(err.Error(), fmt.Sprint(slots[0].Active)) {
		t.Errorf("dropping a slot in use: %v", err)
	}
	if err := DropSlot(t.Context(), w.config(), "somebody_elses"); !errors.Is(err, ErrNoSlot) {
		t.Errorf("dropping what is not ours: %v", err)
	}
	l.stop()
	w.exec("INSERT INTO outbox (topic, payload) SELECT 't', repeat('x', 1000)::bytea FROM generate_series(1, 1000)")
	logged := &logText{}
	w.open(func(c *Config) { c.Logger = logged.logger() })
	if !strings.Contains(logged.String(), "that nobody uses") || !strings.Contains(logged.String(), "retained_bytes") {
		t.Errorf("the leftover was not told:\n%s", logged)
	}
	if s := ours(); len(s) != 1 || s[0].Active != 0 || s[0].Retained < 1<<20 {
		t.Errorf("slots: %+v", s)
	}
	if err := DropSlot(t.Context(), w.config(), l.slot); err != nil {
		t.Fatal(err)
	}
	if s := ours(); len(s) != 0 {
		t.Errorf("slots: %+v", s)
	}
	logged = &logText{}
	w.open(func(c *Config) { c.Logger = logged.logger() })
	if logged.String() != "" {
		t.Errorf("told without a slot:\n%s", logged)
	}
}

// TestDurableSetup: what keeps a durable slot from working is told at start.
func TestDurableSetup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	problemsOf := func(change ...func(*Config)) []string {
		t.Helper()
		l, err := OpenDurable(t.Context(), w.config(change...))
		if err == nil {
			l.Close()
			t.Fatal("it was opened")
		}
		var setup *source.SetupError
		if !errors.As(err, &setup) {
			t.Fatalf("not a SetupError: %v", err)
		}
		return setup.Problems
	}
	w.exec("DROP TABLE outbox_slots")
	problems := problemsOf()
	count(t, problems, 2)
	wantProblem(t, problems, "no publication")
	wantProblem(t, problems, "no table public.outbox_slots", "forwarder init")
	mustInit(t, w.config())
	name, login := w.role("REPLICATION")
	w.exec("GRANT ALL ON outbox, outbox_members, outbox_lanes TO " + name)
	problems = problemsOf(func(c *Config) { c.URL = login })
	count(t, problems, 1)
	wantProblem(t, problems, "may not use table public.outbox_slots", "GRANT SELECT, INSERT, UPDATE, DELETE")
	_, grant, _ := strings.Cut(problems[0], "GRANT")
	w.exec("GRANT" + grant)
	dropped := "dropped_" + strings.ToLower(name)
	w.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", dropped)
	if err := DropSlot(t.Context(), w.config(func(c *Config) { c.URL, c.Slot = login, dropped }), dropped); err != nil {
		t.Errorf("dropping a slot with those rights: %v", err)
	}
	if value[int](w, "SELECT current_setting('server_version_num')::int") < 170000 {
		wantProblem(t, problemsOf(func(c *Config) { c.SlotFailover = true }), "needs PostgreSQL 17")
	} else {
		l := w.durable(&recorder{}, nil, func(c *Config) { c.SlotFailover = true })
		l.live()
		if !value[bool](w, "SELECT (to_jsonb(s) ->> 'failover')::bool FROM pg_replication_slots s WHERE slot_name = $1", l.slot) {
			t.Error("the slot does not fail over")
		}
	}
	slot := "taken_" + strings.ToLower(name)
	w.exec("SELECT pg_create_logical_replication_slot($1, 'test_decoding')", slot)
	t.Cleanup(func() { w.dropSlot(slot) })
	wantProblem(t, problemsOf(func(c *Config) { c.Slot = slot }), "belongs to somebody else", "test_decoding", "source.postgres.slot_name")
	wantConfig := func(word string, change func(*Config)) {
		t.Helper()
		if _, err := OpenDurable(t.Context(), w.config(change)); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
	wantConfig("slot name", func(c *Config) { c.Slot = "No-Slot" })
	wantConfig("publication", func(c *Config) { c.Publication = strings.Repeat("x", 64) })
	wantConfig("slot budget", func(c *Config) { c.SlotBudget = -1 })
}

// TestRowsThatTheLogShowsFirst: while commits wait for a standby, the log brings rows that no
// statement sees yet. They are delivered, and deleted once they can be.
func TestRowsThatTheLogShowsFirst(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"temporary", "durable"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := ownServer(t, nil)
			w := worldAt(t, server.URL("postgres"), outbox)
			w.beside(Config{})
			w.publish()
			name, login := w.role("SUPERUSER")
			w.exec("ALTER ROLE " + name + " SET synchronous_commit = 'local'")
			as := func(c *Config) { c.URL = login }
			sink := &recorder{}
			if mode == "durable" {
				w.durable(sink, nil, as).live()
			} else {
				w.streamTo(sink, lanes.Config{}, as).live()
			}
			standbys := func(names string) {
				w.exec("ALTER SYSTEM SET synchronous_standby_names = '" + names + "'")
				w.exec("SELECT pg_reload_conf()")
			}
			standbys("nobody")
			writer := w.session()
			eventually(t, "the setting is there", func() bool {
				var names string
				return writer.QueryRow(t.Context(), "SHOW synchronous_standby_names").Scan(&names) == nil && names == "nobody"
			})
			w.exec("CHECKPOINT") // by the process that makes commits wait, once it knows the setting
			written := make(chan error, 1)
			go func() {
				_, err := writer.Exec(context.Background(), "INSERT INTO outbox (topic, key, payload) SELECT 't', 'k', 'p' FROM generate_series(1, 10)")
				written <- err
			}()
			eventually(t, "they are delivered", func() bool { return sink.count() == 10 })
			if n := w.rows(); n != 0 {
				t.Errorf("%d rows are visible: nothing waits", n)
			}
			standbys("")
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			eventually(t, "they are deleted", func() bool { return w.rows() == 0 && value[int](w, "SELECT count(*) FROM outbox") == 0 })
			if n := sink.count(); n != 10 {
				t.Errorf("%d events of 10", n)
			}
		})
	}
}
