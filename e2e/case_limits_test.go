package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// noise is a payload that no compression makes smaller.
func noise(n int) []byte {
	random := rand.NewChaCha8([32]byte{71})
	b := make([]byte, n)
	_, _ = random.Read(b) // never fails
	return b
}

// wantTold demands that the log and the listing say which row is too large for what.
func (p *process) wantTold(w waits, size int, limit, setting string) {
	p.t.Helper()
	for _, part := range []string{w.Topic, limit, setting, "raise"} {
		if !strings.Contains(w.Reason, part) {
			p.t.Errorf("the reason %q does not say %q", w.Reason, part)
		}
	}
	var said int
	if _, after, found := strings.Cut(w.Reason, "needs a batch of "); found {
		_, _ = fmt.Sscan(after, &said) // 0 is refused below
	}
	if said < size || said > size+size/10+200 {
		p.t.Errorf("the reason %q does not say the size, about %d bytes", w.Reason, size)
	}
	for _, l := range p.lines() {
		if l.Level == "WARN" && strings.Contains(l.text, fmt.Sprintf(`"id":"%d",`, w.ID)) {
			for _, part := range []string{"public.outbox", w.Topic, limit, setting, fmt.Sprint(said)} {
				if !strings.Contains(l.text, part) {
					p.t.Errorf("the log line %s does not say %q", l.text, part)
				}
			}
			return
		}
	}
	p.t.Errorf("no log line tells of row %d", w.ID)
}

// TestC71RecordAboveALimit sends single rows that are above a limit of their topic, with
// neighbours before and behind them, and raises the limit.
func TestC71RecordAboveALimit(t *testing.T) {
	const mebibyte = 1 << 20
	for _, compression := range []string{"none", "zstd"} {
		for _, c := range []struct {
			name    string
			configs map[string]string
			payload []byte
			limit   string // as it is told
			setting string // to raise
		}{
			{"1.2 MB at Kafka's defaults", nil, noise(1_200_000), fmt.Sprint(mebibyte + 12), "max.message.bytes"},
			{"3 MB of zeros", nil, make([]byte, 3_000_000), fmt.Sprint(mebibyte + 12), "max.message.bytes"},
			{"segment smaller than the message limit", map[string]string{"segment.bytes": fmt.Sprint(mebibyte), "max.message.bytes": "4000000"},
				noise(1_300_000), fmt.Sprint(mebibyte), "segment.bytes"},
		} {
			t.Run(c.name+", compression "+compression, func(t *testing.T) {
				s := newStage(t, nil, nil)
				topic := s.makeTopic("", 1, c.configs)
				var rows []row
				for i := range 20 {
					rows = append(rows, row{topic, fmt.Sprint("k", i%4), fmt.Sprint(i), nil})
				}
				rows = append(rows[:10:10], append([]row{{topic, "large", c.payload, nil}, {topic, "large", "behind", nil}}, rows[10:]...)...)
				ids := s.put(rows...)
				p := s.start(inJSON, "FORWARDER_KAFKA_COMPRESSION="+compression)
				s.arrive(topic, 20, drainLimit)
				w := p.awaitParked(1)[0]
				if w.ID != ids[10] || w.Topic != topic {
					t.Errorf("row %d of topic %q waits, want row %d", w.ID, w.Topic, ids[10])
				}
				p.wantTold(w, len(c.payload), c.limit, c.setting)

				s.configure(topic, c.setting, "5000000")
				p.retry(1)
				s.arrive(topic, 22, drainLimit)
				s.awaitEmpty()
				_, peak := p.memory()
				p.stop()
				records := s.records(topic)
				if r := byID(t, records)[ids[10]]; r == nil || !bytes.Equal(r.Value, c.payload) {
					t.Error("the large record is not what the row holds")
				}
				for i := range 4 {
					if got, want := values(records, fmt.Sprint("k", i)), fmt.Sprintf("%d,%d,%d,%d,%d", i, i+4, i+8, i+12, i+16); got != want {
						t.Errorf("key k%d has %s, want %s", i, got, want)
					}
				}
				if peak > memoryLimit {
					t.Errorf("the peak of memory is %d MiB", peak>>20)
				}
			})
		}
	}
}

// memoryLimit is the most that the forwarder may use at full speed.
const memoryLimit = 128 << 20

// TestC71ManySmallRecords sends records that only together are above the topic's limit, and
// enough of the largest ones that pass to fill the memory more than once.
func TestC71ManySmallRecords(t *testing.T) {
	s := newStage(t, nil, nil)
	narrow := s.makeTopic("", 1, map[string]string{"max.message.bytes": "10000"})
	wide := s.makeTopic("", 1, nil)
	var rows []row
	payload := noise(3000)
	for range 400 {
		rows = append(rows, row{narrow, "k", payload, nil})
	}
	s.put(rows...)
	s.sql("INSERT INTO outbox (topic, key, payload) SELECT $1, 'w' || i % 7, repeat('x', 1000000)::bytea FROM generate_series(1, 100) i", wide)
	p := s.start(inJSON)
	s.arrive(narrow, 400, drainLimit)
	s.arrive(wide, 100, drainLimit)
	s.awaitEmpty()
	_, peak := p.memory()
	p.stop()
	p.quiet()
	for _, topic := range []string{narrow, wide} {
		last := map[string]int64{}
		for id, r := range byID(t, s.records(topic)) {
			last[string(r.Key)] = max(last[string(r.Key)], id)
		}
	}
	t.Logf("peak of memory: %d MiB", peak>>20)
	if peak > memoryLimit {
		t.Errorf("the peak of memory is %d MiB", peak>>20)
	}
}
