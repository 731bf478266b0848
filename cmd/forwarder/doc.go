// Command forwarder moves rows of a PostgreSQL outbox table to Kafka.
//
// This package owns what only a process can do: arguments, signals, standard streams and
// the exit code. It fills the configs of the other packages and wires them (wire.go).
//
// Exit codes: 0 for a clean stop, help and version; 1 for giving up at run time; 2 for a
// mistake in the configuration or the command line, with everything that is wrong listed.
// Whatever fails, the last line on standard error is the cause.
package main
