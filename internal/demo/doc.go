// Package demo runs the forwarder's main job on servers of its own and shows that it keeps
// its promises: a real PostgreSQL, a Kafka-protocol broker in this process, a writer, the
// forwarder, and a checker that holds every record against what was committed.
//
// It owns the embedded broker, what it makes on servers that it was pointed at, the order in
// which the parts start and stop, and everything on the screen. The forwarder is passed in,
// so the demo knows nothing of lanes or sinks; the writer and the checker are the oracle's.
//
// Rules that it enforces: on a user's servers it works in a schema and a topic that it made
// itself, and removes only those; passwords are never shown; it ends by a drain and a
// verdict, however it was asked to end, unless it is killed.
//
// It starts no forwarder in a process of its own and kills nothing: crashes are what the
// end-to-end tests are for.
package demo
