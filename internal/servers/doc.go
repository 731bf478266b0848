// Package servers starts real servers, PostgreSQL, MongoDB and Apache Kafka, as plain processes
// of this machine: for tests, for the benchmark, and PostgreSQL also for the demo.
//
// It owns where their programs come from (the machine's own, else packages fetched once
// into a cache folder), their ports, their data folders, and their processes.
//
// Rules it enforces:
//   - A server listens on loopback only, on a port outside the range from which the
//     kernel takes ports for outgoing connections. So the port is still free when the
//     server comes back after a Stop or a Kill, and no client can connect to itself there.
//   - A server dies with the process that started it, also when that process is killed
//     with SIGKILL (on Linux). What such a process left in the folder for temporary files
//     is removed by the next server that starts.
//   - Servers are signalled by process id, never by name.
//   - PostgreSQL, which refuses to run as root, runs as postgres or nobody where the
//     caller is root.
//   - Fetching is safe when several processes begin it at once, and an interrupted fetch
//     is never taken for a complete one.
//
// It does not create databases, roles or topics (package serverstest does, for tests),
// and its servers are not meant for data that anybody wants to keep: Close removes it.
package servers
