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

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// Leases are the members and lanes collections beside the outbox. They have connections of their
// own, which no other work can keep busy. The calls are serial.
//
// A member is dead when its document is gone, and nothing else makes it so: of a renewal and the
// removal of an overdue member the server lets one go first, and the other one then meets what
// that left, each by the server's clock. An id that is gone never comes back, so a lane whose
// owner was seen not to be there is free for good, as long as its epoch is the same.
type Leases struct {
	cfg            Config
	client         *driver.Client // nil before the first use
	members, lanes *driver.Collection
	ttl            time.Duration // of the last Join or Round
}

var _ lanes.Leases = (*Leases)(nil)

// NewLeases returns the leases of the outbox. It connects when it is first used.
func NewLeases(cfg Config) *Leases { return &Leases{cfg: cfg.withDefaults()} }

// Close closes the connections.
func (l *Leases) Close() {
	if l.client != nil {
		disconnect(l.client)
		l.client = nil
	}
}

// with runs do in a session: each call in it sees what those before it did, on whatever server.
func (l *Leases) with(ctx context.Context, do func(ctx context.Context) error) error {
	if l.client == nil {
		client, err := newClient(l.cfg, leaseConns)
		if err != nil {
			return err
		}
		l.client = client
		db := client.Database(l.cfg.Database)
		l.members, l.lanes = db.Collection(l.cfg.Collection+membersSuffix), db.Collection(l.cfg.Collection+lanesSuffix)
	}
	return asSetup(l.client.UseSession(ctx, do))
}

// now is the server's clock in updates and expressions.
const now = "$$NOW"

// set is an update whose values may be expressions.
func set(fields bson.D) bson.A { return bson.A{bson.D{{Key: "$set", Value: fields}}} }

// literal is a value that is no expression, whatever it begins with.
func literal(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }

func after(ttl time.Duration) bson.D {
	return bson.D{{Key: "$add", Value: bson.A{now, ttl.Milliseconds()}}}
}

// overdue is whether a member's lease has ended.
var overdue = bson.D{{Key: "$lte", Value: bson.A{"$expiresAt", now}}}

// Join implements lanes.Leases.
func (l *Leases) Join(ctx context.Context, me lanes.Member, ttl time.Duration) error {
	l.ttl = ttl
	return l.with(ctx, func(ctx context.Context) error {
		// An update, for only that has the server's clock. It never meets a member that is there
		// already: then the id is taken.
		_, err := l.members.UpdateOne(ctx,
			bson.D{{Key: "_id", Value: me.ID}, {Key: "expiresAt", Value: nil}},
			set(bson.D{
				{Key: "startedAt", Value: now}, {Key: "expiresAt", Value: after(ttl)},
				{Key: "lanes", Value: int32(me.Lanes)}, {Key: "retiring", Value: false},
				{Key: "exclusive", Value: me.Exclusive}, {Key: "report", Value: nil},
			}), options.UpdateOne().SetUpsert(true))
		return err
	})
}

// Round implements lanes.Leases. Looking for members that are overdue decides nothing.
func (l *Leases) Round(ctx context.Context, me lanes.Member, ttl time.Duration, report []byte) (table lanes.Table, alive bool, err error) {
	l.ttl = ttl
	err = l.with(ctx, func(ctx context.Context) error {
		fields := bson.D{{Key: "expiresAt", Value: after(ttl)}, {Key: "retiring", Value: me.Retiring}}
		if report != nil {
			fields = append(fields, bson.E{Key: "report", Value: literal(string(report))})
		}
		renewed, err := l.members.UpdateOne(ctx, bson.D{{Key: "_id", Value: me.ID}}, set(fields))
		if err != nil {
			return err
		}
		alive = renewed.MatchedCount == 1
		shares, err := l.readLanes(ctx, bson.D{})
		if err != nil {
			return fmt.Errorf("reading the lanes: %w", err)
		}
		table.Leases = nil
		for _, s := range shares {
			table.Leases = append(table.Leases, s.Lease)
		}
		members, err := l.readMembers(ctx)
		if err != nil {
			return fmt.Errorf("reading the members: %w", err)
		}
		for _, m := range members {
			if m.Overdue && m.ID != me.ID {
				gone, err := l.bury(ctx, m.ID)
				if err != nil {
					return err
				}
				if gone {
					continue
				}
			}
			table.Members = append(table.Members, lanes.Member{
				ID: m.ID, Retiring: m.Retiring, Exclusive: m.Exclusive, Lanes: int(m.Lanes), Started: m.Started,
			})
		}
		return nil
	})
	return table, alive, err
}

