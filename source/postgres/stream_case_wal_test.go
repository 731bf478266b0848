package postgres

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// everything in flight stays there.
func keepAll(*source.Event) bool { return true }

// retained is how much log the server keeps for the slots of the database, and how much of it
// they have not confirmed, in bytes.
func (w *world) retained() (kept, unconfirmed int64) {
	w.t.Helper()
	err := w.conn.QueryRow(context.Background(), `
		SELECT coalesce(max(pg_current_wal_lsn() - restart_lsn), 0)::int8, coalesce(max(pg_current_wal_lsn() - confirmed_flush_lsn), 0)::int8
		FROM pg_replication_slots WHERE database = current_database()`).Scan(&kept, &unconfirmed)
	if err != nil {
		w.t.Fatal(err)
	}
	return kept, unconfirmed
}

const noise = "CREATE TABLE noise (a text)"

// loud writes so many megabytes of log that have nothing to do with the outbox.
func (w *world) loud(megabytes int) {
	w.t.Helper()
	w.exec("TRUNCATE noise")
	w.exec("ALTER TABLE noise ALTER a SET STORAGE EXTERNAL")
	w.exec("INSERT INTO noise SELECT repeat(chr(65 + i % 26), 1 << 20) FROM generate_series(1, $1::int) i", megabytes)
}

// letsGo waits until the server keeps little log for the outbox. A slot's oldest log moves on
// when the server notes which transactions run, every 15 s by itself, and at a checkpoint.
func (w *world) letsGo(limit int64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("less than %d bytes of log are unconfirmed", limit), func() bool {
		_, unconfirmed := w.retained()
		return unconfirmed < limit
	})
	eventually(w.t, fmt.Sprintf("less than %d bytes of log are kept", limit), func() bool {
		w.exec("CHECKPOINT")
		kept, _ := w.retained()
		return kept < limit
	})
}

// TestStreamRetainsNoLog holds the cases of a server's log on a server of their own.
func TestStreamRetainsNoLog(t *testing.T) {
	t.Parallel()
	server := ownServer(t, map[string]string{"max_wal_size": "128MB", "min_wal_size": "32MB", "wal_keep_size": "0"})
	home := worldAt(t, server.URL("postgres"))
	t.Run("C22 idle outbox", func(t *testing.T) { c22Idle(t, home) })
	t.Run("C22 no answer from Kafka", func(t *testing.T) { c22Away(t, home) })
	t.Run("C41 slot invalidated", func(t *testing.T) { c41(t, home) })
	t.Run("server stops", func(t *testing.T) { serverStops(t, server, home) })
	t.Run("server stops with a durable slot", func(t *testing.T) { serverStopsDurable(t, server, home) })
}

// serverStops: a server that shuts down waits until its log is confirmed. It is, although
// nothing is acknowledged, and the stream goes on when the server is back.
func serverStops(t *testing.T, server *servers.Postgres, home *world) {
	w := home.of(t).database("stopped", outbox)
	w.publish()
	st := w.streamTo(&recorder{keep: keepAll}, lanes.Config{})
	st.live()
	w.insert(1, 1000)
	eventually(t, "rows are in flight", func() bool { return st.sink.inFlight() > 0 })
	w.restart(server, home.t)
	w.insert(1001, 1010)
	st.again(2)
	st.sink.release()
	st.numbered(w, 1010)
}

// serverStopsDurable: the log of a durable slot is not confirmed before it is delivered, so the
// connection is given up for the server to stop.
func serverStopsDurable(t *testing.T, server *servers.Postgres, home *world) {
	w := home.of(t).database("stopped_durable", outbox)
	w.publish()
	st := w.durable(&recorder{keep: keepAll}, nil)
	st.live()
	w.insert(1, 1000)
	eventually(t, "rows are in flight", func() bool { return st.sink.inFlight() > 0 })
	w.restart(server, home.t)
	w.insert(1001, 1010)
	st.live()
	st.sink.release()
	st.delivered(w, 1010)
	wantNumbers(t, "acknowledged", st.sink.payloads(), 1, 1010)
}

// restart stops the server, which must end in order, and starts it again. The new session lasts
// as long as the server's test: what ends with w's own may need it.
func (w *world) restart(server *servers.Postgres, owner testing.TB) {
	w.t.Helper()
	if err := server.Stop(); err != nil {
		w.t.Error(err)
	}
	if err := server.Start(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.conn = (&world{t: owner, url: w.url}).session()
}

// TestC22ConfirmedSoon: the server does not wait for the next beat to hear of a new position.
func TestC22ConfirmedSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, noise)
	w.publish()
	tp := w.tapTuned(func(r *logReader) { r.repl.interval, r.repl.silence = time.Hour, time.Hour })
	for round := range 3 {
		w.exec("INSERT INTO noise VALUES ('a')")
		if round == 1 {
			w.insert(1, 10)
			tp.events(10)
		}
		end := value[string](w, "SELECT pg_current_wal_lsn()::text")
		eventually(t, "what was received is confirmed", func() bool {
			return value[bool](w, "SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE database = current_database()", end)
		})
	}
}

