package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// neighbours returns n keys in the lane of the given key, found by the rule that PostgreSQL
// and the forwarder share.
func (s *stage) neighbours(key string, n int) []string {
	s.t.Helper()
	rows, err := s.conn.Query(s.t.Context(), `SELECT k FROM generate_series(1, 100000) i, LATERAL (SELECT 'near-' || i) x(k)
		WHERE hashtext(k COLLATE "C") & 255 = hashtext($1 COLLATE "C") & 255 LIMIT $2`, key, n)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	var keys []string
	for rows.Next() {
		var k string
		if err := rows.Scan(&k); err != nil {
			s.t.Fatal(err)
		}
		keys = append(keys, k)
	}
	if err := rows.Err(); err != nil || len(keys) != n {
		s.t.Fatalf("found %d keys, want %d: %v", len(keys), n, err)
	}
	return keys
}

func text(n int) string { return strings.Repeat("x", n) }

// big is the payload of the row that C19 begins with, small what the raised limit lets pass.
const (
	bigPayload = 5000
	lowLimit   = "2000"
	highLimit  = "100000"
)

// shortValues makes the values of a key readable: the large one is "big".
func shortValues(records []*kgo.Record, key string) string {
	return strings.ReplaceAll(values(records, key), text(bigPayload), "big")
}

// TestC19FailedRecordHoldsBackItsKey has the first of three rows of a key too large, once by
// a limit that is known before anything is sent, and once by one that only the broker knows
// of, which then refuses the batch with everything in it.
func TestC19FailedRecordHoldsBackItsKey(t *testing.T) {
	for _, c := range []struct {
		name   string
		unseen bool
	}{{"limit known", false}, {"limit lowered while running", true}} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t, nil, nil)
			limit := lowLimit
			if c.unseen {
				limit = highLimit
			}
			topic := s.makeTopic("", 1, map[string]string{"max.message.bytes": limit})
			near := s.neighbours("held", 2)
			p := s.start()
			s.put(row{topic, "other", "before", nil})
			s.arrive(topic, 1, drainLimit)
			s.configure(topic, "max.message.bytes", lowLimit)
			ids := s.put(
				row{topic, near[0], "1", nil},
				row{topic, "held", text(bigPayload), nil}, row{topic, near[0], "2", nil},
				row{topic, "held", "second", nil}, row{topic, near[1], "1", nil},
				row{topic, "held", "third", nil}, row{topic, near[0], "3", nil}, row{topic, "other", "after", nil},
			)
			s.arrive(topic, 6, drainLimit)
			waiting := p.awaitParked(1)[0]
			if waiting.Part != "key" || waiting.ID != ids[1] || waiting.Topic != topic || waiting.Key == nil || *waiting.Key != "held" {
				t.Errorf("what waits is %+v, want the key of row %d", waiting, ids[1])
			}
			eventually(t, drainLimit, "only the key's rows are left", func() bool { return s.left() == 3 })
			always(t, time.Second, "nothing of the key is published while its first row waits", func() bool {
				return s.count(topic) == 6 && s.left() == 3
			})
			if m := p.metrics(); m["parked.key"] != 1 || m["order_violations_total"] != 0 {
				t.Errorf("the metrics say %v", m)
			}

			s.configure(topic, "max.message.bytes", highLimit)
			p.retry(1)
			s.arrive(topic, 9, drainLimit)
			s.awaitEmpty()
			p.awaitParked(0)
			p.stop()
			records := s.records(topic)
			for key, want := range map[string]string{"held": "big,second,third", near[0]: "1,2,3", near[1]: "1", "other": "before,after"} {
				if got := shortValues(records, key); got != want {
					t.Errorf("key %s has %s, want %s", key, got, want)
				}
			}
			byID(t, records)
		})
	}
}

