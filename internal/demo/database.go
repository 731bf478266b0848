package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// database is where the demo's outbox is.
type database struct {
	kind   string // table or collection
	url    string
	tables oracle.Tables
	detail string
	// look is a command for people that counts the outbox.
	look  string
	close func(context.Context) error
}

// startDatabase starts a PostgreSQL of the demo's own.
func startDatabase(ctx context.Context, logger *slog.Logger) (*database, error) {
	server, err := servers.StartPostgres(ctx, servers.PostgresConfig{
		// Small, since it shares somebody's laptop with everything else.
		Settings: map[string]string{"shared_buffers": "64MB", "max_wal_size": "256MB", "max_connections": "50"},
		Log:      logger,
	})
	if err != nil {
		return nil, err
	}
	d := &database{
		kind: "table", url: server.URL("postgres"),
		tables: oracle.Tables{Outbox: "public.outbox", Ledger: "public.demo_ledger"},
		close:  func(context.Context) error { return server.Close() },
	}
	if err := d.describe(ctx, "a real one, in a temporary folder"); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return d, nil
}

// useDatabase makes the demo's schema in a database of the user's.
func useDatabase(ctx context.Context, url string) (*database, error) {
	s, err := claimSchema(ctx, url)
	if err != nil {
		return nil, err
	}
	d := &database{
		kind: "table", url: url,
		tables: oracle.Tables{Outbox: schemaName + ".outbox", Ledger: schemaName + ".ledger"},
		close:  s.remove,
	}
	note := "schema " + schemaName + " made for this demo, removed at its end"
	if s.replaced {
		note = "schema " + schemaName + " of a demo that was killed made anew, removed at this one's end"
	}
	if err := d.describe(ctx, note); err != nil {
		return nil, errors.Join(err, s.remove(context.WithoutCancel(ctx)))
	}
	return d, nil
}

// describe fills in what the screen says.
func (d *database) describe(ctx context.Context, note string) (err error) {
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	shown := shownURL(conn.Config())
	d.look = fmt.Sprintf("psql '%s' -c 'SELECT count(*) FROM %s'", shown, d.tables.Outbox)
	// Distributors append their own number to the version.
	version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	d.detail = fmt.Sprintf("%s  version %s (%s)", shown, version, note)
	return nil
}

// shownURL is the URL by which somebody reaches the same database, without the password.
func shownURL(c *pgx.ConnConfig) string {
	u := url.URL{Scheme: "postgres", User: url.User(c.User), Path: "/" + c.Database}
	port := strconv.Itoa(int(c.Port))
	if len(c.Host) > 0 && c.Host[0] == '/' {
		// A folder of Unix sockets cannot stand where a host name does.
		u.RawQuery = url.Values{"host": {c.Host}, "port": {port}}.Encode()
		return u.String()
	}
	u.Host = net.JoinHostPort(c.Host, port)
	return u.String()
}
