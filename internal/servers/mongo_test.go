package servers

import (
	"context"
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

func startMongo(t *testing.T, ctx context.Context, cfg MongoConfig) *Mongo {
	t.Helper()
	m, err := StartMongo(ctx, cfg)
	check(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		for _, member := range m.Members() {
			if _, err := os.Stat(member.folder.path); !os.IsNotExist(err) {
				t.Errorf("the server's folder is still there after Close: %v", err)
			}
		}
	})
	return m
}

func mongoClient(t *testing.T, url string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(url).SetWriteConcern(writeconcern.Majority()))
	check(t, err)
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return client
}

func TestMongoKeepsItsDataOverFailovers(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	m := startMongo(t, ctx, MongoConfig{Members: 3})
	things := mongoClient(t, m.URL("app")).Database("app").Collection("things")
	insert := func(id int) {
		t.Helper()
		_, err := things.InsertOne(ctx, bson.D{{Key: "_id", Value: id}})
		check(t, err)
	}
	insert(1)
	first, err := m.Primary(ctx)
	check(t, err)
	check(t, m.StepDown(ctx))
	second, err := m.Primary(ctx)
	check(t, err)
	if second == first {
		t.Error("the primary that stepped down is the primary")
	}
	insert(2)
	check(t, second.Kill())
	if second.PID() != 0 {
		t.Errorf("a killed server has process id %d", second.PID())
	}
	insert(3)
	check(t, second.Start(ctx))
	third, err := m.Primary(ctx)
	check(t, err)
	check(t, third.Pause())
	check(t, third.Resume())
	insert(4)
	n, err := things.CountDocuments(ctx, bson.D{})
	check(t, err)
	if n != 4 {
		t.Errorf("%d documents are left of 4", n)
	}
}

func TestMongoAsksForALogin(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	m := startMongo(t, ctx, MongoConfig{Auth: true})
	for url, may := range map[string]bool{m.URL("app"): true, m.URLAs("", "app"): false} {
		_, err := mongoClient(t, url).Database("app").Collection("things").InsertOne(ctx, bson.D{})
		if (err == nil) != may {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestMongoWithoutAReplicaSet(t *testing.T) {
	ctx := within(t, 10*time.Minute)
	m := startMongo(t, ctx, MongoConfig{Standalone: true})
	_, err := mongoClient(t, m.URL("app")).Database("app").Collection("things").InsertOne(ctx, bson.D{})
	check(t, err)
}
