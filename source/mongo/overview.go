package mongo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/source"
)

// ReadOverview looks at the collections, from anywhere.
func ReadOverview(ctx context.Context, cfg Config) (*source.Overview, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	client, err := newClient(cfg, leaseConns)
	if err != nil {
		return nil, err
	}
	defer disconnect(client)
	st, err := describe(ctx, client, cfg)
	if err != nil {
		return nil, err
	}
	db := client.Database(cfg.Database)
	leases, err := viewLeases(ctx, db.Collection(cfg.Collection+lanesSuffix))
	if err != nil {
		return nil, fmt.Errorf("reading the lanes: %w", err)
	}
	members, retiring, err := viewMembers(ctx, db.Collection(cfg.Collection+membersSuffix))
	if err != nil {
		return nil, fmt.Errorf("reading the members: %w", err)
	}
	o := source.NewOverview(cfg.namespace(), leases, members, retiring)
	if err := countBacklog(ctx, db.Collection(cfg.Collection), cfg, st, o); err != nil {
		return nil, fmt.Errorf("counting the backlog: %w", err)
	}
	return o, nil
}

func viewLeases(ctx context.Context, shares *driver.Collection) (list []source.LeaseView, err error) {
	cursor, err := shares.Find(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	var docs []struct {
		Lane  int32     `bson:"_id"`
		Owner *string   `bson:"owner"`
		Epoch int64     `bson:"epoch"`
		Since time.Time `bson:"since"`
	}
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, err
	}
	for _, d := range docs {
		l := source.LeaseView{Lane: source.Lane(d.Lane), Epoch: d.Epoch, Since: d.Since}
		if d.Owner != nil {
			l.Owner = *d.Owner
		}
		list = append(list, l)
	}
	return list, nil
}

func viewMembers(ctx context.Context, members *driver.Collection) (list []source.MemberView, retiring map[string]bool, err error) {
	cursor, err := members.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{
		{Key: "startedAt", Value: 1}, {Key: "retiring", Value: 1}, {Key: "report", Value: 1},
		{Key: "left", Value: bson.D{{Key: "$subtract", Value: bson.A{"$expiresAt", now}}}}, // ms
	}))
	if err != nil {
		return nil, nil, err
	}
	var docs []struct {
		ID       string    `bson:"_id"`
		Started  time.Time `bson:"startedAt"`
		Left     int64     `bson:"left"`
		Retiring bool      `bson:"retiring"`
		Report   *string   `bson:"report"`
	}
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, nil, err
	}
	retiring = make(map[string]bool)
	for _, d := range docs {
		m := source.MemberView{ID: d.ID, Started: d.Started, Expires: float64(d.Left) / 1000}
		if d.Report != nil {
			m.Report = json.RawMessage(*d.Report)
		}
		retiring[d.ID] = d.Retiring
		list = append(list, m)
	}
	return list, retiring, nil
}

// countBacklog counts the first documents by lane, and so by owner.
func countBacklog(ctx context.Context, outbox *driver.Collection, cfg Config, st *store, o *source.Overview) error {
	opts := options.Find().SetSort(cfg.order()).SetLimit(source.BacklogBound + 1).SetBatchSize(source.BacklogBound + 1).
		SetProjection(cfg.projection(cfg.Fields.Key, cfg.Fields.CreatedAt, cfg.Fields.Seq))
	if st.index != "" {
		opts.SetHint(st.index)
	}
	cursor, err := outbox.Find(ctx, bson.D{}, opts)
	if err != nil {
		return err
	}
	defer cursor.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the server ends it by itself
	d := newDecoder(cfg, st.lanes)
	for cursor.Next(ctx) {
		key, err := keyBytes(d.optional(cursor.Current, cfg.Fields.Key))
		if err != nil {
			key = nil // as the event has it
		}
		var oldest *time.Time
		if t, ok := createdOf(cursor.Current, cfg.Fields); ok {
			oldest = &t
		}
		o.Count(d.lane(cursor.Current.Lookup("_id"), key), 1, oldest)
	}
	o.Bound()
	return cursor.Err()
}
