// Package tail stands between the forwarder and an outbox whose new rows are told by a log:
// logical replication, a change stream. There are two contracts.
//
// A Mirror leaves the truth to the table. It holds in memory what the table holds, and answers
// the forwarder's reads from there while it is complete; else the table is read as without a
// log. It can be thrown away at any moment, so the log need not survive anything.
//
// A Log takes the log for the truth: nothing is dropped, and the log's position is confirmed
// only when everything before it was delivered and deleted.
//
// Both are what lanes.Forwarder consumes as a Source and a Waker. Neither knows a database; who
// feeds them does.
package tail
