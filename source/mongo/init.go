package mongo

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/source"
)

// Statements returns what Init does, in the language of mongosh: it creates the outbox with its
// index and the collections that the replicas share, where they do not exist, and never drops
// or alters anything.
func Statements(cfg Config) ([]string, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var list []string
	for _, name := range cfg.own() {
		list = append(list, fmt.Sprintf("%[1]s.getCollectionNames().includes(%[2]q) || %[1]s.createCollection(%[2]q)", cfg.shellDatabase(), name))
	}
	shares := cfg.shellCollection(cfg.Collection + lanesSuffix)
	return append(list,
		indexStatement(cfg),
		// Who owns which lane. The number of documents is the lane count of this outbox.
		fmt.Sprintf("%[1]s.countDocuments({}) || %[1]s.insertMany([...Array(%[2]d).keys()].map(lane => ({_id: lane, owner: null, epoch: Long(0), since: new Date()})))", shares, cfg.Lanes),
	), nil
}

// own names the collections that Init creates.
func (c Config) own() []string {
	list := []string{c.Collection, c.Collection + membersSuffix, c.Collection + lanesSuffix}
	if c.Durable {
		list = append(list, c.Collection+checkpointSuffix)
	}
	return list
}

func (c Config) shellDatabase() string { return fmt.Sprintf("db.getSiblingDB(%q)", c.Database) }

func (c Config) shellCollection(name string) string {
	return fmt.Sprintf("%s.getCollection(%q)", c.shellDatabase(), name)
}

func indexStatement(cfg Config) string {
	var keys []string
	for _, k := range cfg.indexKeys() {
		keys = append(keys, fmt.Sprintf("%q: 1", k.Key))
	}
	return fmt.Sprintf("%s.createIndex({%s})", cfg.shellCollection(cfg.Collection), strings.Join(keys, ", "))
}

// Init creates what is missing, and checks the result. It is idempotent.
func Init(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	client, err := newClient(cfg, leaseConns)
	if err != nil {
		return err
	}
	defer disconnect(client)
	if err := greet(ctx, client, cfg); err != nil {
		return err
	}
	if err := create(ctx, client, cfg); err != nil {
		if code(err) == unauthorized {
			return &source.SetupError{Problems: []string{fmt.Sprintf("the collections cannot be created: %v: let a user with the role dbAdmin or readWrite on %s run the statements of `forwarder init --print`", err, cfg.Database)}}
		}
		return fmt.Errorf("creating the collections: %w", asSetup(err))
	}
	_, err = describe(ctx, client, cfg)
	return err
}

func create(ctx context.Context, client *driver.Client, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, 2*cfg.Timeout)
	defer cancel()
	db := client.Database(cfg.Database)
	types, err := collections(ctx, db, cfg.own()...)
	if err != nil {
		return err
	}
	for _, name := range cfg.own() {
		if types[name] != "" {
			continue
		}
		if err := db.CreateCollection(ctx, name); err != nil && code(err) != namespaceExists { // by another init
			return fmt.Errorf("creating %s: %w", name, err)
		}
	}
	if types[cfg.Collection] == "" || types[cfg.Collection] == "collection" {
		if err := createIndex(ctx, db.Collection(cfg.Collection), cfg); err != nil {
			return fmt.Errorf("creating the index of %s: %w", cfg.Collection, err)
		}
	}
	return createLanes(ctx, client, db.Collection(cfg.Collection+lanesSuffix), cfg.Lanes)
}

// createIndex makes the index, where none will do.
func createIndex(ctx context.Context, outbox *driver.Collection, cfg Config) error {
	name, _, err := findIndex(ctx, outbox, cfg)
	if err != nil || name != "" {
		return err
	}
	_, err = outbox.Indexes().CreateOne(ctx, driver.IndexModel{Keys: cfg.indexKeys()})
	return err
}

// createLanes records the lane count where none is. It is a transaction, for another init may
// record another one at the same time.
func createLanes(ctx context.Context, client *driver.Client, shares *driver.Collection, n int) error {
	session, err := client.StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		count, err := shares.CountDocuments(ctx, bson.D{}, options.Count().SetLimit(1))
		if err != nil || count > 0 {
			return nil, err
		}
		// The update gives the server's time; the first of them meets another init.
		var lanes []driver.WriteModel
		for lane := range n {
			lanes = append(lanes, driver.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: int32(lane)}}).SetUpsert(true).
				SetUpdate(set(bson.D{{Key: "owner", Value: nil}, {Key: "epoch", Value: int64(0)}, {Key: "since", Value: now}})))
		}
		_, err = shares.BulkWrite(ctx, lanes)
		return nil, err
	})
	if err != nil {
		return fmt.Errorf("recording the lanes: %w", err)
	}
	return nil
}
