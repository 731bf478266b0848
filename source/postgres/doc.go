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
//     tried again.
//
// It does not decide what to read or delete: see package lanes.
package postgres
