package mongo

import (
	"errors"
	"io/fs"
	"net"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	wire "go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/outbox-forwarder/forwarder/source"
)

// The server's error codes that are told apart.
const (
	badValue             = 2
	unauthorized         = 13
	cursorNotFound       = 43
	authenticationFailed = 18
	namespaceExists      = 48
	cappedPositionLost   = 136
	shutdownInProgress   = 91
	writeConflict        = 112
	steppedDown          = 189
	cursorKilled         = 237
	snapshotTooOld       = 239
	snapshotUnavailable  = 246
	invalidToken         = 260
	fatalStreamError     = 280
	historyLost          = 286
	notPrimary           = 10107
	objectTooLarge       = 10334
	interruptedShutdown  = 11600
	interruptedStepDown  = 11602
	notPrimaryNoFallback = 13435
	notPrimaryOrSecond   = 13436
	hostedLoginFailed    = 8000
)

// code returns the server's code for an error, or 0.
func code(err error) int32 {
	var command driver.CommandError
	if errors.As(err, &command) {
		return command.Code
	}
	var inner wire.Error // of a connection that could not be made
	if errors.As(err, &inner) {
		return inner.Code
	}
	var server driver.ServerError
	if errors.As(err, &server) {
		if codes := server.ErrorCodes(); len(codes) > 0 {
			return int32(codes[0])
		}
	}
	return 0
}

// asSetup turns a connection error that no retry mends into a source.SetupError.
func asSetup(err error) error {
	switch code(err) {
	case authenticationFailed, hostedLoginFailed:
		return &source.SetupError{Problems: []string{"MongoDB refuses the login: check the user, the password and authSource in source.mongo.url"}}
	}
	return err
}

// retriable reports whether a call may be sent again at once: it met another operation, an
// old snapshot or a change of primary.
func retriable(err error) bool {
	switch code(err) {
	case writeConflict, snapshotTooOld, snapshotUnavailable, notPrimary, notPrimaryNoFallback, notPrimaryOrSecond,
		steppedDown, shutdownInProgress, interruptedShutdown, interruptedStepDown:
		return true
	}
	return driver.IsNetworkError(err) && !driver.IsTimeout(err)
}

// urlProblem says what is wrong with a connection string without showing any of it: what the
// parser complains of may be a piece of the password. A file that it names is shown.
func urlProblem(err error) string {
	var file *fs.PathError
	if errors.As(err, &file) {
		return file.Error()
	}
	return "not a MongoDB connection string: write mongodb://user:password@host:27017/database?replicaSet=name, with % and what follows for special characters, and check its options"
}

// unresolved reports whether the servers of a mongodb+srv:// URL could not be looked up.
func unresolved(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns)
}

// errBehind says that a snapshot does not show what was seen before: it comes from a
// new primary that does not know yet how far the majority is.
var errBehind = errors.New("the snapshot is older than what was seen before")
