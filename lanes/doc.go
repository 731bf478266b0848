// Package lanes holds what keeps order and ownership: the lane of a key, the Engine that
// decides what is read, submitted and deleted, and the Forwarder that runs it.
//
// It enforces these rules:
//
//   - a row is deleted only after the broker acknowledged that very record;
//   - a lane has at most one run in flight, so that what failed in it holds back what follows;
//   - what cannot be delivered, or finds no room, is a part behind: left out of reads, and read
//     again later from a floor that is never above its first row;
//   - presence is the state: an event that is in the table and not known here is undelivered.
//
// A Keeper holds leases of lanes, and Rebalance says which of them a replica should take and give.
// A replica submits nothing of a lane after the time until which it trusts its lease.
//
// Engine and Floor are values without goroutine, clock or driver, so that they can be run in
// simulated time. Forwarder owns the goroutines: one loop that feeds the engine, one reader,
// one submitter and a few deleters, which all end with Run.
//
// The package does not talk to a database or a broker: it declares the Source and the Sink
// that it consumes.
package lanes
