package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// script is what a topic shows: `a3` is event 3 of key a, with its own id header. Marks
// behind the event plant a fault in that record.
//
//	a3!  another payload          a3?  no id header      a3#  an id below that of the event before
//	a3/2 in partition 2           a3*  unreadable        a3+  another header added
type script string

func (s script) judge(t *testing.T, history int) *judge {
	t.Helper()
	j := newJudge(history)
	for i, word := range strings.Fields(string(s)) {
		key := word[:1]
		var seq int64
		if _, err := fmt.Sscanf(word[1:], "%d", &seq); err != nil {
			t.Fatalf("script word %q: %v", word, err)
		}
		mark := strings.TrimLeft(word[1:], "0123456789")
		r := sound(key, seq)
		r.offset = int64(i)
		switch {
		case mark == "!":
			r.value = event{Topic: "t", Key: key, Seq: seq, N: 99_999}.appendPayload(nil, 100)
		case mark == "?":
			r.id, r.idHeaders, r.headers = "", 0, nil
		case mark == "#":
			r.id, r.headers = "1", []header{{"id", []byte("1")}}
		case mark == "*":
			r.value = r.value[:20]
		case mark == "+":
			r.headers = append(r.headers, header{"x", nil})
		case strings.HasPrefix(mark, "/"):
			if _, err := fmt.Sscanf(mark, "/%d", &r.partition); err != nil {
				t.Fatalf("script word %q: %v", word, err)
			}
		case mark != "":
			t.Fatalf("script word %q: unknown mark %q", word, mark)
		}
		j.observe(r)
	}
	return j
}

// sound is the record that a faultless forwarder makes of an event.
func sound(key string, seq int64) *record {
	id := fmt.Sprint(1000*int64(key[0]) + seq)
	return &record{
		topic: "t", partition: int32(key[0]) % 2, key: []byte(key),
		value: event{Topic: "t", Key: key, Seq: seq, N: 1000*int64(key[0]) + seq}.appendPayload(nil, 100),
		id:    id, idHeaders: 1, headers: []header{{"id", []byte(id)}},
	}
}

func ledgerOf(a, b int64) Ledger {
	l := Ledger{}
	for key, n := range map[string]int64{"a": a, "b": b} {
		if n > 0 {
			l[Stream{"t", key}] = n
		}
	}
	return l
}

