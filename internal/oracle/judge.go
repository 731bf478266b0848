package oracle

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"strconv"
)

// record is a consumed Kafka record, reduced to what is judged.
type record struct {
	topic     string
	partition int32
	offset    int64
	key       []byte
	value     []byte
	id        string // the `id` header
	idHeaders int    // how many of them there were
	headers   []header
}

type header struct {
	name  string
	value []byte
}

// judge follows the sequence of every (topic, key). It is a plain value without goroutine,
// clock or network; the Checker feeds it under a lock.
type judge struct {
	seed    maphash.Seed
	history int // fingerprints kept for a stream, 0 for all
	streams map[string]map[string]*stream
	sum     tally
	faults  []string
}

// tally is what the judge counts.
type tally struct {
	received, delivered, repeated         int64
	late, brokenRepeats, altered, strayed int64
	foreign, gaps, badIDs, doubtful       int64
}

// stream is one (topic, key).
//
// Invariant: every seq in 1..max was received or is in missing; 0 <= pos <= max.
type stream struct {
	partition int32
	pos, max  int64 // the event received last, the newest one received
	lastID    rowID // the id header of the event max
	// prints[i] is the fingerprint of the event base+1+i.
	prints  []uint64
	base    int64
	missing map[int64]struct{}
}

// maxFaults bounds the texts that are kept; everything is counted.
const maxFaults = 12

// maxGap is the largest jump in a sequence that is believed. A larger one is a payload that
// was damaged, and filling the gap would take the memory of the checker with it.
const maxGap = 1 << 22

func newJudge(history int) *judge {
	return &judge{seed: maphash.MakeSeed(), history: history, streams: map[string]map[string]*stream{}}
}

// observe takes the next record of a partition. It returns the event and whether this was
// its first occurrence.
func (j *judge) observe(r *record) (e event, first bool) {
	j.sum.received++
	e, err := parseEvent(r.value)
	if err != nil {
		j.foreignRecord(r, err.Error())
		return e, false
	}
	if e.Topic != r.topic || e.Key != string(r.key) {
		j.foreignRecord(r, fmt.Sprintf("the payload says topic %q key %q, the record has key %q", e.Topic, e.Key, r.key))
		return e, false
	}
	s := j.stream(r)
	if e.Seq > s.max+maxGap {
		j.foreignRecord(r, fmt.Sprintf("sequence %d after %d cannot be right", e.Seq, s.max))
		return e, false
	}
	if r.partition != s.partition {
		j.sum.strayed++
		j.fault(r, e, "the key was in partition %d before", s.partition)
	}
	print := j.fingerprint(r)
	switch _, wasMissing := s.missing[e.Seq]; {
	case e.Seq > s.max:
		j.newest(s, r, e, print)
		return e, true
	case wasMissing:
		// The position stays: what follows is judged against the newest event.
		delete(s.missing, e.Seq)
		j.sum.gaps--
		s.setPrint(e.Seq, print)
		j.sum.delivered++
		j.sum.late++
		j.fault(r, e, "first seen after %d of its key", s.max)
		return e, true
	}
	j.repeat(s, r, e, print)
	return e, false
}

// newest takes an event beyond everything that its key has shown.
func (j *judge) newest(s *stream, r *record, e event, print uint64) {
	j.sum.delivered++
	if expected := s.next(); expected <= s.max {
		j.sum.brokenRepeats++
		j.fault(r, e, "a repeat stopped at %d, before the newest event %d", s.pos, s.max)
	}
	for seq := s.max + 1; seq < e.Seq; seq++ {
		if s.missing == nil {
			s.missing = map[int64]struct{}{}
		}
		s.missing[seq] = struct{}{}
		s.prints = append(s.prints, 0)
		j.sum.gaps++
	}
	if e.Seq > s.max+1 {
		j.fault(r, e, "%d to %d of its key have not been seen", s.max+1, e.Seq-1)
	}
	s.prints = append(s.prints, print)
	if j.history > 0 && len(s.prints) > 2*j.history {
		drop := len(s.prints) - j.history
		s.base += int64(drop)
		s.prints = append(s.prints[:0], s.prints[drop:]...)
	}
	s.max, s.pos = e.Seq, e.Seq
	j.checkID(s, r, e)
}

