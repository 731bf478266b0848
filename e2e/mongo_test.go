package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// newCollection is a stage whose outbox is a collection on the shared server.
func newCollection(t *testing.T, m mode) *stage {
	t.Helper()
	url := sharedMongo(t)
	s := &stage{world: &world{t: t, mode: m, url: url, broker: serverstest.Kafka(t), collection: openCollection(t, url)}}
	s.openKafka()
	s.initialise()
	return s
}

// TestMongoCommands asks the commands about a collection.
func TestMongoCommands(t *testing.T) {
	c := newCollection(t, mongoPolled)
	at := []string{"--source-url", c.url}
	ask := func(code int, args ...string) string {
		t.Helper()
		stdout, stderr, got := forwarder(t, nil, args...)
		if got != code {
			t.Fatalf("forwarder %s: exit code %d: %s%s", strings.Join(args, " "), got, stdout, stderr)
		}
		return stdout + stderr
	}
	ask(0, append([]string{"init"}, at...)...)
	if text := ask(0, append([]string{"init", "--print"}, at...)...); !strings.Contains(text, "createIndex") || strings.Contains(text, "CREATE TABLE") {
		t.Errorf("init --print writes %s", text)
	}
	if text := ask(0, append([]string{"check", "--brokers", c.broker}, at...)...); text != "ok\n" {
		t.Errorf("check says %q", text)
	}
	if text := ask(2, append([]string{"slots"}, at...)...); !strings.Contains(text, "no replication slots") {
		t.Errorf("slots says %q", text)
	}
	if text := ask(2, "check", "--brokers", c.broker, "--source-url", strings.Replace(c.url, "/test_", "/none_", 1)); !strings.Contains(text, "forwarder init") {
		t.Errorf("check of a database without an outbox says %q", text)
	}

	p := c.start()
	p.awaitReady()
	id := bson.NewObjectID()
	if _, err := c.collection.outbox.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "topic", Value: "no such/topic"}, {Key: "key", Value: "k"}, {Key: "payload", Value: "x"}, {Key: "seq", Value: bson.Timestamp{}}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, drainLimit, "the document waits", func() bool { return strings.Contains(p.get("/parked"), `"`+id.Hex()+`"`) })
	if text := ask(0, "parked", "--admin-listen", p.admin); !strings.Contains(text, id.Hex()) {
		t.Errorf("parked does not name the document:\n%s", text)
	}
	var status struct {
		Table   string
		Lanes   int
		Backlog struct{ Rows int }
	}
	eventually(t, drainLimit, "the status shows the document", func() bool {
		text, _, _ := forwarder(t, nil, append([]string{"status", "--json"}, at...)...)
		return json.Unmarshal([]byte(text), &status) == nil && status.Lanes == lanesOf && status.Backlog.Rows == 1
	})
	if rows := strings.Split(ask(0, append([]string{"lanes"}, at...)...), "\n"); !slices.ContainsFunc(rows, func(s string) bool { return strings.HasPrefix(s, "0-255") }) {
		t.Errorf("lanes writes %q", rows)
	}
	p.stop()
}

// TestMongoDemo shows the way from a collection, in a database of the demo's own.
func TestMongoDemo(t *testing.T) {
	at := sharedMongo(t)
	client := openCollection(t, at).db.Client()
	before, err := client.ListDatabaseNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"poll", "stream"} {
		stdout, stderr, code := forwarder(t, nil, "demo", "--source-url", at, "--mode", m, "--rate", "300", "--duration", "3s")
		if code != 0 || !strings.Contains(stdout, "MongoDB") || !strings.Contains(stdout, "mongosh") || strings.Contains(stdout, "psql") {
			t.Errorf("demo in mode %s: exit code %d:\n%s%s", m, code, stdout, stderr)
		}
	}
	after, err := client.ListDatabaseNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	for _, database := range after {
		if strings.HasPrefix(database, "forwarder_demo") && !slices.Contains(before, database) {
			t.Errorf("the demo has left the database %s", database)
		}
	}
}
