package sink

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outbox-forwarder/forwarder/source"
)

// classify says whom a failed record is to blame on. It is the only place that decides this.
//
// The cost of each mistake:
//
//   - Broker for what is really a topic's or a record's fault: everybody waits, with backoff,
//     for as long as it lasts. Nothing is lost, and the reason is visible.
//   - Topic for what is really the broker's fault: one topic is left out for a moment.
//   - Suspect for what is really the broker's fault: the event is sent again alone, and if it
//     fails again it is parked with its key. Parking is retried slowly and by command, so the
//     event is late but not lost; an outage that parked everything would be the worst of these.
//   - Topic or Suspect for a record that was written: it is written once more.
//
// So whatever is not certainly a topic's or a record's fault is the broker's.
func classify(err error) source.Class {
	var ke *kerr.Error
	if !errors.As(err, &ke) {
		// Connection errors, a closed client, time-outs.
		return source.Broker
	}
	switch ke.Code {
	case kerr.UnknownTopicOrPartition.Code,
		kerr.UnknownTopicID.Code, // deleted and made again
		kerr.TopicAuthorizationFailed.Code,
		kerr.InvalidTopicException.Code: // the name passed our own check: an internal topic
		return source.Topic
	case kerr.MessageTooLarge.Code,
		kerr.RecordListTooLarge.Code, // larger than a segment
		kerr.InvalidTimestamp.Code,
		kerr.InvalidRecord.Code, // also: no key on a compacted topic
		kerr.CorruptMessage.Code,
		kerr.PolicyViolation.Code:
		// The client fails everything that it holds for the partition along with the batch,
		// so which record is at fault shows only when one is sent alone.
		return source.Suspect
	default:
		return source.Broker
	}
}

// doubts reports whether a failure suggests that what is known about its topic is out of date.
func doubts(class source.Class) bool { return class == source.Topic || class == source.Suspect }