// c22Idle: while nothing comes for the outbox, the log of another table and of another database
// is confirmed as it comes.
func c22Idle(t *testing.T, home *world) {
	w := home.of(t).database("idle", outbox, noise)
	w.publish()
	elsewhere := home.of(t).database("elsewhere", noise)
	st := w.stream()
	st.live()
	w.insert(1, 1)
	st.numbered(w, 1)
	for _, busy := range []*world{w, elsewhere} {
		for range 3 {
			busy.loud(32)
			w.letsGo(4 << 20)
		}
	}
	w.insert(2, 2)
	st.numbered(w, 2)
	if n := st.Stats().Begun; n != 1 {
		t.Errorf("the log was begun %d times", n)
	}
}

// c22Away: nothing is acknowledged while a gigabyte of log is written, and the server keeps
// none of it for our sake.
func c22Away(t *testing.T, home *world) {
	w := home.of(t).database("away", outbox, noise)
	w.publish()
	st := w.streamTo(&recorder{keep: keepAll}, lanes.Config{})
	st.live()
	step, steps := 64, 16
	if testing.Short() {
		steps = 3
	}
	from := value[string](w, "SELECT pg_current_wal_lsn()::text")
	most := int64(0)
	for i := range steps {
		w.insert(1+10*i, 10+10*i)
		w.loud(step)
		w.letsGo(16 << 20)
		kept, _ := w.retained()
		most = max(most, kept)
	}
	written := value[int64](w, "SELECT (pg_current_wal_lsn() - $1::pg_lsn)::int8", from)
	t.Logf("%d MB of log written, at most %d kB kept after a checkpoint", written>>20, most>>10)
	if want := int64(step*steps) << 20; written < want {
		t.Errorf("only %d of %d bytes of log were written", written, want)
	}
	if files := value[int64](w, "SELECT sum(size)::int8 FROM pg_ls_waldir()"); files > 384<<20 {
		t.Errorf("the server keeps %d MB of log", files>>20)
	}
	st.sink.release()
	st.numbered(w, 10*steps)
	if n := st.Stats().Begun; n != 1 {
		t.Errorf("the log was begun %d times", n)
	}
}

// c41: a slot that fell too far behind is replaced by a new one, once, and nothing is lost.
func c41(t *testing.T, home *world) {
	w := home.of(t).database("behind", outbox, noise)
	w.publish()
	w.setDatabase("wal_sender_timeout", "0")
	w.reconfigure("max_slot_wal_keep_size", "16MB")
	defer w.reconfigure("max_slot_wal_keep_size", "-1")
	p, through := w.relayed(t)
	st := w.stream(through)
	st.live()
	slot := w.slots()[0]
	p.silence(true)
	w.insert(1, 10)
	for range 4 {
		w.loud(64)
		w.exec("CHECKPOINT")
	}
	w.insert(11, 20)
	eventually(t, "the slot is lost", func() bool {
		return value[int](w, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND wal_status <> 'lost'", slot) == 0
	})
	p.silence(false)
	st.again(2)
	w.insert(21, 30)
	st.numbered(w, 30)
	if n := st.Stats().Begun; n != 2 {
		t.Errorf("the log was begun %d times", n)
	}
	if list := w.slots(); len(list) != 1 || list[0] == slot {
		t.Errorf("slots %q after %s was lost", list, slot)
	}
}

// of is the world in the hands of a part of the test.
func (w *world) of(t *testing.T) *world {
	t.Helper()
	return worldAt(t, w.url)
}

// TestC23NothingHangsOnTheSlot: what was confirmed and not acknowledged is in the table, so
// another process delivers it, a rejected row (C24) as well.
func TestC23NothingHangsOnTheSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	w.setDatabase("wal_sender_timeout", "1s") // keep-alives come often
	first := w.streamTo(&recorder{keep: func(ev *source.Event) bool { return len(ev.Payload) == 1 || string(ev.Key) != "k" }}, lanes.Config{})
	first.live()
	w.insert(1, 10)
	w.exec("INSERT INTO outbox (topic, key, payload) SELECT 't', 'other' || i, '11' FROM generate_series(1, 3) i")
	eventually(t, "the rows are in flight", func() bool { return first.sink.inFlight() >= 4 })
	end := value[string](w, "SELECT pg_current_wal_lsn()::text")
	eventually(t, "the slot has passed the rows", func() bool {
		return value[bool](w, "SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE database = current_database()", end)
	})
	// The first process acknowledges no more, as if it had been killed.
	left := w.rows()
	if left < 12 {
		t.Errorf("%d rows are left in the outbox, with one delivered", left)
	}
	second := w.stream()
	eventually(t, "the second process delivers all that is left", func() bool { return second.sink.count() == left && w.rows() == 0 })
	second.live()
	second.stop()
	first.sink.release()
}

