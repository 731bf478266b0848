package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/source"
)

// store is the outbox and the collections beside it, as the server describes them.
type store struct {
	lanes int
	index string // by which the outbox is read; empty where the user may not list indexes
}

// describe looks at the server and the outbox, and returns a source.SetupError with everything
// that keeps it from being forwarded.
func describe(ctx context.Context, client *driver.Client, cfg Config) (*store, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	if err := greet(ctx, client, cfg); err != nil {
		return nil, err
	}
	rights, err := rightsOf(ctx, client)
	if err != nil {
		return nil, asSetup(fmt.Errorf("asking for the user's rights: %w", err))
	}
	db := client.Database(cfg.Database)
	shares := cfg.Collection + lanesSuffix
	types, err := collections(ctx, db, cfg.own()...)
	if err != nil && rights.anonymous && code(err) == unauthorized {
		return nil, &source.SetupError{Problems: []string{"the server asks for a login, and source.mongo.url has none: write mongodb://user:password@host/database, with authSource where the user is of another database"}}
	}
	if err != nil {
		return nil, fmt.Errorf("looking for collection %s: %w", cfg.namespace(), err)
	}
	var problems []string
	for _, c := range cfg.needs() {
		name := cfg.Database + "." + c.name
		missing := rights.missing(cfg.Database, c.name, c.actions)
		switch {
		case len(missing) > 0:
			problems = append(problems, missingRight(rights.user, cfg.Database, c.name, missing))
		case types[c.name] == "":
			problems = append(problems, fmt.Sprintf(c.absent, name))
		case types[c.name] != "collection":
			problems = append(problems, fmt.Sprintf("%s is a %s and not a collection of documents: name the outbox with source.mongo.collection", name, types[c.name]))
		}
	}
	if len(problems) > 0 {
		return nil, &source.SetupError{Problems: problems}
	}
	st := &store{}
	var found []string
	if st.lanes, found, err = countLanes(ctx, db.Collection(shares)); err != nil {
		return nil, fmt.Errorf("counting the lanes: %w", err)
	}
	problems = append(problems, found...)
	if st.index, found, err = findIndex(ctx, db.Collection(cfg.Collection), cfg); err != nil {
		return nil, fmt.Errorf("listing the indexes of %s: %w", cfg.namespace(), err)
	}
	if problems = append(problems, found...); len(problems) > 0 {
		return nil, &source.SetupError{Problems: problems}
	}
	return st, nil
}

// need is a collection, what is done to it, and what to do where it is absent.
type need struct {
	name    string
	actions []string
	absent  string
}

// needs lists what must be there.
func (c Config) needs() []need {
	outbox := need{c.Collection, []string{"find", "remove"}, "there is no collection %s: create it with `forwarder init`, or name another one with source.mongo.collection"}
	if c.Stream {
		outbox.actions = append(outbox.actions, "changeStream")
	}
	list := []need{
		outbox,
		{c.Collection + membersSuffix, []string{"find", "insert", "update", "remove"}, "there is no collection %s, which replicas share: create it with `forwarder init`"},
		{c.Collection + lanesSuffix, []string{"find", "update"}, "there is no collection %s, which replicas share: create it with `forwarder init`"},
	}
	if c.Durable {
		list = append(list, need{c.Collection + checkpointSuffix, []string{"find", "insert", "update"}, "there is no collection %s, which keeps the position in the change stream: create it with `forwarder init`"})
	}
	return list
}

// hello is how a server introduces itself.
type hello struct {
	Writable bool   `bson:"isWritablePrimary"`
	Set      string `bson:"setName"`
	Message  string `bson:"msg"`
	Wire     int32  `bson:"maxWireVersion"`
}

// oldestWire is the wire version of MongoDB 5.0, the first that reads snapshots outside of
// transactions.
const oldestWire = 13

// problems returns what about the server no retry mends.
func (h *hello) problems() []string {
	switch {
	case h.Message == "isdbgrid":
		return []string{"the server is a mongos of a sharded cluster, which the forwarder does not serve: keep the outbox in a replica set of its own"}
	case h.Wire < oldestWire:
		return []string{fmt.Sprintf("the server speaks wire version %d: MongoDB 5.0 (wire version %d) or newer is needed", h.Wire, oldestWire)}
	case h.Set == "":
		return []string{"the server is no member of a replica set, and so has neither transactions for the writers nor snapshots for the forwarder: start it with --replSet NAME, run rs.initiate() once, and add replicaSet=NAME to source.mongo.url"}
	}
	return nil
}

