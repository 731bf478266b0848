package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// streaming is a forwarder over a stream.
type streaming struct {
	*Stream
	t         testing.TB
	forwarder *lanes.Forwarder
	sink      *recorder
	logged    *logText
	stop      func() // ends both in order, once
}

// stream opens the outbox as a stream and forwards it until the test ends.
func (w *world) stream(change ...func(*Config)) *streaming {
	w.t.Helper()
	return w.streamTo(&recorder{}, lanes.Config{}, change...)
}

func (w *world) streamTo(sink *recorder, tune lanes.Config, change ...func(*Config)) *streaming {
	w.t.Helper()
	return w.streamOwned(sink, tune, nil, change...)
}

// streamOwned has a sink of any kind, which it remembers where it is a recorder.
func (w *world) streamOwned(sink lanes.Sink, tune lanes.Config, owner lanes.Owner, change ...func(*Config)) *streaming {
	w.t.Helper()
	st := &streaming{t: w.t, logged: &logText{}}
	st.sink, _ = sink.(*recorder)
	cfg := w.config(append([]func(*Config){func(c *Config) { c.Logger = st.logged.logger() }}, change...)...)
	var err error
	if st.Stream, err = OpenStream(w.t.Context(), cfg); err != nil {
		w.t.Fatal(err)
	}
	tune.Lanes = st.Lanes()
	st.forwarder, err = lanes.NewForwarder(tune, st.Stream, sink, st.logged.logger(), patience)
	if err != nil {
		w.t.Fatal(err)
	}
	if owner == nil {
		owner = lanes.Sole{Lanes: st.Lanes()}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if err := st.forwarder.Run(ctx, owner); err != nil {
			w.t.Errorf("the forwarder ended with: %v", err)
		}
	})
	work.Go(func() {
		if err := st.Run(ctx); err != nil {
			w.t.Errorf("the stream ended with: %v", err)
		}
	})
	st.stop = sync.OnceFunc(func() {
		cancel()
		work.Wait()
		st.Close()
	})
	w.t.Cleanup(func() {
		st.stop()
		if w.t.Failed() {
			w.t.Logf("log:\n%s", st.logged)
		}
	})
	return st
}

// live waits until reads are answered from the log.
func (st *streaming) live() {
	st.t.Helper()
	eventually(st.t, "the log is streamed", func() bool { return st.Stats().Complete })
}

// counters is a table of the keys' last numbers: a writer that takes a key's next number serialises on it, and
// rolls it back with its events. So the numbers of a key are 1 to its counter, in commit order.
const counters = `CREATE TABLE counters AS SELECT 'k' || i AS key, 0 AS n FROM generate_series(0, 19) i`

// writeTransaction writes a random transaction with events of some keys.
func writeTransaction(ctx context.Context, conn *pgx.Conn, random *rand.Rand) error {
	keys := random.Perm(20)[:1+random.IntN(4)]
	slices.Sort(keys) // no deadlocks
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it may have been committed
	write := func(key, count int) error {
		var n int
		name := fmt.Sprint("k", key)
		if err := tx.QueryRow(ctx, "UPDATE counters SET n = n + $2 WHERE key = $1 RETURNING n", name, count).Scan(&n); err != nil {
			return err
		}
		if count == 1 {
			_, err := tx.Exec(ctx, "INSERT INTO outbox (topic, key, payload) VALUES ('t', $1, $2)", name, []byte(fmt.Sprint(n)))
			return err
		}
		var text strings.Builder
		for i := n - count + 1; i <= n; i++ {
			fmt.Fprintf(&text, "t\t%s\t%d\n", name, i)
		}
		_, err := tx.Conn().PgConn().CopyFrom(ctx, strings.NewReader(text.String()), "COPY outbox (topic, key, payload) FROM STDIN")
		return err
	}
	for _, key := range keys {
		switch random.IntN(8) {
		case 0: // a sub-transaction that is given up
			if _, err := tx.Exec(ctx, "SAVEPOINT s"); err != nil {
				return err
			}
			if err := write(key, 1); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "ROLLBACK TO s"); err != nil {
				return err
			}
		case 1: // one that is kept
			if _, err := tx.Exec(ctx, "SAVEPOINT s"); err != nil {
				return err
			}
			if err := write(key, 1+random.IntN(3)); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "RELEASE s"); err != nil {
				return err
			}
		case 2:
			err = write(key, 2+random.IntN(200))
		default:
			err = write(key, 1)
		}
		if err != nil {
			return err
		}
	}
	if random.IntN(10) == 0 { // a long one
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", random.Float64()*0.2); err != nil {
			return err
		}
	}
	switch random.IntN(8) {
	case 0:
		return tx.Rollback(ctx)
	case 1: // in two phases
		name := fmt.Sprintf("'x%d_%d'", random.Uint64(), random.Uint64())
		if _, err := tx.Exec(ctx, "PREPARE TRANSACTION "+name); err != nil {
			return err
		}
		end := "COMMIT PREPARED "
		if random.IntN(3) == 0 {
			end = "ROLLBACK PREPARED "
		}
		_, err := conn.Exec(ctx, end+name)
		return err
	}
	return tx.Commit(ctx)
}

