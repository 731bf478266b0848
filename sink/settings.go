package sink

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// settings is what the brokers said about a topic at one moment. It is immutable.
type settings struct {
	topic string
	asked time.Time // when the question was put: what happened later may not be in it
	// err says why nothing may be produced to the topic: it does not exist or the user has
	// no right to see it. The rest is meaningless then.
	err        error
	id         [16]byte // zero where the broker is too old to have ids
	partitions int32
	// trouble says in words why the topic's records may have to wait; empty when nothing is wrong.
	trouble string

	maxBytes  int    // largest record batch
	limitName string // whose limit maxBytes is
	compacted bool
	// before and after bound a record's timestamp against the broker's clock.
	before, after time.Duration
	// guessed: the topic's configuration could not be read and the values are Kafka's defaults.
	guessed bool
}

// Kafka's defaults, for topics whose configuration may not be read.
const (
	defaultMaxBytes = 1<<20 + 12
	defaultAfter    = time.Hour
	unbounded       = time.Duration(math.MaxInt64)
)

// The names of the configuration that matters here.
const (
	cfgMaxBytes   = "max.message.bytes"
	cfgSegment    = "segment.bytes"
	cfgPolicy     = "cleanup.policy"
	cfgBefore     = "message.timestamp.before.max.ms"
	cfgAfter      = "message.timestamp.after.max.ms"
	cfgDifference = "message.timestamp.difference.max.ms" // before Kafka 3.6, for both
	cfgMinISR     = "min.insync.replicas"
)

var configNames = []string{cfgMaxBytes, cfgSegment, cfgPolicy, cfgBefore, cfgAfter, cfgDifference, cfgMinISR}

// newSettings combines a topic's metadata with its configuration, which is nil where it
// could not be read.
func newSettings(md *kmsg.MetadataResponseTopic, config map[string]string, asked time.Time, clientMax int) *settings {
	s := &settings{
		topic:      *md.Topic,
		asked:      asked,
		id:         md.TopicID,
		partitions: int32(len(md.Partitions)),
		before:     unbounded,
		after:      defaultAfter,
		guessed:    config == nil,
		compacted:  strings.Contains(config[cfgPolicy], "compact"),
	}
	s.maxBytes, s.limitName = clientMax, "the client's own maximum batch size"
	limit := func(bytes int, whose string) {
		if bytes < s.maxBytes {
			s.maxBytes, s.limitName = bytes, whose
		}
	}
	if n, ok := number(config, cfgMaxBytes); ok {
		limit(int(n), "the topic's "+cfgMaxBytes)
	} else {
		limit(defaultMaxBytes, "Kafka's default for "+cfgMaxBytes+" (the topic's own may not be read; grant DescribeConfigs on it)")
	}
	if n, ok := number(config, cfgSegment); ok {
		limit(int(n), "the topic's "+cfgSegment)
	}
	if n, ok := number(config, cfgDifference); ok {
		s.before, s.after = millis(n), millis(n)
	}
	if n, ok := number(config, cfgBefore); ok {
		s.before = millis(n)
	}
	if n, ok := number(config, cfgAfter); ok {
		s.after = millis(n)
	}
	minISR, _ := number(config, cfgMinISR)
	s.trouble = trouble(md.Partitions, int(minISR))
	return s
}

// inherit takes over what old knows of the topic's configuration. Only before s is shared.
func (s *settings) inherit(old *settings) {
	s.maxBytes, s.limitName, s.compacted = old.maxBytes, old.limitName, old.compacted
	s.before, s.after, s.guessed = old.before, old.after, false
}

// trouble looks for partitions that cannot be written.
func trouble(parts []kmsg.MetadataResponseTopicPartition, minISR int) string {
	leaderless, short, first := 0, 0, ""
	for i := range parts {
		p := &parts[i]
		switch {
		case p.Leader < 0:
			leaderless++
			if first == "" {
				first = fmt.Sprintf("partition %d has no leader", p.Partition)
			}
		case len(p.ISR) < minISR:
			short++
			if first == "" {
				first = fmt.Sprintf("partition %d has %d in-sync replicas and %s asks for %d", p.Partition, len(p.ISR), cfgMinISR, minISR)
			}
		}
	}
	if more := leaderless + short - 1; more > 0 {
		return fmt.Sprintf("%s, and %d more partitions cannot be written", first, more)
	}
	return first
}

func number(config map[string]string, name string) (int64, bool) {
	n, err := strconv.ParseInt(config[name], 10, 64)
	return n, err == nil
}

func millis(n int64) time.Duration {
	if n < 0 || n > int64(unbounded/time.Millisecond) {
		return unbounded
	}
	return time.Duration(n) * time.Millisecond
}

// batchLimit is the client's batch limit for the topic. The client counts up to framing
// bytes of its own against it, so its batches stay below the broker's limit by as much.
func (s *settings) batchLimit() int32 { return int32(max(s.maxBytes, minBatchBytes)) }

// framing is what the client counts with a batch besides its bytes: the length prefix.
const framing = 4

// check returns why the record cannot be written to the topic, or nil.
func (s *settings) check(r *kgo.Record) error {
	if r.Key == nil && s.compacted {
		return &RejectedError{Topic: s.topic, Reason: KeyMissing}
	}
	if size := batchBytes(r) + framing; size > s.maxBytes {
		return &RejectedError{Topic: s.topic, Reason: TooLarge, Size: size, Limit: s.maxBytes, LimitName: s.limitName}
	}
	return nil
}

// skew is how far the broker's clock, and the time a record spends on its way, may shift a
// timestamp against a bound of the topic.
func skew(bound time.Duration) time.Duration { return min(bound/10, time.Minute) }

// timestamp returns the record's timestamp for an event, or the zero time for "when it is
// sent": where the event's own time is unknown, cannot be written in a record, or would be
// refused by the topic.
func (s *settings) timestamp(created, now time.Time) time.Time {
	// Records count milliseconds from 1970, negative ones being reserved; the client
	// computes them by way of nanoseconds, which end in 2262.
	if created.IsZero() || created.Before(firstTimestamp) || created.After(lastTimestamp) {
		return time.Time{}
	}
	// Sub saturates, so times that are far apart compare well.
	if age := now.Sub(created); age >= 0 && s.before != unbounded && age > s.before-skew(s.before) {
		return time.Time{}
	}
	if ahead := created.Sub(now); ahead > 0 && s.after != unbounded && ahead > s.after-skew(s.after) {
		return time.Time{}
	}
	return created
}

var (
	firstTimestamp = time.UnixMilli(0)
	lastTimestamp  = time.Unix(0, math.MaxInt64)
)
