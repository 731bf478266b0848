package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/lanes"
)

// TestMarks: a read with a fence tells which of the running transactions are forwarders' own, in
// whichever database, and no others.
func TestMarks(t *testing.T) {
	server := ownServer(t, map[string]string{"autovacuum": "off"}) // nobody else has a transaction there
	w := worldAt(t, server.URL("postgres"), outbox)
	w.beside(Config{})
	elsewhere := worldAt(t, server.URL("template1"))
	s := w.open()
	begin := func(w *world, sql string) (end func(string), xid uint64) {
		conn := w.session()
		run(t, conn, "BEGIN")
		run(t, conn, sql)
		if err := conn.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&xid); err != nil {
			t.Fatal(err)
		}
		return func(sql string) { run(t, conn, sql) }, xid
	}
	endWriter, writer := begin(w, "INSERT INTO outbox (topic) VALUES ('t')")
	endPeer, peer := begin(w, s.stmts.Load().xid)
	endOther, other := begin(elsewhere, s.stmts.Load().xid)
	fenced := everything()
	fenced.Fence = true
	p := page(t, s, fenced)
	for xid, ours := range map[uint64]bool{writer: false, peer: true, other: true, p.Fence: true} {
		if slices.Contains(p.Ours, xid) != ours {
			t.Errorf("transaction %d is among %v: want %v", xid, p.Ours, ours)
		}
	}
	if p := page(t, s, everything()); len(p.Ours) > 0 {
		t.Errorf("a read without a fence says %v", p.Ours)
	}
	// With the writer gone, a peer that is deleting holds no floor.
	endWriter("COMMIT")
	floor := lanes.NewFloor[int](time.Hour)
	fenced.Fence = false
	if !floor.Observe(time.Now(), page(t, s, fenced)) || floor.At() != lanes.Start {
		t.Errorf("without a fence the floor is at %d", floor.At())
	}
	fenced.Fence = true
	if !floor.Observe(time.Now(), page(t, s, fenced)) || floor.At() != 1 {
		t.Errorf("with peers deleting the floor is at %d", floor.At())
	}
	endPeer("COMMIT")
	endOther("ROLLBACK")
	if p := page(t, s, fenced); slices.Contains(p.Ours, peer) || slices.Contains(p.Ours, other) {
		t.Errorf("transactions %d and %d have ended and are among %v", peer, other, p.Ours)
	}
}

// TestMarksNobodyWaits: a lock of somebody else on the same number keeps no delete waiting.
func TestMarksNobodyWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "INSERT INTO outbox (topic) VALUES ('t')")
	s := w.open()
	next := value[int64](w, "SELECT pg_current_xact_id()::text::bigint")
	for i := range int64(200) { // transactions of other tests take some of them
		w.exec(fmt.Sprintf("SELECT pg_advisory_lock(%d, %d)", markClass, next+i))
	}
	if err := s.Delete(t.Context(), []int64{1}, func(uint64) {}); err != nil || w.rows() != 0 {
		t.Errorf("deleting: %v, %d rows left", err, w.rows())
	}
}

// TestMarksWithoutRights: a role that may not lock or look at locks works without.
func TestMarksWithoutRights(t *testing.T) {
	t.Parallel()
	for _, revoke := range []string{
		"SELECT ON pg_catalog.pg_locks",
		"EXECUTE ON FUNCTION pg_catalog.pg_lock_status()",
		"EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_xact_lock_shared(int, int)",
	} {
		w := newWorld(t, outbox, "INSERT INTO outbox (topic) VALUES ('t')", "REVOKE "+revoke+" FROM PUBLIC")
		name, login := w.role("")
		w.exec("GRANT SELECT, DELETE ON outbox TO " + name)
		w.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_members, outbox_lanes TO " + name)
		s := w.open(func(c *Config) { c.URL = login })
		fenced := everything()
		fenced.Fence = true
		p := page(t, s, fenced)
		wantIDs(t, "without "+revoke, p.Events, 1)
		if p.Fence == 0 || len(p.Ours) > 0 {
			t.Errorf("without %s: fence %d, ours %v", revoke, p.Fence, p.Ours)
		}
		var xid uint64
		if err := s.Delete(t.Context(), []int64{1}, func(began uint64) { xid = began }); err != nil || xid == 0 || w.rows() != 0 {
			t.Errorf("without %s: deleting as transaction %d: %v, %d rows left", revoke, xid, err, w.rows())
		}
	}
}

// TestWholeXid: marks have half an xid, and the other half is that of the transactions around.
func TestWholeXid(t *testing.T) {
	for _, c := range []struct {
		low        uint32
		near, want uint64
	}{
		{5, 7, 5},
		{7, 5, 7},
		{0xffffffff, 1 << 32, 0xffffffff},
		{3, 0xfffffff0, 1<<32 + 3},
		{0xfffffff0, 7<<32 + 3, 6<<32 + 0xfffffff0},
		{3, 6<<32 + 0xfffffff0, 7<<32 + 3},
	} {
		if got := wholeXid(c.low, c.near); got != c.want {
			t.Errorf("%#x near %#x is %#x, want %#x", c.low, c.near, got, c.want)
		}
	}
}