// checkID demands one id header, a decimal number or an ObjectId, higher than that of the event
// before: the writer takes a key's lock before its row takes an id.
func (j *judge) checkID(s *stream, r *record, e event) {
	id, ok := parseRowID(r.id)
	if !ok || r.idHeaders != 1 {
		j.sum.badIDs++
		j.fault(r, e, "%d id headers, the last one %q, want one decimal number or ObjectId", r.idHeaders, r.id)
		return
	}
	if bytes.Compare(id[:], s.lastID[:]) <= 0 {
		j.sum.badIDs++
		j.fault(r, e, "id header %s is not above that of the event before", r.id)
	}
	s.lastID = id
}

// rowID orders rows as their ids do.
type rowID [12]byte

// parseRowID reads a row's number above 0, or a document's ObjectId, as each is written.
func parseRowID(text string) (id rowID, ok bool) {
	if len(text) == hex.EncodedLen(len(id)) {
		_, err := hex.Decode(id[:], []byte(text))
		return id, err == nil && hex.EncodeToString(id[:]) == text
	}
	n, err := strconv.ParseInt(text, 10, 64)
	binary.BigEndian.PutUint64(id[4:], uint64(n))
	return id, err == nil && n > 0 && strconv.FormatInt(n, 10) == text
}

// repeat takes an event that was received before.
func (j *judge) repeat(s *stream, r *record, e event, print uint64) {
	j.sum.repeated++
	if e.Seq > s.pos && e.Seq != s.next() {
		j.sum.brokenRepeats++
		j.fault(r, e, "repeated after %d, before %d was repeated", s.pos, s.next())
	}
	s.pos = e.Seq
	switch was, known := s.print(e.Seq); {
	case !known:
		j.sum.doubtful++
		j.fault(r, e, "repeated after %d newer events of its key", s.max-e.Seq)
	case was != print:
		j.sum.altered++
		j.fault(r, e, "the repeat differs from the first occurrence in value or headers")
	}
}

// next is the event that must come after pos, unless a repeat starts: the next one that is
// not missing. It is above max when nothing is left to repeat.
func (s *stream) next() int64 {
	n := s.pos + 1
	for n <= s.max {
		if _, gone := s.missing[n]; !gone {
			break
		}
		n++
	}
	return n
}

func (s *stream) print(seq int64) (uint64, bool) {
	i := seq - s.base - 1
	if i < 0 {
		return 0, false
	}
	return s.prints[i], true
}

func (s *stream) setPrint(seq int64, print uint64) {
	if i := seq - s.base - 1; i >= 0 {
		s.prints[i] = print
	}
}

func (j *judge) stream(r *record) *stream {
	keys := j.streams[r.topic]
	if keys == nil {
		keys = map[string]*stream{}
		j.streams[r.topic] = keys
	}
	s := keys[string(r.key)]
	if s == nil {
		s = &stream{partition: r.partition}
		keys[string(r.key)] = s
	}
	return s
}

// fingerprint covers what a repeat must carry again.
func (j *judge) fingerprint(r *record) uint64 {
	var h maphash.Hash
	h.SetSeed(j.seed)
	// Each part is preceded by its length, so that bytes cannot move from one to the next.
	part := func(b []byte) {
		n := len(b)
		if b == nil {
			n = -1
		}
		maphash.WriteComparable(&h, n)
		_, _ = h.Write(b) // never fails
	}
	part(r.key)
	part(r.value)
	for _, x := range r.headers {
		part([]byte(x.name))
		part(x.value)
	}
	return h.Sum64()
}

func (j *judge) foreignRecord(r *record, why string) {
	j.sum.foreign++
	j.note("%s/%d@%d: %s", r.topic, r.partition, r.offset, why)
}

func (j *judge) fault(r *record, e event, format string, args ...any) {
	j.note("%s/%d@%d: key %s event %d: %s", r.topic, r.partition, r.offset, e.Key, e.Seq, fmt.Sprintf(format, args...))
}

func (j *judge) note(format string, args ...any) {
	if len(j.faults) < maxFaults {
		j.faults = append(j.faults, fmt.Sprintf(format, args...))
	}
}
