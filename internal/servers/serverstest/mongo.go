package serverstest

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// MongoDatabase returns a client of the shared MongoDB for the test, and the name of a database
// that no other test has. It is dropped when the test ends.
func MongoDatabase(t testing.TB) (client *mongo.Client, name string) {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(Mongo(t)))
	if err != nil {
		t.Fatalf("connecting to the shared MongoDB: %v", err)
	}
	name = uniqueName("test_")
	t.Cleanup(func() {
		// Not the test's own context, which has ended when its clean-up runs.
		ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
		defer cancel()
		if err := client.Database(name).Drop(ctx); err != nil {
			t.Errorf("dropping the test's database: %v", err)
		}
		_ = client.Disconnect(ctx)
	})
	return client, name
}
