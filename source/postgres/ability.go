package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/source"
)

// checkStream returns a SetupError with everything that keeps an outbox that can be polled from
// being streamed. What may pass is no problem: the slots of others, a server that does not
// answer.
func checkStream(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is left to be lost
	var problems []string
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }

	var version, slots, senders int
	var level, persistence string
	var standby bool
	err = conn.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('wal_level'),
		       current_setting('max_replication_slots')::int, current_setting('max_wal_senders')::int,
		       coalesce((SELECT c.relpersistence::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		                 WHERE n.nspname = $1 AND c.relname = $2), '')`, cfg.Schema, cfg.Table,
	).Scan(&version, &standby, &level, &slots, &senders, &persistence)
	if err != nil {
		return fmt.Errorf("looking at the server: %w", err)
	}
	if version < minVersion || standby {
		return nil // the table's own check says it
	}
	if level != "logical" {
		problem("the server's wal_level is %s: set wal_level = logical in postgresql.conf and restart it, or use source.postgres.mode: poll", level)
	}
	if slots == 0 {
		problem("the server's max_replication_slots is 0: set it to 10 or more and restart the server, or use source.postgres.mode: poll")
	}
	if senders == 0 {
		problem("the server's max_wal_senders is 0: set it to 10 or more and restart the server, or use source.postgres.mode: poll")
	} else if found, err := replicationProblem(ctx, conn, cfg); err != nil {
		return err
	} else if found != "" {
		problem("%s", found)
	}
	if persistence == "u" {
		problem("table %s is unlogged, and what is not logged cannot be streamed: ALTER TABLE %s SET LOGGED, or use source.postgres.mode: poll", cfg.table(), cfg.table().sql())
	} else if persistence != "" {
		found, err := publicationProblems(ctx, conn, cfg)
		if err != nil {
			return err
		}
		problems = append(problems, found...)
	}
	if len(problems) > 0 {
		return &source.SetupError{Problems: problems}
	}
	return nil
}

// replicationProblem tries to connect for replication, and says why that can never work.
func replicationProblem(ctx context.Context, conn *pgx.Conn, cfg Config) (string, error) {
	var user, system, database string
	err := conn.QueryRow(ctx, `SELECT current_user, system_identifier::text, current_database() FROM pg_control_system()`).Scan(&user, &system, &database)
	if err != nil {
		return "", fmt.Errorf("looking at the server: %w", err)
	}
	repl, err := dialReplication(ctx, cfg)
	if err != nil {
		return refusal(err, user), nil
	}
	defer repl.close()
	there, err := pglogrepl.IdentifySystem(ctx, repl.conn)
	switch {
	case err != nil:
		return refusal(err, user), nil
	case there.SystemID != system || there.DBName != database:
		return "source.postgres.replication_url leads to another database than source.postgres.url: let both name the same one, this one without the pooler", nil
	}
	return "", nil
}

// direct is what mends replication through a pooler.
const direct = "replication needs a direct connection: set source.postgres.replication_url to the server's own address, without a pooler"

// refusal says what keeps the server, or who answers for it, from replicating; nothing for an
// error that may pass.
func refusal(err error, user string) string {
	var setup *source.SetupError
	if errors.As(err, &setup) {
		return setup.Error()
	}
	switch code := sqlState(err); code {
	case insufficientRight:
		return fmt.Sprintf("role %s may not replicate: ALTER ROLE %s REPLICATION (as a superuser; on a managed server grant its replication role)",
			user, pgx.Identifier{user}.Sanitize())
	case protocolViolation, syntaxError, featureNotSupported, undefinedObject, readOnlyParameter:
		return fmt.Sprintf("whoever answers does not know replication (%s): %s", plain(err), direct)
	case invalidPassword, invalidAuthorization, undefinedDatabase:
		return fmt.Sprintf("PostgreSQL refuses the login for replication: %s: check the user, the password and the database, and that pg_hba.conf lets them in", plain(err))
	}
	return ""
}
