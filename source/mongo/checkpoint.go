package mongo

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// checkpoint is the position in the change stream up to which everything was delivered and
// deleted, as the collection beside the outbox keeps it.
type checkpoint struct {
	// Epoch rises with each who reads the stream: who has an older one may not write.
	Epoch int64 `bson:"epoch"`
	// Token is where to go on; while there is none the stream starts at Time.
	Token bson.Raw `bson:"token"`
	// Time and Number name the last document before Token: when its transaction was committed,
	// and how many of it there were up to it.
	Time   bson.Timestamp `bson:"time"`
	Number uint32         `bson:"number"`
	// Scanned says that what was in the outbox before the stream is delivered.
	Scanned bool `bson:"scanned"`
}

// position is the checkpoint's position.
func (c *checkpoint) position() position {
	return position{place: place{clusterTime(c.Time), c.Number}, token: c.Token}
}

// checkpointID is the _id of the one document.
const checkpointID = "changeStream"

// keeper reads and writes the checkpoint. It is safe for concurrent use.
type keeper struct {
	docs *driver.Collection

	mu     sync.Mutex // held over a call
	epoch  int64
	writes int64 // of this epoch
}

func newKeeper(src *Source) *keeper {
	return &keeper{docs: src.outbox.Database().Collection(src.cfg.Collection + checkpointSuffix)}
}

// errSuperseded says that somebody else reads the change stream.
var errSuperseded = errors.New("another replica has taken over the change stream")

// claim begins an epoch and returns what is there: a zero Time where there is nothing yet.
func (k *keeper) claim(ctx context.Context) (*checkpoint, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var cp checkpoint
	err := k.docs.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: checkpointID}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "epoch", Value: int64(1)}}}, {Key: "$set", Value: bson.D{{Key: "writes", Value: int64(0)}}}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After),
	).Decode(&cp)
	if err != nil {
		return nil, fmt.Errorf("reading the checkpoint: %w", err)
	}
	k.epoch, k.writes = cp.Epoch, 0
	return &cp, nil
}

// save changes the checkpoint. A write that lands late, after its answer was given up, changes
// nothing.
func (k *keeper) save(ctx context.Context, fields bson.D) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	fields = append(fields, bson.E{Key: "writes", Value: k.writes})
	result, err := k.docs.UpdateOne(ctx, bson.D{
		{Key: "_id", Value: checkpointID}, {Key: "epoch", Value: k.epoch}, {Key: "writes", Value: bson.D{{Key: "$lt", Value: k.writes}}},
	}, bson.D{{Key: "$set", Value: fields}, {Key: "$currentDate", Value: bson.D{{Key: "updatedAt", Value: true}}}})
	switch {
	case err != nil:
		return fmt.Errorf("writing the checkpoint: %w", err)
	case result.MatchedCount == 0:
		return errSuperseded
	}
	return nil
}

// start records where a change stream starts that has no position yet: what is in the outbox is
// to be delivered first.
func (k *keeper) start(ctx context.Context, at bson.Timestamp) error {
	return k.save(ctx, bson.D{{Key: "token", Value: nil}, {Key: "time", Value: at}, {Key: "number", Value: 0}, {Key: "scanned", Value: false}})
}

// advance records a position.
func (k *keeper) advance(ctx context.Context, p position) error {
	return k.save(ctx, bson.D{
		{Key: "token", Value: p.token},
		{Key: "time", Value: bson.Timestamp{T: uint32(p.at >> 32), I: uint32(p.at)}},
		{Key: "number", Value: int64(p.number)},
	})
}

// scanned records whether what is in the outbox is delivered.
func (k *keeper) scanned(ctx context.Context, yes bool) error {
	return k.save(ctx, bson.D{{Key: "scanned", Value: yes}})
}
