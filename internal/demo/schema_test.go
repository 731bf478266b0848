package demo

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

func TestClaimSchemaRefusesWhatNoDemoMade(t *testing.T) {
	url := serverstest.Database(t)
	execute(t, url, "CREATE SCHEMA forwarder_demo", "CREATE TABLE forwarder_demo.precious (id int)")
	if _, err := claimSchema(t.Context(), url); !errors.Is(err, errForeign) {
		t.Errorf("got %v, want %v", err, errForeign)
	}
	if query[int](t, url, "SELECT count(*) FROM forwarder_demo.precious") != 0 {
		t.Error("the user's table was touched")
	}
}

func TestClaimSchemaIsExclusive(t *testing.T) {
	url := serverstest.Database(t)
	first, err := claimSchema(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claimSchema(t.Context(), url); !errors.Is(err, errDemoRunning) {
		t.Errorf("second claim: got %v, want %v", err, errDemoRunning)
	}
	if err := first.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if schemaExists(t, url) {
		t.Error("the schema is still there")
	}
	again, err := claimSchema(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if again.replaced {
		t.Error("nothing was left behind and yet replaced")
	}
	if err := again.remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestClaimSchemaReplacesWhatAKilledDemoLeft(t *testing.T) {
	url := serverstest.Database(t)
	killed, err := claimSchema(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, url, `CREATE TABLE forwarder_demo."out""box" (id int)`, "CREATE VIEW public.mine AS SELECT 1 AS one")
	// A killed process loses its connection, and the server its lock.
	if err := killed.lock.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	next, err := claimUntilFree(t, url)
	if err != nil {
		t.Fatal(err)
	}
	if !next.replaced {
		t.Error("the killed demo's schema was not replaced")
	}
	if n := query[int](t, url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'forwarder_demo'"); n != 0 {
		t.Errorf("%d tables of the killed demo are left", n)
	}

	// What the user built on the demo's tables stays, and the error names it.
	execute(t, url, "CREATE TABLE forwarder_demo.outbox (id int)", "CREATE VIEW public.watching AS SELECT * FROM forwarder_demo.outbox")
	err = next.remove(context.WithoutCancel(t.Context()))
	if err == nil || !strings.Contains(err.Error(), "forwarder_demo") {
		t.Errorf("got %v", err)
	}
	if !schemaExists(t, url) || query[int](t, url, "SELECT count(*) FROM public.watching") != 0 {
		t.Error("the user's view lost what it is built on")
	}
}

// claimUntilFree claims as soon as the server has noticed that the holder is gone.
func claimUntilFree(t *testing.T, url string) (*schema, error) {
	t.Helper()
	for {
		s, err := claimSchema(t.Context(), url)
		if !errors.Is(err, errDemoRunning) || t.Context().Err() != nil {
			return s, err
		}
	}
}

func TestShownURLHasNoPassword(t *testing.T) {
	for in, want := range map[string]string{
		"postgres://me:s3cret@db.example:5433/app?sslmode=require": "postgres://me@db.example:5433/app",
		"host=db.example user=me password=s3cret dbname=app":       "postgres://me@db.example:5432/app",
		"postgres://me@[::1]:5433/app":                             "postgres://me@[::1]:5433/app",
		"postgres://me@/app?host=/var/run/postgresql":              "postgres://me@/app?host=%2Fvar%2Frun%2Fpostgresql&port=5432",
	} {
		config, err := pgx.ParseConfig(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := shownURL(config); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}
