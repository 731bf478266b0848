package tail

import (
	"slices"

	"github.com/outbox-forwarder/forwarder/source"
)

// filter is what a read leaves out.
type filter struct {
	lanes  []source.Lane // those that are not left out, ascending; nil for every lane
	some   bool          // lanes are left out
	bits   []uint64      // of lanes
	but    []uint64      // bits of lanes that are left out besides
	topics map[string]bool
	keys   map[source.TopicKey]bool
}

// set makes it what r leaves out.
func (f *filter) set(r *source.Read) {
	f.some = r.Lanes != nil
	f.lanes = append(f.lanes[:0], r.Lanes...)
	clear(f.bits)
	f.but = nil
	for _, lane := range r.Lanes {
		f.bits = setBit(f.bits, int(lane))
	}
	f.topics, f.keys = nil, nil
	for _, topic := range r.Topics {
		f.addTopic(topic)
	}
	for _, key := range r.Keys {
		f.addKey(key)
	}
}

func (f *filter) addLane(lane source.Lane) { f.but = setBit(f.but, int(lane)) }

func (f *filter) addTopic(topic string) {
	if f.topics == nil {
		f.topics = make(map[string]bool)
	}
	f.topics[topic] = true
}

func (f *filter) addKey(key source.TopicKey) {
	if f.keys == nil {
		f.keys = make(map[source.TopicKey]bool)
	}
	f.keys[key] = true
}

// is reports whether it is just what r leaves out.
func (f *filter) is(r *source.Read) bool {
	if f.some != (r.Lanes != nil) || !slices.Equal(f.lanes, r.Lanes) ||
		len(f.topics) != len(r.Topics) || len(f.keys) != len(r.Keys) {
		return false
	}
	for _, topic := range r.Topics {
		if !f.topics[topic] {
			return false
		}
	}
	for _, key := range r.Keys {
		if !f.keys[key] {
			return false
		}
	}
	return true
}

// reads reports whether rows of the lane are not left out for the lane's sake.
func (f *filter) reads(lane source.Lane) bool {
	return (!f.some || hasBit(f.bits, int(lane))) && !hasBit(f.but, int(lane))
}

// covers reports whether the event is left out.
func (f *filter) covers(ev *source.Event) bool {
	return !f.reads(ev.Lane) ||
		len(f.topics) > 0 && f.topics[ev.Topic] ||
		len(f.keys) > 0 && ev.Key != nil && f.keys[source.TopicKey{Topic: ev.Topic, Key: string(ev.Key)}]
}

// asked reports whether r reads something that is left out here.
func (f *filter) asked(r *source.Read) bool {
	if r.Lanes == nil && (f.some || len(f.but) > 0) {
		return true
	}
	for _, lane := range r.Lanes {
		if !f.reads(lane) {
			return true
		}
	}
	if len(f.topics) == 0 && len(f.keys) == 0 {
		return false
	}
	var out filter
	out.set(r)
	for topic := range f.topics {
		if !out.topics[topic] {
			return true
		}
	}
	for key := range f.keys {
		// A key in a lane that is left out is taken for asked: its lane is not known here.
		if !out.keys[key] && !out.topics[key.Topic] {
			return true
		}
	}
	return false
}

func setBit(bits []uint64, i int) []uint64 {
	for i/64 >= len(bits) {
		bits = append(bits, 0)
	}
	bits[i/64] |= 1 << (i % 64)
	return bits
}

func hasBit(bits []uint64, i int) bool { return i/64 < len(bits) && bits[i/64]&(1<<(i%64)) != 0 }

// onlyLanes returns a copy that leaves out lanes only, nil where it would leave out none.
func (f *filter) onlyLanes() *filter {
	if !f.some && len(f.but) == 0 {
		return nil
	}
	return &filter{some: f.some, bits: slices.Clone(f.bits), but: slices.Clone(f.but)}
}
