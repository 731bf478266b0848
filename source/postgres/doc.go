// Package postgres is the outbox in PostgreSQL: it creates the tables, checks what it finds,
// reads pages and deletes rows. It is the only production package that imports pgx.
//
// It enforces these rules:
//
//   - a page is one statement in one snapshot, which it reports;
//   - keys, payloads and headers leave as the database's own bytes, and the lane is computed
//     from the key's bytes, in SQL as in Go;
//   - no transaction is open while a record is in flight, and every call has a deadline;
//   - rows are deleted by primary key, in order, and a deadlock or a serialization failure is
//     tried again;
//   - a transaction of ours that has an xid is marked, so that no floor of another replica waits
//     for it.
//
// There are three kinds of outbox. Source is polled. Stream follows the log from a temporary slot of
// its own and answers reads from memory, with the table as the truth. Durable follows it from a
// slot that lasts, with the log as the truth. For those that follow the log:
//
//   - a row of the log becomes the same event, byte for byte, as the row of a page;
//   - what keeps the log from telling of every row is an error at start, and ends a stream;
//   - a position is told to the server soon after it is reached: when it was received (Stream), or
//     when everything before it was delivered and deleted (Durable);
//   - a connection on which the server is silent is given up, and so is one that a server which
//     shuts down would wait for.
//
// It does not decide what to read or delete: see package lanes.
package postgres