// counting is a broker that only counts, and sees that the numbers of a key ascend by one.
type counting struct {
	mu   sync.Mutex
	n    int
	last map[string]int
	bad  string
}

func (c *counting) Submit(runs [][]*source.Event, report func([]source.Outcome)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, run := range runs {
		outcomes := make([]source.Outcome, len(run))
		for i, ev := range run {
			number := 0
			_, _ = fmt.Sscan(string(ev.Payload), &number)
			if number != c.last[string(ev.Key)]+1 {
				c.bad = cmp.Or(c.bad, fmt.Sprintf("key %s: number %d after %d", ev.Key, number, c.last[string(ev.Key)]))
			}
			c.last[string(ev.Key)] = number
			outcomes[i] = source.Outcome{ID: ev.ID, Class: source.Acked}
		}
		c.n += len(run)
		report(outcomes)
	}
}

func (c *counting) Recall() {}

func (c *counting) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// TestC27OneHugeTransaction: memory does not grow with a transaction. It is not parallel, since
// it looks at the memory of the process.
func TestC27OneHugeTransaction(t *testing.T) {
	rows := 400_000
	if testing.Short() {
		rows = 50_000
	}
	w := newWorld(t, outbox)
	w.publish()
	sink := &counting{last: make(map[string]int)}
	st := w.streamOwned(sink, lanes.Config{}, nil)
	st.live()
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w.exec(`INSERT INTO outbox (topic, key, payload)
		SELECT 't', 'k' || i % 1000, convert_to(rpad((1 + (i - 1) / 1000)::text, 200), 'UTF8') FROM generate_series(1, $1::int) i`, rows)
	most, cut := uint64(0), false
	deadline := time.Now().Add(4 * patience)
	for sink.count() < rows && time.Now().Before(deadline) {
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapInuse)
		if !cut && sink.count() > rows/3 {
			cut = true
			w.cut()
		}
		time.Sleep(5 * time.Millisecond) // a look at the memory now and then
	}
	eventually(t, "the outbox is empty", func() bool { return sink.count() == rows && w.rows() == 0 })
	if sink.bad != "" {
		t.Error(sink.bad)
	}
	t.Logf("%d rows, %d MB of heap before, %d MB at most; %+v", rows, before.HeapInuse>>20, most>>20, st.Stats())
	if most > 256<<20 {
		t.Errorf("%d MB of heap in use", most>>20)
	}
	if n := st.Stats().Begun; n < 2 {
		t.Errorf("the log was begun %d times", n)
	}
}

// TestC55NothingIsLeftBehind: a process that stops, one that dies and one whose slot is being
// made leave no slot.
func TestC55NothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	none := func() bool { return len(w.slots()) == 0 }
	st := w.stream()
	st.live()
	if list := w.slots(); len(list) != 1 || !strings.HasPrefix(list[0], slotPrefix) {
		t.Errorf("slots %q", list)
	}
	st.stop()
	if !none() {
		t.Errorf("slots %q after the stop", w.slots())
	}
	p, through := w.relayed(t)
	st = w.stream(through)
	st.live()
	p.hangUp() // as the death of the process does
	eventually(t, "another slot is there, and it alone", func() bool { return st.Stats().Begun == 2 && len(w.slots()) == 1 })
	st.stop()
	eventually(t, "no slot is left", none)
}

// TestC54NoSecondPosition: the position is the slot's alone, and nobody can move it while it is
// in use. A new process begins with the table.
func TestC54NoSecondPosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	w.publish()
	st := w.stream()
	st.live()
	slot := w.slots()[0]
	for _, sql := range []string{"SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", "SELECT pg_drop_replication_slot($1)"} {
		if _, err := w.conn.Exec(t.Context(), sql, slot); sqlState(err) != objectInUse {
			t.Errorf("%s: %v", sql, err)
		}
	}
	w.insert(1, 5)
	st.numbered(w, 5)
	st.stop()
	w.insert(1, 5)
	st = w.stream()
	st.live()
	st.numbered(w, 5)
}
