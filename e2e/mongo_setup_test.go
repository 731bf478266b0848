package e2e

import (
	"net/url"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// startOn runs `forwarder run` on the URL to its end, and demands that it ends with the code of a
// configuration problem and says each of the words, without the password.
func startOn(t *testing.T, at string, settings []string, words ...string) {
	t.Helper()
	_, stderr, code := forwarder(t, append(settings, "FORWARDER_ADMIN_LISTEN=none"), "run", "--source-url", at, "--brokers", serverstest.Kafka(t))
	if code != 2 {
		t.Errorf("exit code %d, want 2:\n%s", code, stderr)
	}
	for _, w := range words {
		if !strings.Contains(stderr, w) {
			t.Errorf("the reason does not say %q:\n%s", w, stderr)
		}
	}
	if strings.Contains(stderr, "s3cret") {
		t.Errorf("the password is in the output:\n%s", stderr)
	}
}

// TestMongoStandalone starts on a server that is no replica set.
func TestMongoStandalone(t *testing.T) {
	t.Parallel()
	server, err := servers.StartMongo(t.Context(), servers.MongoConfig{Standalone: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, m := range mongoModes {
		startOn(t, server.URL("app"), m.settings, "no member of a replica set", "--replSet")
	}
	if _, stderr, code := forwarder(t, nil, "init", "--source-url", server.URL("app")); code != 2 || !strings.Contains(stderr, "--replSet") {
		t.Errorf("init: exit code %d: %s", code, stderr)
	}
}

// TestC69MongoRights starts as users who lack a right each, and as one who has all that the
// documentation asks for and no more, who forwards.
func TestC69MongoRights(t *testing.T) {
	t.Parallel()
	server, err := servers.StartMongo(t.Context(), servers.MongoConfig{Auth: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &stage{world: &world{t: t, mode: mongoDurable, url: server.URL("app"), broker: serverstest.Kafka(t), collection: openCollection(t, server.URL("app"))}}
	s.openKafka()
	s.initialise()
	admin := s.collection.db.Client().Database("admin")
	run := func(command bson.D) {
		t.Helper()
		if err := admin.RunCommand(t.Context(), command).Err(); err != nil {
			t.Fatal(err)
		}
	}
	all := map[string][]string{
		"outbox":            {"find", "remove", "changeStream", "listIndexes"},
		"outbox_members":    {"find", "insert", "update", "remove"},
		"outbox_lanes":      {"find", "update"},
		"outbox_checkpoint": {"find", "insert", "update"},
	}
	user := func(name, without, action string) string {
		t.Helper()
		var privileges bson.A
		for collection, actions := range all {
			var list bson.A
			for _, a := range actions {
				if collection != without || a != action {
					list = append(list, a)
				}
			}
			privileges = append(privileges, bson.D{
				{Key: "resource", Value: bson.D{{Key: "db", Value: "app"}, {Key: "collection", Value: collection}}}, {Key: "actions", Value: list}})
		}
		run(bson.D{{Key: "createRole", Value: name}, {Key: "privileges", Value: privileges}, {Key: "roles", Value: bson.A{}}})
		run(bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: "s3cret"}, {Key: "roles", Value: bson.A{name}}})
		return server.URLAs(name+":s3cret", "app")
	}
	for _, c := range []struct{ name, collection, action string }{
		{"nofind", "outbox", "find"}, {"noremove", "outbox", "remove"}, {"nostream", "outbox", "changeStream"},
		{"nomember", "outbox_members", "insert"}, {"nolane", "outbox_lanes", "update"}, {"noposition", "outbox_checkpoint", "update"},
	} {
		startOn(t, user(c.name, c.collection, c.action), s.mode.settings, "user "+c.name, c.action, "app."+c.collection, "grant")
	}
	startOn(t, strings.Replace(server.URLAs("nofind:s3cret", "app"), "s3cret", "wr0ng", 1), s.mode.settings, "refuses the login")
	startOn(t, strings.Replace(server.URLAs("nofind:s3cret", "app"), "nofind:s3cret@", "", 1), s.mode.settings, "asks for a login")

	s.url = user("relay", "", "")
	topic := s.makeTopic("", 1, nil)
	s.collection.put(topic, bson.D{{Key: "key", Value: "k"}, {Key: "payload", Value: "x"}})
	p := s.start(inJSON)
	s.arrive(topic, 1, drainLimit)
	s.awaitEmpty()
	p.stop()
	p.quiet()
}

// TestMongoWrongPlace starts where there is no outbox, on URLs that lead elsewhere, and on a
// collection that is none.
func TestMongoWrongPlace(t *testing.T) {
	t.Parallel()
	at := sharedMongo(t)
	startOn(t, at, mongoDurable.settings, "there is no collection", ".outbox:", ".outbox_members", ".outbox_lanes", ".outbox_checkpoint", "forwarder init")
	c := openCollection(t, at)
	if _, stderr, code := forwarder(t, nil, "init", "--source-url", at); code != 0 {
		t.Fatalf("init: exit code %d: %s", code, stderr)
	}
	startOn(t, at, mongoDurable.settings, ".outbox_checkpoint", "forwarder init")
	startOn(t, at, []string{"FORWARDER_SOURCE_MONGO_COLLECTION=order"}, ".order:", "source.mongo.collection")
	if err := c.outbox.Indexes().DropAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	startOn(t, at, nil, "no index on seq", "createIndex")
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("replicaSet", "other")
	u.RawQuery = query.Encode()
	startOn(t, u.String(), nil, "replicaSet=other")
	u.Path = ""
	startOn(t, strings.Replace(at, u.Host+"/", u.Host+"/?x=", 1), nil, "source.mongo.url")
	startOn(t, "mongodb://app:s3cret@"+u.Host+"/", nil, "names no database")
	startOn(t, "mongodb://app:s3cret@"+u.Host+"/app?replicaSet", nil, "source.mongo.url")
}
