package main

import (
	"bytes"
	"context"
	"net/url"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// collection is the outbox that the URL names, in the database that it names.
type collection struct {
	outbox *mongo.Collection
	last   bson.Timestamp
}

func openCollection(address string) (*collection, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(address))
	if err != nil {
		return nil, err
	}
	return &collection{outbox: client.Database(strings.Trim(u.Path, "/")).Collection("outbox")}, nil
}

func (c *collection) close() { _ = c.outbox.Database().Client().Disconnect(context.Background()) }

func (c *collection) read(ctx context.Context, add func(bson.ObjectID, *kgo.Record)) error {
	after := bson.D{{Key: "seq", Value: bson.D{{Key: "$gt", Value: c.last}}}}
	cursor, err := c.outbox.Find(ctx, after, options.Find().SetSort(bson.D{{Key: "seq", Value: 1}}).SetLimit(pageRows).SetBatchSize(pageRows))
	if err != nil {
		return err
	}
	defer cursor.Close(ctx) //nolint:errcheck // the server ends it by itself
	for cursor.Next(ctx) {
		// A struct would be filled by reflection, which is not what a database can do.
		doc := cursor.Current
		id := doc.Lookup("_id").ObjectID()
		t, i := doc.Lookup("seq").Timestamp()
		c.last = bson.Timestamp{T: t, I: i}
		_, payload := doc.Lookup("payload").Binary()
		add(id, &kgo.Record{
			Topic: doc.Lookup("topic").StringValue(), Key: []byte(doc.Lookup("key").StringValue()), Value: bytes.Clone(payload),
			Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id.Hex())}},
		})
	}
	return cursor.Err()
}

func (c *collection) remove(ctx context.Context, ids []bson.ObjectID) error {
	_, err := c.outbox.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
	return err
}
