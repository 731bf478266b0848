// Package mongo is the outbox in MongoDB: it creates the collections, checks what it finds,
// reads pages and deletes documents. It is the only production package that imports the
// MongoDB driver.
//
// It keeps the promises of package source/postgres by other means:
//
//   - A page is one snapshot, read from the head of the outbox in the order of seq and _id. An
//     ordinary query may see a younger document of a key and miss an older one that became
//     visible behind its cursor; and seq is given at the insert while a document is visible from
//     the commit on, so a position in that order says nothing of what lies before it. There is no
//     floor: what was delivered is gone, and what commits late appears near the head.
//   - A page is read in two steps at one cluster time: first what the index holds of each
//     document, to leave out what is known and what belongs to other replicas, and then the
//     documents that are wanted. The lane is computed here, from the bytes that go to Kafka.
//   - Reads come from the primary and show what a majority has, deletes and leases are written
//     to a majority's journals: nothing is published or owned that a failover takes back. A
//     snapshot older than an acknowledged delete, as a new primary may give, is not used.
//   - The engine knows an event by a number; an _id is anything. So a handle stands for a
//     document while it is in memory.
//   - Every call has a deadline. Deletes are by _id, and tried again over a change of primary. A
//     delete is one command and no transaction, which would halve its rate. Where the primary dies
//     in the middle of one, and this process too before it could send it again, the documents that
//     are left are those with the highest _ids: a suffix of each key whose _ids rise, as ObjectIds
//     of one writer do.
//   - The index that Init makes holds the key and the topic too: the first step then looks at no
//     document, which halves its cost, and inserting costs no more that could be measured. Known
//     documents are passed over here and not by the server ($nin), which takes twice as long.
//   - A member's lease ends by the server's clock alone, in single-document writes.
//
// An outbox that is streamed follows its change stream, by cluster times: Stream with the collection as
// the truth, Durable with the change stream and a recorded position. A document becomes
// the same event, byte for byte, and has the same handle, whether a page or a change brings it.
//
// It does not decide what to read or delete: see package lanes. It does not serve a sharded
// cluster or a server that is no member of a replica set.
package mongo
