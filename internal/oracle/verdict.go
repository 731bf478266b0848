package oracle

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Verdict is what the checker found. All counts are of events or records.
type Verdict struct {
	// Final says that the topics were read to their end and held against the ledger. Before
	// that Written, Lost, Unwritten and a repeat under way cannot be judged and are 0.
	Final bool
	// Written is what the ledger says was committed.
	Written int64
	// Received counts records, Delivered the different events among them, Repeated the rest
	// of the readable ones.
	Received, Delivered, Repeated int64
	// Lost events were committed and are in no topic. Gaps counts, at any time, events that
	// were passed over by a newer one of their key.
	Lost, Gaps int64
	// OutOfOrder events were first seen after a newer one of their key.
	OutOfOrder int64
	// BrokenRepeats are repeats that are not a repeated suffix.
	BrokenRepeats int64
	// Altered repeats differ from the first occurrence; Doubtful ones reach back so far that
	// the first occurrence is not remembered.
	Altered, Doubtful int64
	// Strayed records are in another partition than the first record of their key.
	Strayed int64
	// BadIDs are first occurrences without exactly one decimal `id` header above that of the
	// event before.
	BadIDs int64
	// Foreign records are not from the oracle's writer, or are damaged.
	Foreign int64
	// Unwritten events are in a topic and not in the ledger.
	Unwritten int64
	// Latency is from commit to consumed, where a Stopwatch was shared with the writer.
	Latency Latency
	// Faults describes the first few findings, one line each.
	Faults []string
}

// Err is nil when every promise was kept, repeats being allowed; otherwise it lists what was
// broken and the first findings.
func (v Verdict) Err() error { return v.err(v.BrokenRepeats) }

// ErrWithPauses is Err for a run in which senders were stopped for longer than their lease.
// What such a sender had on the wire lands in the midst of what its successor sends: repeats
// that are no suffixes. They are left to the caller, as BrokenRepeats. The order of first
// occurrences, and everything else, is demanded all the same.
func (v Verdict) ErrWithPauses() error { return v.err(0) }

func (v Verdict) err(brokenRepeats int64) error {
	var broken []string
	for _, c := range []struct {
		n    int64
		what string
	}{
		{v.Lost, "lost"},
		{v.OutOfOrder, "out of order"},
		{brokenRepeats, "repeated other than as a suffix"},
		{v.Altered, "altered in a repeat"},
		{v.Doubtful, "repeated from too long ago to compare"},
		{v.Strayed, "in another partition than their key"},
		{v.BadIDs, "with a bad id header"},
		{v.Foreign, "foreign or damaged"},
		{v.Unwritten, "never committed"},
	} {
		if c.n > 0 {
			broken = append(broken, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(broken) == 0 {
		return nil
	}
	return errors.New(strings.Join(append([]string{strings.Join(broken, ", ")}, v.Faults...), "\n\t"))
}

// String is one line, with a line for each finding below it.
func (v Verdict) String() string {
	var b strings.Builder
	if v.Final {
		fmt.Fprintf(&b, "%d written, %d delivered, %d lost, ", v.Written, v.Delivered, v.Lost)
	} else {
		fmt.Fprintf(&b, "%d delivered so far, %d passed over, ", v.Delivered, v.Gaps)
	}
	fmt.Fprintf(&b, "%d out of order, %d repeated", v.OutOfOrder, v.Repeated)
	if v.Latency.Count > 0 {
		fmt.Fprintf(&b, ", commit to consumed p50 %s p99 %s max %s", rounded(v.Latency.P50), rounded(v.Latency.P99), rounded(v.Latency.Max))
	}
	if err := v.Err(); err != nil {
		fmt.Fprintf(&b, "; BROKEN: %v", err)
	}
	return b.String()
}

func rounded(d time.Duration) time.Duration {
	if d < 100*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

// verdict is the state of affairs, without a ledger.
func (j *judge) verdict() Verdict {
	return Verdict{
		Received: j.sum.received, Delivered: j.sum.delivered, Repeated: j.sum.repeated,
		Gaps: j.sum.gaps, OutOfOrder: j.sum.late, BrokenRepeats: j.sum.brokenRepeats,
		Altered: j.sum.altered, Doubtful: j.sum.doubtful, Strayed: j.sum.strayed,
		BadIDs: j.sum.badIDs, Foreign: j.sum.foreign,
		Faults: append([]string(nil), j.faults...),
	}
}

// final holds what was received, up to the end of every topic, against the ledger.
func (j *judge) final(ledger Ledger) Verdict {
	v := j.verdict()
	v.Final = true
	v.Written = ledger.Events()
	note := func(format string, args ...any) {
		if len(v.Faults) < maxFaults {
			v.Faults = append(v.Faults, fmt.Sprintf(format, args...))
		}
	}
	for name, written := range ledger {
		s := j.streams[name.Topic][name.Key]
		if s == nil {
			v.Lost += written
			note("%s key %s: none of its %d events arrived", name.Topic, name.Key, written)
			continue
		}
		for seq := range s.missing {
			if seq <= written {
				v.Lost++
				note("%s key %s: event %d is lost", name.Topic, name.Key, seq)
			}
		}
		if s.max < written {
			v.Lost += written - s.max
			note("%s key %s: events %d to %d are lost", name.Topic, name.Key, s.max+1, written)
		}
	}
	for topic, keys := range j.streams {
		for key, s := range keys {
			written := ledger[Stream{topic, key}]
			for seq := written + 1; seq <= s.max; seq++ {
				if _, gone := s.missing[seq]; !gone {
					v.Unwritten++
				}
			}
			if s.max > written {
				note("%s key %s: event %d arrived, the ledger ends at %d", topic, key, s.max, written)
			}
			if next := s.next(); next <= s.max {
				v.BrokenRepeats++
				note("%s key %s: the last repeat ends at %d, before the newest event %d", topic, key, s.pos, s.max)
			}
		}
	}
	return v
}
