package postgres

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-forwarder/forwarder/lanes"
)

// plan is a node of EXPLAIN's answer.
type plan struct {
	Type   string `json:"Node Type"`
	Table  string `json:"Relation Name"`
	Filter string `json:"Filter"`
	Hit    int    `json:"Shared Hit Blocks"`
	Read   int    `json:"Shared Read Blocks"`
	Plans  []plan `json:"Plans"`
}

func (p plan) walk(do func(plan)) {
	do(p)
	for _, child := range p.Plans {
		child.walk(do)
	}
}

// explainer explains statements in a session of the source's own, with the plans that its
// prepared statements have.
type explainer struct {
	t    *testing.T
	s    *Source
	conn *pgxpool.Conn
}

func newExplainer(t *testing.T, s *Source) *explainer {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return &explainer{t, s, conn}
}

func (e *explainer) explain(options, statement, arguments string) plan {
	e.t.Helper()
	ctx := e.t.Context()
	if _, err := e.conn.Exec(ctx, "PREPARE explained AS "+statement); err != nil {
		e.t.Fatal(err)
	}
	var text []byte
	err := e.conn.QueryRow(ctx, "EXPLAIN (FORMAT JSON"+options+") EXECUTE explained("+arguments+")").Scan(&text)
	if err != nil {
		e.t.Fatalf("explaining %s: %v", statement, err)
	}
	if _, err := e.conn.Exec(ctx, "DEALLOCATE explained"); err != nil {
		e.t.Fatal(err)
	}
	var plans []struct{ Plan plan }
	if err := json.Unmarshal(text, &plans); err != nil || len(plans) != 1 {
		e.t.Fatalf("reading %s: %v", text, err)
	}
	return plans[0].Plan
}

// pages is how many blocks a read from the floor touches.
func (e *explainer) pages(floor int64) int {
	e.t.Helper()
	p := e.explain(", ANALYZE, BUFFERS", e.s.stmts.Load().reads[0], fmt.Sprintf("%d, 8192, true", floor))
	return p.Hit + p.Read
}

// subPlan is how a filter names the list that it searches.
var subPlan = regexp.MustCompile(`(hashed )?SubPlan \d+`)

// checkPlans looks at every statement that the source may send.
func (e *explainer) checkPlans(when string) {
	e.t.Helper()
	stmts := e.s.stmts.Load()
	for f, sql := range stmts.reads {
		arguments := "0, 8192, false"
		for _, extra := range []struct {
			filter
			arguments string
		}{{byLane, `, '\x00ff'`}, {byKnown, ", '{1,2,3}'"}, {byTopic, ", '{a,b}'"}, {byKey, ", '{a,b}', '{k,l}'"}} {
			if filter(f)&extra.filter != 0 {
				arguments += extra.arguments
			}
		}
		p := e.explain("", sql, arguments)
		e.check(fmt.Sprintf("%s: read with filter %04b", when, f), p)
		lists := bits.OnesCount8(uint8(filter(f) &^ byLane))
		p.walk(func(p plan) {
			if p.Table == "" {
				return
			}
			hashed := make(map[string]bool) // by number: newer servers name one for each column
			for _, sub := range subPlan.FindAllString(p.Filter, -1) {
				hashed[sub] = true
				if !strings.HasPrefix(sub, "hashed ") {
					e.t.Errorf("%s: read with filter %04b searches a list one by one", when, f)
				}
			}
			if len(hashed) != lists {
				e.t.Errorf("%s: read with filter %04b searches %d of %d lists by hash", when, f, len(hashed), lists)
			}
		})
	}
	e.check(when+": delete", e.explain("", stmts.del, "'{1,2,3}'"))
	e.check(when+": oldest", e.explain("", stmts.oldest+" OFFSET $1::int", "0"))
}

func (e *explainer) check(what string, p plan) {
	e.t.Helper()
	scans := 0
	p.walk(func(p plan) {
		switch {
		case p.Table == "" && (strings.Contains(p.Type, "Sort") || strings.Contains(p.Type, "Bitmap")):
			e.t.Errorf("%s: the plan has a %s", what, p.Type)
		case p.Table != "" && p.Type == "Index Scan":
			scans++
		case p.Table != "" && p.Type != "ModifyTable":
			e.t.Errorf("%s: the table is read by a %s", what, p.Type)
		}
	})
	if scans == 0 {
		e.t.Errorf("%s: the table's index is not used", what)
	}
}

// TestC10DeadRows: while a held snapshot keeps a million dead rows in the table, every
// statement goes by the index, and the floor keeps reads away from them.
func TestC10DeadRows(t *testing.T) {
	const dead = 1_000_000
	w := newWorld(t, strings.Replace(outbox, "CREATE TABLE", "CREATE UNLOGGED TABLE", 1))
	s := w.open()
	e := newExplainer(t, s)
	e.checkPlans("never analysed")
	w.exec("INSERT INTO outbox (topic, key, payload) SELECT 't' || i % 5, 'k' || i % 1000, 'x' FROM generate_series(1, $1::int) i", dead)
	w.exec("ANALYZE outbox")
	e.checkPlans("full")
	holder := w.session()
	run(t, holder, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	run(t, holder, "SELECT count(*) FROM pg_class")
	w.exec("DELETE FROM outbox")
	w.exec("VACUUM (ANALYZE) outbox")
	e.checkPlans("dead")
	low, high := e.pages(lanes.Start), e.pages(dead)
	if low < 5000 {
		t.Fatalf("a read from the start touches %d blocks: there are no dead rows", low)
	}
	const few = 50
	if high > few {
		t.Errorf("a read above the dead rows touches %d blocks", high)
	}

	sink := &recorder{}
	f := forward(t, s, sink)
	const batches, size = 40, 100
	for batch := range batches {
		w.exec("INSERT INTO outbox (topic, key) SELECT 't', 'k' || i FROM generate_series(1, $1::int) i", size)
		f.acked((batch + 1) * size)
	}
	f.drained(w)
	f.stop()
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	if f.source.last.Floor < dead {
		t.Errorf("the last floor is %d, the dead rows go up to %d", f.source.last.Floor, dead)
	}
	if touched := e.pages(f.source.last.Floor); touched > few {
		t.Errorf("a read from the floor touches %d blocks", touched)
	}
	if f.source.starts == 0 || f.source.starts > f.source.begun/4 {
		t.Errorf("%d of %d reads began at the start of the table", f.source.starts, f.source.begun)
	}
	if n := sink.count(); n != batches*size {
		t.Errorf("%d events acknowledged for %d rows", n, batches*size)
	}
}

// TestPlansOfPartitions: a partitioned outbox is read by its partitions' indexes, without a
// sort.
func TestPlansOfPartitions(t *testing.T) {
	t.Parallel()
	for _, table := range partitioned {
		t.Run(table.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, table.ddl...)
			e := newExplainer(t, w.open())
			e.checkPlans("empty")
			w.exec("INSERT INTO outbox (id, topic, key) SELECT i, 't' || i % 3, 'k' || i % 10 FROM generate_series(-10000, 9999) i")
			w.exec("ANALYZE outbox")
			e.checkPlans("full")
		})
	}
}