// write writes transactions from several sessions at once for a while.
func (w *world) write(writers, transactions int) {
	w.t.Helper()
	var work sync.WaitGroup
	for i := range writers {
		conn := w.session()
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for range transactions {
				if err := writeTransaction(context.Background(), conn, random); err != nil {
					w.t.Errorf("writing: %v", err)
					return
				}
			}
		})
	}
	work.Wait()
}

// judge compares what was acknowledged with what was committed: all of it, once, and in the
// order of each key.
func (w *world) judge(acked []*source.Event) {
	w.t.Helper()
	byKey := make(map[string][]string)
	for _, ev := range acked {
		byKey[string(ev.Key)] = append(byKey[string(ev.Key)], string(ev.Payload))
	}
	rows, err := w.conn.Query(context.Background(), "SELECT key, n FROM counters")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	total := 0
	for rows.Next() {
		var key string
		var n int
		if err := rows.Scan(&key, &n); err != nil {
			w.t.Fatal(err)
		}
		want := make([]string, n)
		for i := range want {
			want[i] = fmt.Sprint(i + 1)
		}
		if got := byKey[key]; !slices.Equal(got, want) {
			w.t.Errorf("key %s: %d events, want 1 to %d in order: %s", key, len(got), n, firstDifference(got, want))
		}
		total += n
	}
	if total == 0 {
		w.t.Error("nothing was written")
	}
}

func firstDifference(got, want []string) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("number %d is %s", i+1, got[i])
		}
	}
	return fmt.Sprintf("equal up to number %d", min(len(got), len(want)))
}

// keepCutting ends the replication connections of the test's database again and again, until end is called.
func (w *world) keepCutting() (end func()) {
	conn := w.session()
	cutting, stop := context.WithCancel(context.Background())
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for {
			select {
			case <-cutting.Done():
				return
			case <-time.After(700 * time.Millisecond):
				run(w.t, conn, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()")
			}
		}
	})
	end = sync.OnceFunc(func() {
		stop()
		cutter.Wait()
	})
	w.t.Cleanup(end)
	return end
}

// TestStreamUnderLoad: nothing is lost, doubled or out of order, whatever kinds of transactions
// run while the stream begins, runs, loses its connection and begins again.
func TestStreamUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, counters)
	w.publish()
	w.write(2, 10) // there is something before the stream
	st := w.stream()
	end := w.keepCutting()
	w.write(6, 150)
	end()
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	w.judge(st.sink.events())
	st.again(2)
	t.Logf("%d events, %+v", st.sink.count(), st.Stats())
}

// TestStreamsShareLanes: replicas with a slot each hand lanes to and fro under load, and nothing
// is lost, doubled or out of order.
func TestStreamsShareLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, counters)
	w.publish()
	sink := &recorder{} // of both, since the order is that of the topic
	var holders []lanes.Holder
	var streams []*streaming
	for range 2 {
		owner := newGiver(256)
		streams = append(streams, w.streamOwned(sink, lanes.Config{}, owner))
		holders = append(holders, <-owner.holder)
	}
	all := newGiver(256).all()
	holders[0].Gain(all[:128])
	holders[1].Gain(all[128:])
	streams[0].live()
	streams[1].live()
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		w.write(4, 100)
	}()
	for round := range 6 {
		list, from := all[:128], round%2
		if round%4 >= 2 {
			list, from = all[128:], 1-from
		}
		var given sync.WaitGroup
		given.Add(len(list))
		holders[from].Drain(list, func(source.Lane) { given.Done() })
		given.Wait()
		holders[1-from].Gain(list)
		n := sink.count()
		eventually(t, "more is delivered", func() bool { return sink.count() > n+200 || w.rows() == 0 })
	}
	<-writing
	eventually(t, "the outbox is empty", func() bool { return w.rows() == 0 })
	w.judge(sink.events())
	for _, st := range streams {
		t.Logf("%+v", st.Stats().Stats)
	}
}

// streamProblems returns the text of the SetupError that OpenStream must end with.
func (w *world) streamProblems(change ...func(*Config)) []string {
	w.t.Helper()
	s, err := OpenStream(w.t.Context(), w.config(change...))
	if err == nil {
		s.Close()
		w.t.Fatal("an outbox that cannot be streamed was opened")
	}
	var setup *source.SetupError
	if !errors.As(err, &setup) {
		w.t.Fatalf("not a SetupError: %v", err)
	}
	return setup.Problems
}
