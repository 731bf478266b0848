package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// TestC10DeadRows sends many rows while another session's snapshot keeps vacuum from removing
// any, and then counts the pages that PostgreSQL looks at for a new row: they must not grow
// with the dead ones.
func TestC10DeadRows(t *testing.T) {
	s := newStage(t, nil, nil)
	topic := s.makeTopic("", 3, nil)
	report := s.connect()
	s.execute(report, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	s.execute(report, "SELECT count(*) FROM outbox")
	p := s.start()
	const dead = 60_000
	sent := 0
	for sent < dead {
		s.sql("INSERT INTO outbox (topic, key, payload) SELECT $1, 'k' || i % 500, repeat('x', 200)::bytea FROM generate_series(1, 20000) i", topic)
		sent += 20_000
		s.arrive(topic, sent, drainLimit)
	}
	s.awaitEmpty()
	s.sql("VACUUM outbox")
	var bytes int64
	s.value(&bytes, "SELECT pg_relation_size('outbox')")
	if bytes < dead*200 {
		t.Fatalf("the table has %d bytes: the dead rows are gone, and nothing is tested", bytes)
	}
	pages := func() (seq, blocks int64) {
		if err := s.conn.QueryRow(t.Context(), `SELECT s.seq_scan, io.heap_blks_read + io.heap_blks_hit + io.idx_blks_read + io.idx_blks_hit
			FROM pg_stat_user_tables s JOIN pg_statio_user_tables io USING (relid) WHERE relid = 'outbox'::regclass`).Scan(&seq, &blocks); err != nil {
			t.Fatal(err)
		}
		return seq, blocks
	}
	seqBefore, before := pages()
	begun := time.Now()
	var slowest time.Duration
	for i := range 100 {
		at := time.Now()
		s.put(row{topic, fmt.Sprint("k", i), "x", nil})
		s.arrive(topic, sent+i+1, drainLimit)
		slowest = max(slowest, time.Since(at))
	}
	pause(t, 2*time.Second) // the server's counters lag by one
	seqAfter, after := pages()
	scans := float64(after-before) / dead
	took := time.Since(begun).Seconds()
	t.Logf("100 rows behind %d dead ones in %.1f s: slowest %s, %d pages, as many as %.1f scans of all rows look at",
		dead, took, slowest.Round(time.Millisecond), after-before, scans)
	if seqAfter != seqBefore {
		t.Errorf("%d sequential scans of the outbox", seqAfter-seqBefore)
	}
	// A scan from the table's start is due about once a second, and one for the age of the
	// oldest row every five. Were it every read, there would be some for each new row.
	if scans > 1.2*took+3 {
		t.Errorf("the dead rows were scanned %.1f times in %.1f s", scans, took)
	}
	if slowest > 2*time.Second {
		t.Errorf("a row took %s", slowest)
	}
	if lag := p.metrics()["floor_lag"]; lag > dead/2 {
		t.Errorf("the floor lags by %v rows", lag)
	}
	s.execute(report, "COMMIT")
	p.stop()
}

// TestMetricsAddUp reads the metrics again and again while events are acknowledged, dropped
// for keys and topics that wait, tried again, and healed: read = acknowledged + in memory +
// dropped at any time, which metrics demands.
func TestMetricsAddUp(t *testing.T) {
	w := newWorld(t, nil, nil)
	s := &stage{world: w, conn: w.connect()}
	strict := newStage(t, nil, nil).makeTopic("", 3, map[string]string{"max.message.bytes": lowLimit})
	p := s.start("FORWARDER_ADMIN_PROFILING=true")
	writer := w.write(func(c *oracle.WriterConfig) { c.Rate = 2000 })
	scrapes := 0
	var last map[string]float64
	for begun := time.Now(); time.Since(begun) < 4*time.Second; scrapes++ {
		s.put(row{strict, fmt.Sprint("k", scrapes%20), text(bigPayload), nil}, row{strict, fmt.Sprint("k", scrapes%20), "behind", nil},
			row{strict + "-missing", "k", "x", nil})
		if scrapes%5 == 4 {
			forwarder(t, nil, "parked", "--retry", "--admin-listen", p.admin)
		}
		m := p.metrics()
		for name, v := range last {
			if strings.HasSuffix(name, "_total") && m[name] < v {
				t.Fatalf("%s fell from %v to %v", name, v, m[name])
			}
		}
		last = m
	}
	writer.stop()
	t.Logf("%d scrapes", scrapes)
	if last["events_dropped_total"] == 0 || last["events_acknowledged_total"] < 1000 || last["parked.key"] == 0 || last["parked.topic"] != 1 {
		t.Errorf("too little has happened: %v", last)
	}
	s.sql("DELETE FROM outbox WHERE topic LIKE $1 || '%'", strict)
	v := w.verdict()
	noRepeats(t, v)
	eventually(t, drainLimit, "all is acknowledged and deleted", func() bool {
		m := p.metrics()
		return m["events_acknowledged_total"] == float64(v.Written) && m["events_deleted_total"] == m["events_acknowledged_total"] &&
			m["events_in_memory"] == 0 && m["events_undeleted"] == 0 && m["bytes_in_memory"] == 0
	})
	m := p.metrics()
	if m["commit_to_ack_seconds_count"] != float64(v.Written) || m["order_violations_total"] != 0 || m["events_repeated_total"] != 0 {
		t.Errorf("the metrics say %v", m)
	}
	if _, peak := p.memory(); peak > memoryLimit {
		t.Errorf("the peak of memory is %d MiB", peak>>20)
	}
	if args := p.get("/debug/pprof/cmdline"); !strings.Contains(args, binary) {
		t.Errorf("the profiles say that %q runs", args)
	}
	p.stop()
}