type member struct {
	ID        string    `bson:"_id"`
	Retiring  bool      `bson:"retiring"`
	Exclusive bool      `bson:"exclusive"`
	Lanes     int32     `bson:"lanes"`
	Started   time.Time `bson:"startedAt"`
	Overdue   bool      `bson:"overdue"`
}

func (l *Leases) readMembers(ctx context.Context) (list []member, err error) {
	cursor, err := l.members.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{
		{Key: "retiring", Value: 1}, {Key: "exclusive", Value: 1}, {Key: "lanes", Value: 1},
		{Key: "startedAt", Value: 1}, {Key: "overdue", Value: overdue},
	}))
	if err != nil {
		return nil, err
	}
	return list, cursor.All(ctx, &list)
}

// share is a lane's document.
type share struct {
	lanes.Lease
	since *time.Time // of the last change, or when the document was made
}

// readLanes returns the lanes in order.
func (l *Leases) readLanes(ctx context.Context, filter bson.D) ([]share, error) {
	cursor, err := l.lanes.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, err
	}
	var docs []struct {
		Lane  int32      `bson:"_id"`
		Owner *string    `bson:"owner"`
		Epoch int64      `bson:"epoch"`
		Since *time.Time `bson:"since"`
	}
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, err
	}
	list := make([]share, len(docs))
	for i, d := range docs {
		list[i] = share{lanes.Lease{Lane: source.Lane(d.Lane), Epoch: d.Epoch}, d.Since}
		if d.Owner != nil {
			list[i].Owner = *d.Owner
		}
	}
	return list, nil
}

// buryTime is how long the removal of a member may wait for whoever changes its document at the
// moment: our own lease would suffer for it.
const buryTime = 300 * time.Millisecond

// bury removes a member whose lease has ended, and reports whether it did.
func (l *Leases) bury(ctx context.Context, id string) (gone bool, err error) {
	short, cancel := context.WithTimeout(ctx, buryTime)
	defer cancel()
	result, err := l.members.DeleteOne(short, bson.D{{Key: "_id", Value: id}, {Key: "$expr", Value: overdue}})
	if err != nil {
		if ctx.Err() == nil && (driver.IsTimeout(err) || errors.Is(err, context.DeadlineExceeded)) {
			return false, nil // it may be gone, which the next round will see
		}
		return false, fmt.Errorf("removing the overdue member %s: %w", id, err)
	}
	if result.DeletedCount == 1 {
		l.cfg.Logger.Warn("a member has not renewed its lease and is removed: its lanes are free", "member", id)
	}
	return result.DeletedCount == 1, nil
}

// Take implements lanes.Leases. The lanes are read before the members: an owner is written into a
// lane while it is a member, so one that is not among them by then is gone.
func (l *Leases) Take(ctx context.Context, me string, want []lanes.Lease) (got []lanes.Lease, err error) {
	err = l.with(ctx, func(ctx context.Context) error {
		got = nil
		epochs, numbers := byLane(want)
		before, err := l.readLanes(ctx, numbers)
		if err != nil {
			return fmt.Errorf("reading the lanes: %w", err)
		}
		present, err := l.present(ctx)
		if err != nil {
			return err
		}
		if _, alive := present[me]; !alive {
			return nil
		}
		var writes []driver.WriteModel
		for _, lease := range before {
			if _, there := present[lease.Owner]; there || lease.Epoch != epochs[lease.Lane] {
				continue
			}
			if lease.Epoch == 0 {
				writes = append(writes, l.claimFirst(lease, me, present))
				continue
			}
			writes = append(writes, claim(lease.Lease, me))
		}
		if len(writes) == 0 {
			return nil
		}
		if _, err := l.lanes.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false)); err != nil {
			return err
		}
		after, err := l.readLanes(ctx, numbers)
		if err != nil {
			return fmt.Errorf("reading the lanes: %w", err)
		}
		// A replica that was declared dead meanwhile has taken nothing that counts.
		if present, err = l.present(ctx); err != nil {
			return err
		}
		if _, alive := present[me]; !alive {
			return nil
		}
		for _, lease := range after {
			if lease.Owner == me && lease.Epoch == epochs[lease.Lane]+1 {
				got = append(got, lease.Lease)
			}
		}
		return nil
	})
	return got, err
}

