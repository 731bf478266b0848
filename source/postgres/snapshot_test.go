package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/source"
)

func TestSnapshotIsTheServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox, "CREATE TABLE other (n int)")
	s := w.open()
	running := func() (conns []func(string), xids []uint64) {
		for range 3 {
			conn := w.session()
			run(t, conn, "BEGIN")
			run(t, conn, "INSERT INTO other VALUES (1)")
			var xid uint64
			if err := conn.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&xid); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, func(sql string) { run(t, conn, sql) })
			xids = append(xids, xid)
		}
		return conns, xids
	}
	conns, xids := running()
	conns[1]("COMMIT")
	fenced := everything()
	fenced.Fence = true
	p := page(t, s, fenced)
	snap, fence := p.Snapshot, p.Fence
	// The youngest is above Xmax where nothing above it has ended, and the fence is above it.
	if fence <= xids[2] || fence < snap.Xmax || snap.Shows(fence) {
		t.Errorf("fence %d in %+v with %d open", fence, snap, xids)
	}
	if p := page(t, s, everything()); p.Fence != 0 || !p.Snapshot.Shows(fence) {
		t.Errorf("afterwards: fence %d, and snapshot %+v does not show %d", p.Fence, p.Snapshot, fence)
	}
	if !slices.IsSorted(snap.Running) || snap.Xmin > xids[0] || snap.Xmax <= xids[1] {
		t.Errorf("snapshot %+v with %d open", snap, xids)
	}
	for i, shown := range []bool{false, true, false} {
		if snap.Shows(xids[i]) != shown {
			t.Errorf("transaction %d: shown %v in %+v", xids[i], !shown, snap)
		}
	}
	conns[0]("ROLLBACK")
	conns[2]("COMMIT")
	snap = page(t, s, everything()).Snapshot
	for _, xid := range xids {
		if !snap.Shows(xid) {
			t.Errorf("transaction %d has ended, and is not shown in %+v", xid, snap)
		}
	}
	if snap.Shows(snap.Xmax) {
		t.Errorf("xmax is shown in %+v", snap)
	}
}

// FuzzParseSnapshot: what parses prints as the same text, but for the order of the list and
// zeros before a number.
func FuzzParseSnapshot(f *testing.F) {
	for _, text := range []string{"10:20:10,14,15", "795:795:", "1:2:1", "18446744073709551615:18446744073709551615:", "::", "1:2", "1:2:3:4", "1:2:,", "-1:2:", "01:2:1", "5:9:8,6", "1:2: 1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		snap, err := parseSnapshot(text)
		if err != nil {
			if !strings.Contains(err.Error(), "parsing snapshot") {
				t.Fatalf("the error does not say what it was about: %v", err)
			}
			return
		}
		if !slices.IsSorted(snap.Running) {
			t.Fatalf("%q: not sorted: %v", text, snap.Running)
		}
		if got, want := printed(snap), normal(text); got != want {
			t.Fatalf("%q: comes back as %q, want %q", text, got, want)
		}
	})
}

func printed(s source.Snapshot) string {
	list := make([]string, len(s.Running))
	for i, xid := range s.Running {
		list[i] = fmt.Sprint(xid)
	}
	return fmt.Sprintf("%d:%d:%s", s.Xmin, s.Xmax, strings.Join(list, ","))
}

// normal takes the zeros away and orders the list, by length and then by digits.
func normal(text string) string {
	parts := strings.Split(text, ":")
	for i, part := range parts {
		numbers := strings.Split(part, ",")
		for j, n := range numbers {
			if n = strings.TrimLeft(n, "0"); n == "" && part != "" {
				n = "0"
			}
			numbers[j] = n
		}
		slices.SortFunc(numbers, func(a, b string) int {
			if len(a) != len(b) {
				return len(a) - len(b)
			}
			return strings.Compare(a, b)
		})
		parts[i] = strings.Join(numbers, ",")
	}
	return strings.Join(parts, ":")
}
