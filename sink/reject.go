package sink

import (
	"errors"
	"fmt"
)

// Reason says why a record was rejected before it was produced.
type Reason string

// The reasons of a RejectedError.
const (
	TooLarge     Reason = "too large"
	IllegalTopic Reason = "illegal topic name"
	Defect       Reason = "defect"
	KeyMissing   Reason = "key missing"
)

// RejectedError tells why an event cannot become a record of its topic, and what to do. Its
// text names the topic; the caller knows table and id.
type RejectedError struct {
	Topic  string
	Reason Reason
	// Size and Limit are in bytes, and LimitName says whose limit it is, when Reason is
	// TooLarge. Size is that of a record batch with nothing but the record in it, before
	// compression.
	Size, Limit int
	LimitName   string
	// Err is the cause where there is one.
	Err error
}

func (e *RejectedError) Error() string {
	switch e.Reason {
	case TooLarge:
		return fmt.Sprintf("topic %q: the record needs a batch of %d bytes before compression, above the limit of %d bytes set by %s; raise that limit or shrink the event",
			e.Topic, e.Size, e.Limit, e.LimitName)
	case IllegalTopic:
		return fmt.Sprintf("topic %q: not a legal Kafka topic name: %v; correct the row's topic", shorten(e.Topic), e.Err)
	case KeyMissing:
		return fmt.Sprintf("topic %q: the event has no key and the topic is compacted (cleanup.policy), which takes only records with a key; give the row a key or change the topic's policy", e.Topic)
	default:
		return fmt.Sprintf("topic %q: %v; correct the row", shorten(e.Topic), e.Err)
	}
}

// Unwrap returns the cause.
func (e *RejectedError) Unwrap() error { return e.Err }

// shorten keeps a name that is far too long from filling the log.
func shorten(s string) string {
	const most = 260
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// maxTopicName is the longest name that Kafka takes.
const maxTopicName = 249

// checkTopicName applies Kafka's rules for topic names.
func checkTopicName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case name == "." || name == "..":
		return fmt.Errorf("it may not be %q", name)
	case len(name) > maxTopicName:
		return fmt.Errorf("it has %d characters and may have %d", len(name), maxTopicName)
	}
	for _, r := range name {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '_', r == '-':
		default:
			return fmt.Errorf("%q is not one of the letters a-z and A-Z, the digits, '.', '_' and '-'", r)
		}
	}
	return nil
}
