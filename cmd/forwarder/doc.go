// Command forwarder moves events from an outbox, a table in PostgreSQL or a collection in MongoDB,
// to Kafka.
//
// This package owns what only a process can do: arguments, signals, standard streams and
// the exit code. It fills the configs of the other packages and wires them (wire.go): one store
// stands for either database in any mode (store.go), and a service runs it (service.go).
//
// Exit codes: 0 for a clean stop, help and version; 1 for giving up at run time; 2 for a
// mistake in the configuration or the command line, with everything that is wrong listed.
// Whatever fails, the last line on standard error is the cause.
package main
