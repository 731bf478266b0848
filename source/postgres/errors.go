package postgres

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-forwarder/forwarder/source"
)

// The SQLSTATEs that are told apart.
const (
	featureNotSupported  = "0A000" // "cached plan must not change result type"
	undefinedStatement   = "26000"
	undefinedColumn      = "42703"
	undefinedFunction    = "42883"
	datatypeMismatch     = "42804"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	invalidPassword      = "28P01"
	invalidAuthorization = "28000"
	undefinedDatabase    = "3D000"
	undefinedTable       = "42P01"
	insufficientRight    = "42501"
	protocolViolation    = "08P01"
	syntaxError          = "42601"
	undefinedObject      = "42704"
	readOnlyParameter    = "55P02"
	objectInUse          = "55006"
	notInState           = "55000" // "can no longer get changes from replication slot"
	limitExceeded        = "53400" // "all replication slots are in use"
	tooManyConnections   = "53300"
	cannotConnectNow     = "57P03" // "the database system is shutting down"
)

// sqlState returns the server's code for an error, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// asSetup turns a connection error that no retry mends into a SetupError.
func asSetup(err error) error {
	switch sqlState(err) {
	case invalidPassword, invalidAuthorization:
		return &source.SetupError{Problems: []string{fmt.Sprintf("PostgreSQL refuses the login: %v: check the user and the password in source.postgres.url", plain(err))}}
	case undefinedDatabase:
		return &source.SetupError{Problems: []string{fmt.Sprintf("%v: check the database name in source.postgres.url", plain(err))}}
	}
	return err
}

// plain shortens a server error to its message and code: connection errors carry the
// connection string's parts with them.
func plain(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	}
	return err.Error()
}

// retriable reports whether a statement was rolled back for the sake of another one, so that
// it may be sent again at once.
func retriable(err error) bool {
	code := sqlState(err)
	return code == serializationFailure || code == deadlockDetected
}

// errTableChanged says that a statement was prepared for columns that have another type by now.
var errTableChanged = errors.New("the types of the columns have changed")

// stale reports whether an error may come from a table that changed since its statement was
// prepared.
func stale(err error) bool {
	if errors.Is(err, errTableChanged) {
		return true
	}
	switch sqlState(err) {
	case featureNotSupported, undefinedStatement, undefinedColumn, undefinedFunction, datatypeMismatch:
		return true
	}
	return false
}

// urlProblem says what is wrong with a connection string without showing any of it: what the
// parser complains of may be a piece of the password. A file that it names is shown.
func urlProblem(err error) string {
	var file *fs.PathError
	if errors.As(err, &file) {
		return file.Error()
	}
	return "not a PostgreSQL connection string: write postgres://user:password@host:5432/database, with % and what follows for special characters, and check the values of its parameters"
}