// greet asks the server what it is.
func greet(ctx context.Context, client *driver.Client, cfg Config) error {
	// Less than the call may take, so that there is time to find out why nobody answers.
	first, cancel := context.WithTimeout(ctx, min(cfg.Timeout/2, 10*time.Second))
	defer cancel()
	var h hello
	err := client.Database("admin").RunCommand(first, bson.D{{Key: "hello", Value: 1}}).Decode(&h)
	if err != nil {
		if problems := probe(ctx, cfg); len(problems) > 0 {
			return &source.SetupError{Problems: problems}
		}
		return asSetup(fmt.Errorf("connecting to MongoDB: %w", err))
	}
	if problems := h.problems(); len(problems) > 0 {
		return &source.SetupError{Problems: problems}
	}
	if !h.Writable {
		return errors.New("connecting to MongoDB: the server is not the primary: let source.mongo.url name the members of the replica set and replicaSet=NAME, without directConnection")
	}
	return nil
}

// probe asks each server of the URL by itself why the set that it names has no primary: a
// driver that looks for a set passes over servers that are in none, or in another one.
func probe(ctx context.Context, cfg Config) (problems []string) {
	set := options.Client().ApplyURI(cfg.URL)
	if set.ReplicaSet == nil {
		return nil
	}
	for _, host := range set.Hosts {
		alone := options.Client().ApplyURI(cfg.URL).SetHosts([]string{host}).SetDirect(true).
			SetServerSelectionTimeout(time.Second)
		alone.ReplicaSet, alone.Auth = nil, nil // hello needs no login
		client, err := driver.Connect(alone)
		if err != nil {
			return nil
		}
		var h hello
		err = client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&h)
		disconnect(client)
		switch {
		case err != nil:
			continue
		case len(h.problems()) > 0:
			problems = append(problems, host+": "+h.problems()[0])
		case h.Set != *set.ReplicaSet:
			problems = append(problems, fmt.Sprintf("%s is a member of the replica set %q: correct replicaSet=%s in source.mongo.url", host, h.Set, *set.ReplicaSet))
		default:
			return nil // the set is there, and its primary may come
		}
	}
	return problems
}

// collections returns the types of those collections that exist, of which the user may know.
func collections(ctx context.Context, db *driver.Database, names ...string) (map[string]string, error) {
	list, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: names}}}},
		options.ListCollections().SetNameOnly(true).SetAuthorizedCollections(true))
	if err != nil {
		return nil, err
	}
	types := make(map[string]string)
	for _, c := range list {
		types[c.Name] = c.Type
	}
	return types, nil
}

// countLanes learns the lane count.
func countLanes(ctx context.Context, shares *driver.Collection) (n int, problems []string, err error) {
	var found []struct {
		ID int `bson:"_id"`
	}
	cursor, err := shares.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}).SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return 0, nil, err
	}
	if err := cursor.All(ctx, &found); err != nil {
		return 0, nil, err
	}
	n = len(found)
	if n == 0 || found[0].ID != 0 || found[n-1].ID != n-1 || n&(n-1) != 0 || n > 1<<15 {
		problems = append(problems, fmt.Sprintf("collection %s.%s has %d lanes: there must be a power of two of them, from 0 on; without running replicas, empty it and run `forwarder init`",
			shares.Database().Name(), shares.Name(), n))
	}
	return n, problems, nil
}

// indexKeys is the index that a page is read from: it holds all that the first step asks for.
func (c Config) indexKeys() bson.D {
	keys := c.order()
	for _, f := range []string{c.Fields.Key, c.Fields.Topic} {
		if f != "" {
			keys = append(keys, bson.E{Key: f, Value: 1})
		}
	}
	return keys
}

// findIndex returns the name of the best index to read by: one that begins with the order, and
// goes on with as much as possible of what the first step asks for.
func findIndex(ctx context.Context, outbox *driver.Collection, cfg Config) (name string, problems []string, err error) {
	cursor, err := outbox.Indexes().List(ctx)
	if code(err) == unauthorized {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	var list []struct {
		Name    string   `bson:"name"`
		Keys    bson.D   `bson:"key"`
		Hidden  bool     `bson:"hidden"`
		Sparse  bool     `bson:"sparse"`
		Partial bson.Raw `bson:"partialFilterExpression"`
	}
	if err := cursor.All(ctx, &list); err != nil {
		return "", nil, err
	}
	want, best := cfg.indexKeys(), 1
	for _, index := range list {
		n := 0
		for n < len(want) && n < len(index.Keys) && index.Keys[n].Key == want[n].Key && ascending(index.Keys[n].Value) {
			n++
		}
		if n > best && !index.Hidden && !index.Sparse && index.Partial == nil {
			name, best = index.Name, n
		}
	}
	if name == "" {
		problems = append(problems, fmt.Sprintf("collection %s has no index on %s and _id, the order in which it is read: run `forwarder init`, or %s",
			cfg.namespace(), cfg.Fields.Seq, indexStatement(cfg)))
	}
	return name, problems, nil
}

func ascending(direction any) bool {
	return slices.Contains([]any{int32(1), int64(1), 1.0}, direction)
}
