package lanes

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/source"
)

var hashVectors = map[string]int32{
	"":                                     -1477818771,
	"a":                                    1075015857,
	"ab":                                   1718550461,
	"abc":                                  -785388649,
	"abcd":                                 -393934804,
	"abcdefgh":                             -1960928205,
	"abcdefghi":                            -92131489,
	"abcdefghijk":                          -1483803693,
	"abcdefghijkl":                         -1586087212,
	"abcdefghijklm":                        405849808,
	"order-4711":                           1322982459,
	"0190b6a0-4a5e-7c3b-9d6e-0123456789ab": 1524501113,
	"ключ":                                 -884514432,
	"键":                                    2050814205,
	"🔑 key":                                -2138394212,
	"é":                                    -983094517,
	"É and e\u0301":                        1046925401,
	strings.Repeat("x", 100):               1174826790,
}

// TestHashVectors pins the hash without a server: hashtext(key COLLATE "C") of PostgreSQL 15.
func TestHashVectors(t *testing.T) {
	for key, want := range hashVectors {
		if got := int32(Hash([]byte(key))); got != want {
			t.Errorf("the hash of %q is %d, want %d", key, got, want)
		}
	}
}

func TestLaneOfRowSpreadsByID(t *testing.T) {
	for id, want := range map[int64]source.Lane{0: 0, 1: 1, 255: 255, 256: 0, 1<<62 + 7: 7, -1: 255} {
		if got := LaneOfRow(id, 256); got != want {
			t.Errorf("row %d is in lane %d, want %d", id, got, want)
		}
	}
	if got := LaneOf(nil, 1); got != 0 {
		t.Errorf("the only lane is %d", got)
	}
}

// TestHashEqualsPostgreSQL compares hash and lane with the server's over 100,000 keys.
func TestHashEqualsPostgreSQL(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), serverstest.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()

	const lanes = 256
	keys := randomKeys(100_000)
	rows, err := conn.Query(t.Context(), `SELECT hashtext(k COLLATE "C"), hashtext(k COLLATE "C") & $2::int
		FROM unnest($1::text[]) WITH ORDINALITY AS u(k, n) ORDER BY n`, keys, lanes-1)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	var hash, lane int32
	_, err = pgx.ForEachRow(rows, []any{&hash, &lane}, func() error {
		key := []byte(keys[n])
		if got := int32(Hash(key)); got != hash {
			t.Errorf("the hash of %q is %d, the server's is %d", key, got, hash)
		}
		if got := LaneOf(key, lanes); int32(got) != lane {
			t.Errorf("the lane of %q is %d, the server's is %d", key, got, lane)
		}
		n++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n != len(keys) {
		t.Errorf("the server hashed %d keys of %d", n, len(keys))
	}
}

// randomKeys returns keys of every length from 0 to 64 bytes, long ones, plain ones and such
// with characters of every width that UTF-8 has.
func randomKeys(n int) []string {
	r := rand.New(rand.NewPCG(4, 5))
	keys := make([]string, 0, n)
	for i := range n {
		size := i % 65
		if i%1000 == 999 {
			size = 65 + r.IntN(3000)
		}
		limit := pick(r, rune(utf8.RuneSelf), 0x2000, utf8.MaxRune+1)
		var key []byte
		for len(key) < size {
			// PostgreSQL's text has no zero byte.
			c := 1 + r.Int32N(limit-1)
			if len(key)+utf8.RuneLen(c) > size || !utf8.ValidRune(c) {
				c = 'a' + r.Int32N(26)
			}
			key = utf8.AppendRune(key, c)
		}
		keys = append(keys, string(key))
	}
	return keys
}
