// Package oracle judges a forwarder from outside: it writes numbered events into an outbox,
// keeps a ledger of what was committed, reads the topics with a plain consumer, and says what
// was lost, repeated, altered or out of order.
//
// It owns the workload (Writer, Preload), the ledger table, the Checker and its Verdict. It
// imports nothing of the forwarder, so that a mistake there cannot hide here. The rules it
// enforces are the product's promises:
//
//   - every event of the ledger is received at least once, and nothing else is;
//   - within a topic, events of one key are first seen in ascending sequence;
//   - a repeat is a repeated suffix: after a repeat of n come n+1, n+2 ... up to the newest
//     event before a new one does (3 4 5 4 5 6);
//   - a repeat has the key, value and headers of the first occurrence;
//   - all events of a key are in one partition.
//
// The ledger is a business table that changes in the very transaction that inserts the event,
// so a commit whose answer was lost with its connection is not in doubt: the table knows. All of
// it is the same in MongoDB, by the scheme of the URL: there the two are collections.
//
// It does not judge events without a key (they have no order) and it does not create outboxes.
package oracle