func TestJudgeFindsPlantedFaults(t *testing.T) {
	for _, c := range []struct {
		name   string
		script script
		a, b   int64
		want   Verdict
	}{
		{"nothing", "", 0, 0, Verdict{}},
		{"in order", "a1 b1 a2 b2 a3", 3, 2, Verdict{Received: 5, Delivered: 5}},
		{"repeated suffix", "a1 a2 a3 a4 a5 a4 a5 a6", 6, 0, Verdict{Received: 8, Delivered: 6, Repeated: 2}},
		{"repeat of the newest", "a1 a1 a2", 2, 0, Verdict{Received: 3, Delivered: 2, Repeated: 1}},
		{"crash within a repeat", "a1 a2 a3 a2 a1 a2 a2 a3 a4", 4, 0, Verdict{Received: 9, Delivered: 4, Repeated: 5}},
		{"other keys between", "a1 a2 b1 a1 b2 a2 b1 a3 b2 b3", 3, 3, Verdict{Received: 10, Delivered: 6, Repeated: 4}},
		{"lost at the end", "a1 a2", 3, 0, Verdict{Received: 2, Delivered: 2, Lost: 1}},
		{"lost in the middle", "a1 a3 a4", 4, 0, Verdict{Received: 3, Delivered: 3, Lost: 1, Gaps: 1}},
		{"lost at the start", "a3", 3, 0, Verdict{Received: 1, Delivered: 1, Lost: 2, Gaps: 2}},
		{"a whole key lost", "a1", 1, 4, Verdict{Received: 1, Delivered: 1, Lost: 4}},
		{"lost, then a repeat over the hole", "a1 a3 a1 a3 a4", 4, 0, Verdict{Received: 5, Delivered: 3, Repeated: 2, Lost: 1, Gaps: 1}},
		{"swapped", "a1 a3 a2 a4", 4, 0, Verdict{Received: 4, Delivered: 4, OutOfOrder: 1}},
		{"reversed", "a3 a2 a1", 3, 0, Verdict{Received: 3, Delivered: 3, OutOfOrder: 2}},
		{"swapped, then repeated rightly", "a2 a1 a1 a2 a3", 3, 0, Verdict{Received: 5, Delivered: 3, Repeated: 2, OutOfOrder: 1}},
		{"repeat in the middle of news", "a1 a2 a3 a2 a4", 4, 0, Verdict{Received: 5, Delivered: 4, Repeated: 1, BrokenRepeats: 1}},
		{"repeat that skips", "a1 a2 a3 a1 a3 a4", 4, 0, Verdict{Received: 6, Delivered: 4, Repeated: 2, BrokenRepeats: 1}},
		{"repeat left unfinished", "a1 a2 a3 a2", 3, 0, Verdict{Received: 4, Delivered: 3, Repeated: 1, BrokenRepeats: 1}},
		{"altered repeat", "a1 a2 a1! a2 a3", 3, 0, Verdict{Received: 5, Delivered: 3, Repeated: 2, Altered: 1}},
		{"repeat with another id", "a1 a2 a2#", 2, 0, Verdict{Received: 3, Delivered: 2, Repeated: 1, Altered: 1}},
		{"repeat with another header", "a1 a2 a2+", 2, 0, Verdict{Received: 3, Delivered: 2, Repeated: 1, Altered: 1}},
		{"no id header", "a1? a2", 2, 0, Verdict{Received: 2, Delivered: 2, BadIDs: 1}},
		{"ids not ascending", "a1 a2# a3", 3, 0, Verdict{Received: 3, Delivered: 3, BadIDs: 1}},
		{"key on two partitions", "a1 a2/7 a3", 3, 0, Verdict{Received: 3, Delivered: 3, Strayed: 1}},
		{"damaged payload", "a1 a2* a3", 3, 0, Verdict{Received: 3, Delivered: 2, Foreign: 1, Lost: 1, Gaps: 1}},
		{"sequence out of reason", "a1 a99999999999", 1, 0, Verdict{Received: 2, Delivered: 1, Foreign: 1}},
		{"rolled-back event sent", "a1 a2 a3", 2, 0, Verdict{Received: 3, Delivered: 3, Unwritten: 1}},
		{"rolled-back event sent, number used again", "a1 a2! a2", 2, 0, Verdict{Received: 3, Delivered: 2, Repeated: 1, Altered: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.script.judge(t, 0).final(ledgerOf(c.a, c.b))
			broken := got.Lost+got.OutOfOrder+got.BrokenRepeats+got.Altered+got.Strayed+got.BadIDs+got.Foreign+got.Unwritten+got.Doubtful > 0
			if (got.Err() != nil) != broken || broken != (len(got.Faults) > 0) {
				t.Errorf("Err() = %v with faults %q", got.Err(), got.Faults)
			}
			c.want.Final, c.want.Written = true, c.a+c.b
			got.Faults = nil
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
				t.Errorf("%s\n got %+v\nwant %+v", c.script, got, c.want)
			}
		})
	}
}

func TestJudgeBoundsItsMemory(t *testing.T) {
	j := newJudge(10)
	for seq := range int64(1000) {
		j.observe(sound("a", seq+1))
	}
	if n := len(j.streams["t"]["a"].prints); n > 20 {
		t.Errorf("%d fingerprints are kept, want at most 20", n)
	}
	for seq := int64(991); seq <= 1000; seq++ {
		j.observe(sound("a", seq))
	}
	if err := j.final(ledgerOf(1000, 0)).Err(); err != nil {
		t.Errorf("a repeat within the history: %v", err)
	}
	for seq := int64(500); seq <= 1000; seq++ {
		j.observe(sound("a", seq))
	}
	v := j.final(ledgerOf(1000, 0))
	if v.Doubtful == 0 || v.Altered != 0 || v.BrokenRepeats != 0 {
		t.Errorf("a repeat from before the history: %v", v)
	}
}

