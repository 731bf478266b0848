package postgres

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// withKey is an outbox whose key has another type.
func withKey(typ string) string {
	return strings.Replace(outbox, "key text", "key "+typ, 1)
}

// keyTypes are the types that a key may have, with keys in the table's words and in the
// record's.
var keyTypes = []struct {
	name, typ string
	setup     []string
	keys      map[string]string
	many      string // an expression of i that gives many keys
}{
	{"text", "text", nil, map[string]string{"''": "", "'a'": "a", "'Ärger 木 🙂'": "Ärger 木 🙂", "' a '": " a ", `E'\t"\\,{}'`: "\t\"\\,{}"}, "repeat('ü', i % 7) || i"},
	{"varchar", "varchar(20)", nil, map[string]string{"''": "", "'a  '": "a  "}, "'v' || i"},
	{"char", "char(8)", nil, map[string]string{"'ab'": "ab      ", "''": "        ", "'12345678'": "12345678", "'é'": "é       "}, "to_char(i, 'FM999')"},
	{"uuid", "uuid", nil, map[string]string{"'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, "md5(i::text)::uuid"},
	{"bigint", "bigint", nil, map[string]string{"0": "0", "-9223372036854775808": "-9223372036854775808", "9223372036854775807": "9223372036854775807"}, "i * bigint '1000000007' - 5"},
	{"int", "integer", nil, map[string]string{"-1": "-1", "2147483647": "2147483647"}, "i - 50"},
	{"smallint", "smallint", nil, map[string]string{"-32768": "-32768", "007": "7"}, "i"},
	{"numeric", "numeric", nil, map[string]string{"1.0": "1.0", "1.00": "1.00", "'NaN'": "NaN", "'-Infinity'": "-Infinity", "1e30": "1" + strings.Repeat("0", 30), "-0.0": "0.0"}, "i / 7.0"},
	{"domain over text", "mark", []string{"CREATE DOMAIN mark AS text CHECK (value <> 'x')"}, map[string]string{"'d'": "d"}, "'d' || i"},
	{"domain over char", "mark", []string{"CREATE DOMAIN mark AS char(4)"}, map[string]string{"'d'": "d   "}, "'d' || i"},
	{"domain over a domain", "mark", []string{"CREATE DOMAIN base AS numeric(6,2)", "CREATE DOMAIN mark AS base CHECK (value > 0)"}, map[string]string{"1": "1.00"}, "i"},
	{"text of an odd collation", "text", []string{`CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`,
		"ALTER TABLE outbox ALTER key TYPE text COLLATE nocase"}, map[string]string{"'a'": "a", "'A'": "A"}, "chr(65 + i % 26) || chr(97 + i % 26) || i"},
}

// keyWorld makes an outbox of the key type; its setup runs before the table where it makes
// the type, and after it where it alters the table.
func keyWorld(t *testing.T, typ string, setup []string) *world {
	t.Helper()
	before := slices.DeleteFunc(slices.Clone(setup), func(sql string) bool { return strings.HasPrefix(sql, "ALTER") })
	after := slices.DeleteFunc(slices.Clone(setup), func(sql string) bool { return !strings.HasPrefix(sql, "ALTER") })
	return newWorld(t, slices.Concat(before, []string{withKey(typ)}, after)...)
}

// TestC38KeysAreTheDatabasesText: whatever type the key column has, the key is its text form,
// and SQL and Go agree on its lane and on which key it is.
func TestC38KeysAreTheDatabasesText(t *testing.T) {
	t.Parallel()
	for _, c := range keyTypes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := keyWorld(t, c.typ, c.setup)
			want := make(map[int64]string)
			for sql, text := range c.keys {
				want[value[int64](w, "INSERT INTO outbox (topic, key) VALUES ('t', "+sql+") RETURNING id")] = text
			}
			w.exec("DELETE FROM outbox_lanes WHERE lane >= 16")
			s := w.open()
			for _, ev := range events(t, s, everything()) {
				if string(ev.Key) != want[ev.ID] || ev.Key == nil {
					t.Errorf("key %q, want %q", ev.Key, want[ev.ID])
				}
			}
			w.exec("INSERT INTO outbox (topic, key) SELECT 't', " + c.many + " FROM generate_series(1, 200) i")
			w.exec("INSERT INTO outbox (topic) SELECT 't' FROM generate_series(1, 40) i")
			all := events(t, s, everything())
			if len(all) != len(want)+240 {
				t.Fatalf("%d events for %d rows", len(all), len(want)+240)
			}
			testLanes(t, s, all)
			testEachKeyLeftOut(t, s, all)
		})
	}
}

