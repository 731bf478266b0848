package source

import "fmt"

// Class says what became of an event that was submitted, and so who has to wait.
type Class uint8

const (
	// Acked: the broker acknowledged this very record with acks=all. The row may be deleted.
	Acked Class = iota
	// Broker: the broker side is in trouble (no broker, time-outs, too few replicas, leader
	// moves, authentication). It is nobody's fault in the outbox: submitting pauses for
	// everyone and the event is submitted again. Whether it was written is unknown.
	Broker
	// Topic: the topic does not exist or may not be written. Only that topic waits.
	Topic
	// Record: the record itself cannot be written (too large, illegal topic name, malformed
	// headers, refused by the broker for its own sake). It is parked, and holds back its key.
	Record
	// Suspect: the broker refused a batch for the sake of some record in it, and this event
	// was in that batch with others. It must be submitted again alone to know.
	Suspect
	// HeldBack: not produced, because an earlier event of its key in the same run failed.
	HeldBack
)

var classNames = [...]string{"acked", "broker", "topic", "record", "suspect", "held back"}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

// Outcome tells what became of one submitted event. Every submitted event gets exactly one
// outcome per submission.
type Outcome struct {
	ID    int64
	Class Class
	Err   error // nil exactly when Class is Acked
}
