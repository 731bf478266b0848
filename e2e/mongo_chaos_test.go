package e2e

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
	"github.com/outbox-forwarder/forwarder/internal/servers"
)

var chaosMongo = flag.Duration("chaos.mongo", time.Second, "how long TestMongoReplicasChaos goes on in each mode; every action happens once at least")

// privateMongo starts a replica set of three members that the test may stop.

func privateMongo(t *testing.T) *servers.Mongo {
	t.Helper()
	set, err := servers.StartMongo(t.Context(), servers.MongoConfig{Members: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	return set
}

// primaryEnds ends the primary by kill -9 or in order, waits for another one, and starts the
// old one again.
func primaryEnds(t *testing.T, set *servers.Mongo, end func(*servers.MongoMember) error) {
	t.Helper()
	old, err := set.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := end(old); err != nil {
		t.Fatal(err)
	}
	if _, err := set.Primary(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := old.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// primarySilent stops the primary without ending it, until there is another one.
func primarySilent(t *testing.T, set *servers.Mongo) {
	t.Helper()
	old, err := set.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Pause(); err != nil {
		t.Fatal(err)
	}
	_, err = set.Primary(t.Context())
	if err := errors.Join(err, old.Resume()); err != nil {
		t.Fatal(err)
	}
}

func stepDown(t *testing.T, set *servers.Mongo) {
	t.Helper()
	if err := set.StepDown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestC63PrimaryChanges hands the primary's place over, ends it and kills it under load. The
// process keeps what it knows, so that nothing is sent again.
func TestC63PrimaryChanges(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, m mode) {
		set := privateMongo(t)
		w := newWorldAt(t, m, set.URL("app"), nil, "")
		writer := w.write(func(c *oracle.WriterConfig) { c.Rate = 500 })
		p := w.start()
		p.awaitReady()
		for _, change := range []func(){
			func() { stepDown(t, set) },
			func() { primaryEnds(t, set, (*servers.MongoMember).Kill) },
			func() { primaryEnds(t, set, (*servers.MongoMember).Stop) },
			func() { primarySilent(t, set) },
		} {
			w.received(w.checker.Received() + 300)
			change()
			p.mustRun()
		}
		w.received(w.checker.Received() + 300)
		writer.stop()
		noRepeats(t, w.verdict())
		p.stop()
	}, mongoModes...)
}

// TestMongoReplicasChaos is TestReplicasChaos with an outbox in a replica set of three members,
// whose primary steps down, falls silent and dies as well.
func TestMongoReplicasChaos(t *testing.T) {
	for _, m := range mongoModes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel() // a busy machine is a part of it
			mongoReplicasInChaos(t, m)
		})
	}
}

func mongoReplicasInChaos(t *testing.T, m mode) {
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("replay with -chaos.seed %d", seed)
	set, kafka := privateMongo(t), privateKafka(t)
	c := &chaos{world: newWorldAt(t, m, set.URL("app"), kafka, "events"), broker: kafka, random: rand.New(rand.NewPCG(seed, 0)), stretch: 800}
	writer := c.write(func(c *oracle.WriterConfig) { c.Rate, c.Seed = 500, seed })
	actions := []action{
		{"the primary steps down", func() { stepDown(t, set) }},
		{"the primary is killed", func() { primaryEnds(t, set, (*servers.MongoMember).Kill) }},
		{"the primary restarts", func() { primaryEnds(t, set, (*servers.MongoMember).Stop) }},
		{"the primary is silent", func() { primarySilent(t, set) }},
	}
	if m.name != mongoPolled.name {
		actions = append(actions, action{"the change streams are cut", c.collection.cutStreams})
	}
	c.play(writer, *chaosMongo, actions...)
}

// cutStreams ends the operations that wait for the change stream's next events. The server
// closes their cursors.
func (c *collection) cutStreams() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	admin := c.db.Client().Database("admin", options.Database().SetReadConcern(readconcern.Local()))
	eventually(c.t, 20*time.Second, "a change stream was there to be cut", func() bool {
		cursor, err := admin.Aggregate(ctx, mongo.Pipeline{
			{{Key: "$currentOp", Value: bson.D{}}},
			{{Key: "$match", Value: bson.D{{Key: "op", Value: "getmore"}, {Key: "ns", Value: c.db.Name() + ".outbox"}, {Key: "cursor.tailable", Value: true}}}},
		})
		if err != nil {
			return false // there is no primary at the moment
		}
		var ops []struct {
			ID int32 `bson:"opid"`
		}
		if cursor.All(ctx, &ops) != nil {
			return false
		}
		for _, op := range ops {
			if admin.RunCommand(ctx, bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: op.ID}}).Err() != nil {
				return false
			}
		}
		return len(ops) > 0
	})
}

// TestMongoPlannedMovesRepeatNothing is TestReplicasPlannedMovesRepeatNothing on a collection.
func TestMongoPlannedMovesRepeatNothing(t *testing.T) {
	inModes(t, func(t *testing.T, m mode) {
		t.Parallel()
		w := newWorldIn(t, m, nil, nil, "")
		writer := w.write(func(c *oracle.WriterConfig) { c.Rate = 500 })
		procs := w.replicas(2)
		for round := range 4 {
			third := w.start()
			// By turns it is stopped as soon as it is there, and when all is balanced.
			if round%2 == 0 {
				w.awaitFleet(20*time.Second, "the third is there", func(f *fleet) bool { return f.of(third) > 0 || m.exclusive && f.of(third) == 0 })
			} else {
				w.awaitBalance(append(slices.Clone(procs), third)...)
			}
			w.received(w.checker.Received() + 100)
			third.stop()
		}
		w.awaitBalance(procs...)
		for i := range procs {
			procs[i].stop()
			procs[i] = w.start()
			w.awaitBalance(procs...)
		}
		if stdout, stderr, code := forwarder(t, nil, "retire", "--admin-listen", procs[0].admin); code != 0 {
			t.Fatalf("forwarder retire: exit code %d: %s%s", code, stdout, stderr)
		}
		w.awaitFleet(20*time.Second, "the other replica has all lanes", func(f *fleet) bool { return f.of(procs[1]) == lanesOf })
		w.received(w.checker.Received() + 500)
		writer.stop()
		noRepeats(t, w.verdict())
		endInOrder(procs...)
	}, mongoModes...)
}
