package e2e

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

var (
	mongoPolled   = mode{name: "MongoDB poll", mongo: true}
	mongoStreamed = mode{name: "MongoDB stream", mongo: true, settings: []string{"FORWARDER_SOURCE_MONGO_MODE=stream"}}

	mongoDurable = mode{name: "MongoDB durable checkpoint", mongo: true, exclusive: true, settings: append(slices.Clone(mongoStreamed.settings), "FORWARDER_SOURCE_MONGO_CHECKPOINT=durable")}

	mongoModes = []mode{mongoPolled, mongoStreamed, mongoDurable}
)

// sharedMongo returns the URL of a database of the test's own on the shared MongoDB.
func sharedMongo(t *testing.T) string {
	t.Helper()
	_, name := serverstest.MongoDatabase(t)
	u, err := url.Parse(serverstest.Mongo(t))
	if err != nil {
		t.Fatal("the shared MongoDB's address is not a URL")
	}
	u.Path = "/" + name
	query := u.Query()
	query.Set("appName", forwarderName(name))
	u.RawQuery = query.Encode()
	return u.String()
}

// collection is the outbox and its lease collections, as the test sees them.
type collection struct {
	t      *testing.T
	db     *mongo.Database
	outbox *mongo.Collection
}

func openCollection(t *testing.T, at string) *collection {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal("the MongoDB's address is not a URL")
	}
	client, err := mongo.Connect(options.Client().ApplyURI(at).SetAppName(oracle.ApplicationName).SetReadConcern(readconcern.Majority()).
		SetServerSelectionTimeout(3 * time.Second).SetConnectTimeout(3 * time.Second).SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	db := client.Database(u.Path[1:])
	return &collection{t: t, db: db, outbox: db.Collection("outbox")}
}

// left counts the documents in the outbox; -1 while there is no primary to ask.
func (c *collection) left() int64 {
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	n, err := c.outbox.CountDocuments(ctx, bson.D{})
	if err != nil {
		return -1
	}
	return n
}

// put inserts documents, each as it is and with a topic and seq.
func (c *collection) put(topic string, docs ...bson.D) {
	c.t.Helper()
	for _, d := range docs {
		d = append(d, bson.E{Key: "topic", Value: topic}, bson.E{Key: "seq", Value: bson.Timestamp{}})
		if _, err := c.outbox.InsertOne(c.t.Context(), d); err != nil {
			c.t.Fatal(err)
		}
	}
}

// fleet reads the lease collections; nil while there is no primary to ask.
func (c *collection) fleet(ctx context.Context) *fleet {
	var members []struct {
		ID     string  `bson:"_id"`
		Report *string `bson:"report"`
	}
	var lanes []struct {
		Owner *string `bson:"owner"`
	}
	for name, into := range map[string]any{"outbox_members": &members, "outbox_lanes": &lanes} {
		cursor, err := c.db.Collection(name).Find(ctx, bson.D{})
		if err != nil || cursor.All(ctx, into) != nil {
			return nil
		}
	}
	f := &fleet{total: len(lanes), lanes: map[string]int{}, admin: map[string]string{}}
	for _, m := range members {
		var report struct{ Admin string }
		if m.Report != nil && json.Unmarshal([]byte(*m.Report), &report) != nil {
			return nil
		}
		f.lanes[m.ID], f.admin[m.ID] = 0, report.Admin
	}
	for _, l := range lanes {
		if l.Owner == nil {
			continue
		}
		if _, member := f.lanes[*l.Owner]; member {
			f.lanes[*l.Owner]++
		}
	}
	return f
}

// forwarderGone returns when the server has closed the connections of a forwarder that was
// killed, so that none of its deletes is still to come.
func (c *collection) forwarderGone() {
	c.t.Helper()
	// The connections that were made for this database, whatever they do at the moment.
	running := mongo.Pipeline{
		{{Key: "$currentOp", Value: bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true}}}},
		{{Key: "$match", Value: bson.D{{Key: "appName", Value: forwarderName(c.db.Name())}}}},
	}
	eventually(c.t, 10*time.Second, "the killed forwarder's connections are closed", func() bool {
		cursor, err := c.db.Client().Database("admin", options.Database().SetReadConcern(readconcern.Local())).Aggregate(c.t.Context(), running)
		if err != nil {
			c.t.Fatal(err)
		}
		var open []bson.Raw
		if err := cursor.All(c.t.Context(), &open); err != nil {
			c.t.Fatal(err)
		}
		return len(open) == 0
	})
}

// forwarderName is what forwarders on a database call themselves at the server.
func forwarderName(database string) string { return "forwarder-" + database }
