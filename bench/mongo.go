package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driver "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// collection is an outbox in MongoDB, in a replica set of one member.
type collection struct {
	options
	init   func(ctx context.Context, url string, settings []string) error
	server *servers.Mongo
	member *servers.MongoMember
	client *mongo.Client
	topic  string
	wrote  *oracle.Documents // since the reset; nil before the first write
}

func startCollection(ctx context.Context, o options, init func(context.Context, string, []string) error) (_ *collection, err error) {
	progress("starting MongoDB")
	c := &collection{options: o, init: init}
	if c.server, err = servers.StartMongo(ctx, servers.MongoConfig{}); err != nil {
		return nil, err
	}
	if c.member, err = c.server.Primary(ctx); err == nil {
		c.client, err = mongo.Connect(driver.Client().ApplyURI(c.url()))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connecting to MongoDB: %w", err), c.server.Close())
	}
	return c, nil
}

func (c *collection) name() string { return "MongoDB" }

func (c *collection) close() error {
	return errors.Join(c.client.Disconnect(context.Background()), c.server.Close())
}

func (c *collection) reset(ctx context.Context, topic string, settings []string) error {
	c.topic, c.wrote = topic, nil
	if err := c.client.Database(database).Drop(ctx); err != nil {
		return fmt.Errorf("dropping the database: %w", err)
	}
	return c.init(ctx, c.url(), settings)
}

func (c *collection) url() string { return c.server.URL(database) }

func (c *collection) outbox() *mongo.Collection {
	return c.client.Database(database).Collection("outbox")
}

func (c *collection) size() int { return c.documents }

// preload knows no transactions: each document is a change of its own in the log.
func (c *collection) preload(ctx context.Context, keys int, _ bool) (err error) {
	c.wrote, err = oracle.NewDocuments(oracle.DocumentsConfig{
		Outbox: c.outbox(), Topic: c.topic, Keys: keys, PayloadBytes: c.payload,
	})
	if err != nil {
		return err
	}
	return c.wrote.Preload(ctx, c.documents)
}

func (c *collection) writer(watch *oracle.Stopwatch) (_ writer, err error) {
	c.wrote, err = oracle.NewDocuments(oracle.DocumentsConfig{
		Outbox: c.outbox(), Topic: c.topic, Rate: c.rate, PayloadBytes: c.payload, Stopwatch: watch,
	})
	return c.wrote, err
}

func (c *collection) ledger(context.Context) (oracle.Ledger, error) { return c.wrote.Ledger(), nil }

// empty asks for the collection's count, which costs nothing and is exact while no server
// crashes.
func (c *collection) empty(ctx context.Context) (bool, error) {
	n, err := c.outbox().EstimatedDocumentCount(ctx)
	if err != nil {
		return false, fmt.Errorf("looking at the outbox: %w", err)
	}
	return n == 0, nil
}

func (c *collection) cpu() (time.Duration, error) { return cpuTime(c.member.PID(), false) }

func (c *collection) counters() []string {
	return []string{"oplog bytes", "oplog inserts", "oplog deletes", "oplog updates", "commands"}
}

// count counts what all clients did: the oplog's entries of the outbox, the bytes of all entries,
// and the commands.
func (c *collection) count(ctx context.Context) (func(context.Context) ([]int64, error), error) {
	last := struct {
		TS bson.Timestamp `bson:"ts"`
	}{}
	oplog := c.client.Database("local").Collection("oplog.rs")
	newest := driver.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}})
	if err := oplog.FindOne(ctx, bson.D{}, newest).Decode(&last); err != nil {
		return nil, fmt.Errorf("looking at the oplog: %w", err)
	}
	before, err := c.commands(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) ([]int64, error) {
		after, err := c.commands(ctx)
		if err != nil {
			return nil, err
		}
		cursor, err := oplog.Aggregate(ctx, bson.A{
			bson.D{{Key: "$match", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: last.TS}}}}}},
			bson.D{{Key: "$group", Value: bson.D{
				{Key: "_id", Value: bson.D{{Key: "ns", Value: "$ns"}, {Key: "op", Value: "$op"}}},
				{Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}},
				{Key: "bytes", Value: bson.D{{Key: "$sum", Value: bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}}}},
			}}},
		})
		if err != nil {
			return nil, fmt.Errorf("reading the oplog: %w", err)
		}
		var groups []struct {
			ID       struct{ NS, Op string } `bson:"_id"`
			N, Bytes int64
		}
		if err := cursor.All(ctx, &groups); err != nil {
			return nil, fmt.Errorf("reading the oplog: %w", err)
		}
		var bytes int64
		ops := map[string]int64{}
		for _, g := range groups {
			bytes += g.Bytes
			if g.ID.NS == database+".outbox" {
				ops[g.ID.Op] += g.N
			}
		}
		return []int64{bytes, ops["i"], ops["d"], ops["u"], after - before}, nil
	}, nil
}

// commands is how many the server has got so far.
func (c *collection) commands(ctx context.Context) (n int64, err error) {
	var status struct {
		Opcounters map[string]bson.RawValue `bson:"opcounters"`
	}
	if err := c.client.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status); err != nil {
		return 0, fmt.Errorf("asking for the counters: %w", err)
	}
	for _, name := range []string{"query", "getmore", "insert", "update", "delete", "command"} {
		v := status.Opcounters[name]
		count, _ := v.AsInt64OK()
		n += count
	}
	return n, nil
}