// present returns the members, and when each has joined.
func (l *Leases) present(ctx context.Context) (map[string]time.Time, error) {
	members, err := l.readMembers(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the members: %w", err)
	}
	present := make(map[string]time.Time)
	for _, m := range members {
		present[m.ID] = m.Started
	}
	return present, nil
}

func byLane(list []lanes.Lease) (epochs map[source.Lane]int64, filter bson.D) {
	epochs = make(map[source.Lane]int64)
	var numbers bson.A
	for _, lease := range list {
		epochs[lease.Lane] = lease.Epoch
		numbers = append(numbers, int32(lease.Lane))
	}
	slices.SortFunc(numbers, func(a, b any) int { return int(a.(int32) - b.(int32)) })
	return epochs, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: numbers}}}}
}

// claim makes somebody the owner of a lane that is as it was found, or nobody for "".
func claim(found lanes.Lease, owner string) *driver.UpdateOneModel {
	name := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return driver.NewUpdateOneModel().
		SetFilter(bson.D{{Key: "_id", Value: int32(found.Lane)}, {Key: "owner", Value: name(found.Owner)}, {Key: "epoch", Value: found.Epoch}}).
		SetUpdate(set(bson.D{{Key: "owner", Value: literal(name(owner))}, {Key: "epoch", Value: found.Epoch + 1}, {Key: "since", Value: now}}))
}

// claimFirst claims a lane that nobody has owned since its document was made. A member that was
// there before may have owned it under an earlier document and not have noticed: then a lease's
// time must have passed. The time when it was made tells the document from one that is made later.
func (l *Leases) claimFirst(found share, me string, present map[string]time.Time) driver.WriteModel {
	write := claim(found.Lease, me)
	filter := append(write.Filter.(bson.D), bson.E{Key: "since", Value: found.since})
	for id, joined := range present {
		if id != me && found.since != nil && !joined.After(*found.since) {
			ended := bson.D{{Key: "$lte", Value: bson.A{"$since", bson.D{{Key: "$subtract", Value: bson.A{now, l.ttl.Milliseconds()}}}}}}
			return write.SetFilter(append(filter, bson.E{Key: "$expr", Value: ended}))
		}
	}
	return write.SetFilter(filter)
}

// Release implements lanes.Leases.
func (l *Leases) Release(ctx context.Context, me string, done []lanes.Lease) error {
	if len(done) == 0 {
		return nil
	}
	return l.with(ctx, func(ctx context.Context) error {
		var writes []driver.WriteModel
		for _, lease := range done {
			writes = append(writes, claim(lanes.Lease{Lane: lease.Lane, Owner: me, Epoch: lease.Epoch}, ""))
		}
		result, err := l.lanes.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
		if err != nil {
			return err
		}
		if n := int(result.MatchedCount); n != len(done) {
			l.cfg.Logger.Warn("lanes that were to be given up did not belong to this replica any more", "member", me, "count", len(done)-n)
		}
		return nil
	})
}

// Leave implements lanes.Leases.
func (l *Leases) Leave(ctx context.Context, me string) error {
	return l.with(ctx, func(ctx context.Context) error {
		_, err := l.members.DeleteOne(ctx, bson.D{{Key: "_id", Value: me}})
		return err
	})
}