// testLanes reads lane by lane: the server must agree with the lane that each event has.
func testLanes(t *testing.T, s *Source, all []*source.Event) {
	t.Helper()
	byLane := make(map[source.Lane][]int64)
	for _, ev := range all {
		if want := lanes.LaneOfRow(ev.ID, 16); ev.Key == nil && ev.Lane != want {
			t.Errorf("row %d without a key is in lane %d, want %d", ev.ID, ev.Lane, want)
		}
		if want := lanes.LaneOf(ev.Key, 16); ev.Key != nil && ev.Lane != want {
			t.Errorf("key %q is in lane %d, want %d", ev.Key, ev.Lane, want)
		}
		byLane[ev.Lane] = append(byLane[ev.Lane], ev.ID)
	}
	for lane := range source.Lane(16) {
		read := everything()
		read.Lanes = []source.Lane{lane}
		wantIDs(t, fmt.Sprint("lane ", lane), events(t, s, read), byLane[lane]...)
	}
	read := everything()
	read.Lanes = []source.Lane{}
	wantIDs(t, "no lane", events(t, s, read))
	read.Lanes = []source.Lane{0, 7, 8, 15}
	var some []int64
	for _, ev := range all {
		if slices.Contains(read.Lanes, ev.Lane) {
			some = append(some, ev.ID)
		}
	}
	wantIDs(t, "some lanes", events(t, s, read), some...)
}

// testEachKeyLeftOut leaves out a share of the keys by the texts that were read.
func testEachKeyLeftOut(t *testing.T, s *Source, all []*source.Event) {
	t.Helper()
	read := everything()
	out := make(map[string]bool)
	for i, ev := range all {
		if ev.Key != nil && i%3 == 0 {
			read.Keys = append(read.Keys, ev.TopicKey())
			out[string(ev.Key)] = true
		}
	}
	var want []int64
	for _, ev := range all {
		if ev.Key == nil || !out[string(ev.Key)] {
			want = append(want, ev.ID)
		}
	}
	wantIDs(t, "a third of the keys left out", events(t, s, read), want...)
}

// TestC38OtherKeyTypesAreRefused: a key type without a text form to rely on is told at start.
func TestC38OtherKeyTypesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.Replace(outbox, "key text,", "", 1))
	for _, typ := range []string{"jsonb", "bytea", "timestamp with time zone", "text[]", "double precision", "boolean"} {
		w.exec("ALTER TABLE outbox ADD COLUMN key " + typ)
		problems := w.setupProblems()
		wantProblem(t, problems, `column "key"`, "has type "+typ, "it must be", "uuid")
		if len(problems) != 1 {
			t.Errorf("more than one problem: %q", problems)
		}
		w.exec("ALTER TABLE outbox DROP COLUMN key")
	}
}

// TestLaneHashEqualsTheServers compares 100,000 random keys.
func TestLaneHashEqualsTheServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := rand.New(rand.NewPCG(1, 2))
	const total, batch = 100_000, 10_000
	for range total / batch {
		keys := make([]string, batch)
		for i := range keys {
			keys[i] = randomKey(r)
		}
		keys[0] = ""
		rows, err := w.conn.Query(t.Context(), `SELECT hashtext(k COLLATE "C") FROM unnest($1::text[]) WITH ORDINALITY u(k, i) ORDER BY i`, keys)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ; rows.Next(); n++ {
			var hash int32
			if err := rows.Scan(&hash); err != nil {
				t.Fatal(err)
			}
			if got := lanes.Hash([]byte(keys[n])); got != uint32(hash) {
				t.Fatalf("key %q: hash %#x, the server has %#x", keys[n], got, uint32(hash))
			}
		}
		if err := rows.Err(); err != nil || n != batch {
			t.Fatalf("%d hashes of %d keys: %v", n, batch, err)
		}
	}
}

// randomKey is a text that PostgreSQL can hold: any characters but zero, mostly short.
func randomKey(r *rand.Rand) string {
	n := r.IntN(40)
	if r.IntN(100) == 0 {
		n = r.IntN(2000)
	}
	var b strings.Builder
	for range n {
		switch r.IntN(4) {
		case 0:
			c := rune(1 + r.IntN(0x10ffff))
			if 0xd800 <= c && c < 0xe000 {
				c = 'ä'
			}
			b.WriteRune(c)
		default:
			b.WriteByte(byte(1 + r.IntN(127)))
		}
	}
	return b.String()
}
