package serverstest

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// requestLimit bounds one request to a running server.
const requestLimit = 30 * time.Second

// Database makes an empty database for the test and returns its connection URL, as
// superuser. It is dropped when the test ends, with whoever is still connected to it.
func Database(t testing.TB) string {
	t.Helper()
	admin := Postgres(t)
	name := uniqueName("test_")
	execute(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() { execute(t, admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatalf("reading %s: it is not a URL", PostgresEnv)
	}
	u.Path = "/" + name
	return u.String()
}

func execute(t testing.TB, target, statement string) {
	t.Helper()
	// Not the test's own context, which has ended when its clean-up runs.
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, target)
	if err != nil {
		t.Fatalf("connecting to the shared PostgreSQL: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatalf("executing %q: %v", statement, err)
	}
}

// uniqueName returns a name that no other test, of this process or another, has.
func uniqueName(prefix string) string { return prefix + strings.ToLower(rand.Text()) }
