// Package custody stands between the forwarder and who decides about its lanes, for an outbox whose
// log one replica reads: the one that has the lanes. It says when the log may be read, and keeps
// lanes from being given up before the log was let go of. It knows no database.
package custody
