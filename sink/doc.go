// Package sink turns events into Kafka records and says what became of each one. It is the
// only importer of the Kafka client besides tests.
//
// What it owns: the client and its settings, the knowledge about topics that decides what may
// be produced (existence, size limit, clean-up policy, timestamp window), the record's
// shape, and the one predicate that sorts errors into classes.
//
// Rules it enforces:
//
//   - An event is Acked only by the broker's answer for that very record, with acks=all from
//     an idempotent producer. Neither can be configured away.
//   - Every submitted event gets exactly one outcome per submission.
//   - Within a run, an event behind a failed one of its topic and key is not produced once
//     the failure is known: it is HeldBack. What can be known before producing (size, topic
//     name, headers, a missing key on a compacted topic) is checked before.
//   - A record in flight is never given up: it is retried until the broker answers or the
//     Producer is closed, so an outage leads to no repeats.
//   - A key chooses its partition as the Java client does (murmur2 of the key's bytes, sign
//     bit cleared, modulo the partition count), the empty key like any other. A row without
//     a key has no order to keep and goes to whichever partition has the least to do.
//   - All events of one run and topic see the same partition count, so that a topic that
//     grows does not scatter a key's run.
//   - Topics are never created.
//   - Bytes of key, payload and header values pass untouched; nil and empty stay apart.
//   - A header named "id" with the row's id is the last header of each record. The
//     name is reserved: an event's own header of that name is left out.
//
// What it does not do: retry an event that got an outcome, wait or pause, park, order events
// across runs, or read from a database. That is the engine's work.
package sink
