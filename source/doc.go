// Package source holds the values that cross between the parts of the forwarder:
// what a database hands out (Event, Page, Snapshot), what is asked of it (Read),
// and what became of an event at the broker (Outcome). It imports nothing of ours,
// so that no part depends on another's driver. The sub-packages are the databases.
package source
