package source

import "slices"

// Read asks a source for one page: the first undelivered events above Floor that belong to
// live parts and are not known. It is answered by one statement in one snapshot.
type Read struct {
	// Floor is exclusive: only events with ID > Floor are asked for.
	Floor int64
	// Lanes lists the lanes to read, in ascending order; nil means every lane.
	Lanes []Lane
	// Known lists every ID that must not be returned, those at or below Floor too: events in
	// memory, and rows without a key that wait for their retry. Order does not matter.
	Known []int64
	// Topics are left out of the read.
	Topics []string
	// Keys are left out of the read.
	Keys []TopicKey
	// Rescan says that Floor was set to the table's start by the clock, to find rows that no
	// floor can foresee. A source that knows of every new row may answer it from memory.
	Rescan bool
	// Gained says that some of Lanes were not ours at the time of an earlier read: another
	// process may have deleted rows of them since.
	Gained bool
	// Dropped says that events of earlier pages are not among Known any more though they were
	// not deleted. Without it, what is missing from Known since the last read was deleted.
	Dropped bool
	// Fence asks for Page.Fence.
	Fence bool
	// Limit is the largest number of events in the page, at least 1.
	Limit int
	// Bytes bounds the page's size (by Event.Size): the page ends with the event that
	// passes it.
	Bytes int
}

// Page answers a Read.
type Page struct {
	// Events are in the order in which they are to be sent: in ascending ID where there is a
	// Snapshot.
	Events []*Event
	// Full says that Limit or Bytes ended the page: events beyond the last one may exist.
	// A page that is not full saw everything that its snapshot shows.
	Full bool
	// Snapshot is what the statement saw.
	Snapshot Snapshot
	// Fence is an xid that was assigned after Snapshot was taken, and so is above that of every
	// transaction that was running then. 0 where Read.Fence did not ask for it.
	Fence uint64
	// Ours are transactions of forwarders, of this one and of others, that were running about then:
	// they insert nothing. Where Read.Fence asked for it, and where they can be known.
	Ours []uint64
}

// Snapshot is what a statement could see, in PostgreSQL's terms (pg_current_snapshot):
// every transaction below Xmin has ended, none at or above Xmax had, and of those between
// them Running had not. Xmax is one above the last xid that had ended: transactions at or
// above it may well have been running. The zero Snapshot belongs to a source whose reads
// always start at the head.
type Snapshot struct {
	Xmin, Xmax uint64
	Running    []uint64 // ascending
}

// Shows reports whether the snapshot shows the transaction's outcome: it had ended when the
// snapshot was taken.
func (s *Snapshot) Shows(xid uint64) bool {
	if xid >= s.Xmax {
		return false
	}
	if xid < s.Xmin {
		return true
	}
	_, running := slices.BinarySearch(s.Running, xid)
	return !running
}