// TestJudgeAgainstRandomRuns makes runs that a forwarder with crashes may rightly make, expects
// no complaint, and then plants one fault in each and expects it to be found.
func TestJudgeAgainstRandomRuns(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 0))
		var words []string // of key a
		written := int64(3 + random.IntN(20))
		for at := int64(1); at <= written; at++ {
			words = append(words, fmt.Sprintf("a%d", at))
			for at > 1 && random.IntN(4) == 0 { // a crash: start again from an earlier event
				at -= random.Int64N(min(at, 4))
				words = append(words, fmt.Sprintf("a%d", at))
			}
		}
		sound := script(strings.Join(words, " "))
		if err := sound.judge(t, 0).final(ledgerOf(written, 0)).Err(); err != nil {
			t.Fatalf("seed %d: %s\nis right, but: %v", seed, sound, err)
		}
		var fault string
		switch i := random.IntN(len(words)); random.IntN(4) {
		case 0:
			fault = "altered"
			words[i] += "!"
			if !slices.Contains(words, strings.TrimSuffix(words[i], "!")) {
				continue // a single occurrence has nothing to differ from
			}
		case 1:
			fault = "lost"
			gone := words[i]
			words = slices.DeleteFunc(words, func(w string) bool { return w == gone })
		case 2:
			fault = "held back"
			// Every occurrence goes to the end, where it is late or, as the newest, in place.
			if gone := words[i]; gone != fmt.Sprintf("a%d", written) {
				words = append(slices.DeleteFunc(words, func(w string) bool { return w == gone }), gone)
			} else {
				continue
			}
		case 3:
			fault = "an old one alone at the end"
			words = append(words, fmt.Sprintf("a%d", 1+random.Int64N(written-1)))
		}
		broken := script(strings.Join(words, " "))
		if err := broken.judge(t, 0).final(ledgerOf(written, 0)).Err(); err == nil {
			t.Fatalf("seed %d: %s\nhas a fault (%s) that was not found", seed, broken, fault)
		}
	}
}

func TestPayloadSizes(t *testing.T) {
	for _, size := range []int{0, 80, 200, 201, 1000, 5000} {
		e := event{Topic: "orders", Key: KeyName(17), Seq: 12, N: 1_790_000_000_000_017}
		b := e.appendPayload([]byte("x"), size)[1:]
		if size >= 80 && len(b) != size {
			t.Errorf("payload of %d bytes, want %d: %s", len(b), size, b)
		}
		if got, err := parseEvent(b); err != nil || got != e {
			t.Errorf("%s parses as %+v, %v", b, got, err)
		}
	}
}

func TestVerdictInWords(t *testing.T) {
	good := script("a1 a2 a2").judge(t, 0)
	if got, want := good.verdict().String(), "2 delivered so far, 0 passed over, 0 out of order, 1 repeated"; got != want {
		t.Errorf("live verdict %q, want %q", got, want)
	}
	if got, want := good.final(ledgerOf(2, 0)).String(), "2 written, 2 delivered, 0 lost, 0 out of order, 1 repeated"; got != want {
		t.Errorf("final verdict %q, want %q", got, want)
	}
	bad := script("a2 a1").judge(t, 0).final(ledgerOf(3, 0)).String()
	for _, part := range []string{"BROKEN: 1 lost, 1 out of order", "key a event 1: first seen after 2 of its key", "events 3 to 3 are lost"} {
		if !strings.Contains(bad, part) {
			t.Errorf("verdict %q does not contain %q", bad, part)
		}
	}
}

// TestErrWithPauses has what a paused sender leaves behind: stale repeats amid its successor's
// records. They break the shape of repeats, and nothing else is forgiven with them.
func TestErrWithPauses(t *testing.T) {
	for _, c := range []struct {
		name   string
		script script
		broken int64 // repeats that are no suffix
		sound  bool
	}{
		{"a suffix", "a1 a2 a3 a2 a3 a4", 0, true},
		{"stale, at once", "a1 a2 a3 a4 a2 a3 a5", 1, true},
		{"stale, in two pieces", "a1 a2 a3 a2 a4 a3 a5", 2, true},
		{"stale, of two paused senders", "a1 a2 a3 a4 a5 a1 a2 a4 a6", 2, true},
		{"stale, at the end", "a1 a2 a3 a1 a2", 1, true},
		{"swapped meanwhile", "a1 a2 a4 a2 a3 a5", 0, false},
		{"lost meanwhile", "a1 a2 a4 a2 a5", 0, false},
		{"altered meanwhile", "a1 a2 a3 a2! a4", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := c.script.judge(t, 0).final(ledgerOf(highest(c.script), 0))
			if v.BrokenRepeats != c.broken && c.sound {
				t.Errorf("%d broken repeats, want %d: %v", v.BrokenRepeats, c.broken, v)
			}
			if err := v.ErrWithPauses(); (err == nil) != c.sound {
				t.Errorf("with pauses: %v", err)
			}
			if err := v.Err(); (err == nil) != (c.sound && c.broken == 0) {
				t.Errorf("without pauses: %v", err)
			}
		})
	}
}

// highest is the highest sequence of a script of one key with sequences below 10.
func highest(s script) (n int64) {
	for _, word := range strings.Fields(string(s)) {
		n = max(n, int64(word[1]-'0'))
	}
	return n
}
