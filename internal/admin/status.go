package admin

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// Status is the forwarder as operators see it. All methods are called concurrently, and
// answer at once.
type Status interface {
	// Alive says whether the forwarder's loop still turns. A forwarder that waits for a
	// broker or a database is alive; restarting it would help nobody.
	Alive() bool
	// Unready lists in words why events are not moving; empty when the forwarder is ready.
	Unready() []string
	// Parked lists what waits, in the order in which it should be shown.
	Parked() []Parked
	// RetryParked makes everything that waits due now and returns how much that is. It
	// does not wait for the outcome.
	RetryParked() int
	// Retire makes this replica give up its lanes to the others and take none until it is
	// restarted.
	Retire()
}

// Part names what waits.
type Part string

// The parts that can wait: all of a lane, one topic, the events of one key in one topic,
// or a single row that has no key.
const (
	PartLane  Part = "lane"
	PartTopic Part = "topic"
	PartKey   Part = "key"
	PartRow   Part = "row"
)

// Parked is one part that waits, and why.
type Parked struct {
	Part Part `json:"part"`
	// ID names the row that cannot be delivered and holds the part back; empty where no
	// single row does.
	ID string `json:"id,omitempty"`
	// Lane is set for PartLane only.
	Lane *uint16 `json:"lane,omitempty"`
	// Topic is empty for PartLane only.
	Topic string `json:"topic,omitempty"`
	// Key is nil except for PartKey.
	Key Key `json:"key"`
	// Reason says what is wrong, in words.
	Reason string `json:"reason"`
	// Attempts counts the submissions that failed.
	Attempts int `json:"attempts"`
	// Since is when the part began to wait.
	Since time.Time `json:"since"`
	// NextRetry is when it is due; the zero time while it is being tried.
	NextRetry time.Time `json:"next_retry,omitzero"`
}

// Key is an ordering key. In JSON it is null, a string, or, where the bytes are not UTF-8,
// {"base64": "..."}, so that every key comes back as it was.
type Key []byte

type binaryKey struct {
	Base64 string `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (k Key) MarshalJSON() ([]byte, error) {
	switch {
	case k == nil:
		return []byte("null"), nil
	case utf8.Valid(k):
		return json.Marshal(string(k))
	default:
		return json.Marshal(binaryKey{base64.StdEncoding.EncodeToString(k)})
	}
}

// UnmarshalJSON implements json.Unmarshaler.
func (k *Key) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	switch {
	case bytes.Equal(data, []byte("null")):
		*k = nil
		return nil
	case len(data) > 0 && data[0] == '{':
		var binary binaryKey
		if err := json.Unmarshal(data, &binary); err != nil {
			return err
		}
		raw, err := base64.StdEncoding.DecodeString(binary.Base64)
		if err != nil {
			return fmt.Errorf("decoding a binary key: %w", err)
		}
		*k = raw
		return nil
	default:
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		*k = Key(text)
		return nil
	}
}