// TestC19LaterRowsNeverOvertakeARetry adds rows to a key whose first row waits and is tried
// again in vain; when the cause is gone everything heals without a command.
func TestC19LaterRowsNeverOvertakeARetry(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil, nil)
	topic := s.makeTopic("", 1, map[string]string{"max.message.bytes": lowLimit})
	p := s.start()
	first := s.put(row{topic, "held", text(bigPayload), nil})[0]
	p.awaitParked(1)
	for round := range 3 {
		s.put(row{topic, "held", fmt.Sprint(round), nil}, row{topic, "free", fmt.Sprint(round), nil})
		s.arrive(topic, round+1, drainLimit)
		if round == 0 {
			p.retry(1)
			eventually(t, 10*time.Second, "a second attempt", func() bool {
				list := p.parked()
				return len(list) == 1 && list[0].ID == first && list[0].Attempts == 2
			})
		}
	}
	s.configure(topic, "max.message.bytes", highLimit)
	s.arrive(topic, 7, 30*time.Second) // the pause after two attempts is at most 10 s
	s.awaitEmpty()
	p.awaitParked(0)
	p.stop()
	records := s.records(topic)
	if got, want := shortValues(records, "held"), "big,0,1,2"; got != want {
		t.Errorf("the key has %s, want %s", got, want)
	}
	byID(t, records)
}

// TestC20PoisonRowsAtTheHead puts rows that a topic rejects before a thousand good ones of
// that topic and another.
func TestC20PoisonRowsAtTheHead(t *testing.T) {
	s := newStage(t, nil, nil)
	strict := s.makeTopic("", 3, map[string]string{"max.message.bytes": lowLimit})
	good := s.makeTopic("", 3, nil)
	var poison, rows []row
	for i := range 10 {
		poison = append(poison, row{strict, fmt.Sprintf("poison-%d", i), text(bigPayload), nil})
	}
	for i := range 1000 {
		rows = append(rows, row{[]string{strict, good}[i%2], fmt.Sprintf("key-%d", i%40), fmt.Sprint(i), nil})
	}
	ids := s.put(poison...)
	p := s.start(inJSON)
	p.awaitReady()
	begun := time.Now()
	s.put(rows...)
	s.arrive(good, 500, 5*time.Second)
	s.arrive(strict, 500, 5*time.Second)
	t.Logf("1000 rows behind 10 that wait took %s", time.Since(begun).Round(time.Millisecond))
	p.awaitParked(10)
	if ok, words := p.ready(); !ok {
		t.Errorf("ten rows that cannot be delivered make the forwarder unready: %s", words)
	}

	table, stderr, code := forwarder(t, nil, "parked", "--admin-listen", p.admin)
	if code != 0 {
		t.Fatalf("forwarder parked: exit code %d: %s", code, stderr)
	}
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) != 11 {
		t.Fatalf("the listing has %d lines, want a head and ten:\n%s", len(lines), table)
	}
	for _, id := range ids {
		found := false
		for _, line := range lines[1:] {
			f := strings.Fields(line)
			found = found || f[0] == "key" && f[1] == fmt.Sprint(id) && f[2] == strict && f[4] == "1" &&
				strings.Contains(line, "max.message.bytes") && strings.Contains(line, lowLimit)
		}
		if !found {
			t.Errorf("row %d is not listed with its topic, attempts and cause:\n%s", id, table)
		}
	}
	if m := p.metrics(); m["parked.key"] != 10 {
		t.Errorf("the metric says that %v keys wait, want 10", m["parked.key"])
	}
	logged := 0
	for _, l := range p.lines() {
		if l.Level == "WARN" {
			logged++
		}
	}
	if logged != 10 {
		t.Errorf("%d warnings, want one for each row", logged)
	}

	s.configure(strict, "max.message.bytes", highLimit)
	p.retry(10)
	s.arrive(strict, 510, drainLimit)
	s.awaitEmpty()
	p.awaitParked(0)
	if stdout, _, code := forwarder(t, nil, "parked", "--admin-listen", p.admin); code != 0 || stdout != "nothing waits\n" {
		t.Errorf("forwarder parked: exit code %d, %q", code, stdout)
	}
	if m := p.metrics(); m["parked.key"] != 0 {
		t.Errorf("the metric still says that %v keys wait", m["parked.key"])
	}
	p.stop()
	byID(t, append(s.records(strict), s.records(good)...))
}
