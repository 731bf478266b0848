package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// collection is a world whose outbox is a collection.
type collection struct {
	*world
	client *mongo.Client
	outbox *mongo.Collection
	keys   int
	count  []int // committed events by key
}

func newCollection(t *testing.T, m mode) *collection {
	t.Helper()
	client, name := serverstest.MongoDatabase(t)
	u, err := url.Parse(serverstest.Mongo(t))
	if err != nil {
		t.Fatal("the shared MongoDB's address is not a URL")
	}
	u.Path = "/" + name
	w := &world{t: t, mode: m, url: u.String(), broker: serverstest.Kafka(t), topic: serverstest.Topic(t, 12, nil)}
	if err := oracle.AwaitTopic(t.Context(), []string{w.broker}, w.topic); err != nil {
		t.Fatal(err)
	}
	w.initialise()
	const keys = 52
	return &collection{world: w, client: client, outbox: client.Database(name).Collection("outbox"), keys: keys, count: make([]int, keys)}
}

// write commits events in transactions of one to three, numbered by key, with a few writers,
// each of which has keys of its own. It returns when all are written.
func (c *collection) write(transactions int) {
	const writers = 4
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for n := range transactions / writers {
				key := n%(c.keys/writers)*writers + i
				if err := c.transaction(key, 1+n%3); err != nil {
					c.t.Errorf("writing: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func (c *collection) transaction(key, events int) error {
	ctx := context.Background()
	session, err := c.client.StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		var docs []any
		for i := range events {
			docs = append(docs, bson.D{{Key: "topic", Value: c.topic}, {Key: "key", Value: fmt.Sprint("k", key)},
				{Key: "payload", Value: strconv.Itoa(c.count[key] + 1 + i)}, {Key: "seq", Value: bson.Timestamp{}}})
		}
		return c.outbox.InsertMany(ctx, docs)
	}, options.Transaction().SetWriteConcern(writeconcern.Majority()))
	if err == nil {
		c.count[key] += events
	}
	return err
}

func (c *collection) left() int64 {
	c.t.Helper()
	n, err := c.outbox.CountDocuments(c.t.Context(), bson.D{})
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// judge waits for an empty outbox and reads the topic: nothing lost, each key's events first
// seen in their order. It returns the number of repeats.
func (c *collection) judge() (repeats int) {
	c.t.Helper()
	eventually(c.t, drainLimit, "the outbox is empty", func() bool { return c.left() == 0 })
	total := 0
	for _, n := range c.count {
		total += n
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.broker), kgo.ConsumeTopics(c.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	newest, ids, seen := map[string]int{}, map[string]bool{}, 0
	for seen < total {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			c.t.Fatalf("%d of %d events arrived: %v", seen, total, err)
		}
		for _, r := range fetches.Records() {
			key := string(r.Key)
			n, err := strconv.Atoi(string(r.Value))
			switch {
			case err != nil:
				c.t.Fatalf("the value is %q", r.Value)
			case n == newest[key]+1:
				newest[key] = n
				seen++
				ids[header(c.t, r, "id")] = true
			case n <= newest[key]:
				repeats++
			default:
				c.t.Fatalf("%s: %d after %d", key, n, newest[key])
			}
		}
	}
	if len(ids) != total {
		c.t.Errorf("%d events have %d ids", total, len(ids))
	}
	c.t.Logf("%d events, %d repeats", total, repeats)
	return repeats
}

var (
	mongoPolled   = mode{name: "poll"}
	mongoStreamed = mode{name: "stream", settings: []string{"FORWARDER_SOURCE_MONGO_MODE=stream"}}
	mongoDurable  = mode{name: "durable checkpoint", settings: append(slices.Clone(mongoStreamed.settings), "FORWARDER_SOURCE_MONGO_CHECKPOINT=durable"), exclusive: true}
)

// TestMongo runs the forwarder on a collection: in order, stopped under load, and killed.
func TestMongo(t *testing.T) { inModes(t, mongoRuns, mongoPolled, mongoStreamed, mongoDurable) }

func mongoRuns(t *testing.T, m mode) {
	c := newCollection(t, m)
	c.write(200) // a backlog
	for range 2 {
		p := c.start()
		p.awaitReady()
		c.write(400)
		p.stop()
	}
	p := c.start()
	c.write(200)
	if repeats := c.judge(); repeats != 0 {
		t.Errorf("%d repeats after stops in order", repeats)
	}
	p.stop()
	p = c.start(shortLease)
	c.write(400)
	p.kill()
	c.write(100)
	p = c.start(shortLease)
	p.awaitReady()
	c.judge()
	p.stop()
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
	if _, err := c.outbox.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "topic", Value: "no such/topic"}, {Key: "key", Value: "k"}, {Key: "payload", Value: "x"}, {Key: "seq", Value: bson.Timestamp{}}}); err != nil {
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
	client, name := serverstest.MongoDatabase(t)
	before, err := client.ListDatabaseNames(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(serverstest.Mongo(t))
	if err != nil {
		t.Fatal("the shared MongoDB's address is not a URL")
	}
	u.Path = "/" + name
	for _, m := range []string{"poll", "stream"} {
		stdout, stderr, code := forwarder(t, nil, "demo", "--source-url", u.String(), "--mode", m, "--rate", "300", "--duration", "3s")
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
