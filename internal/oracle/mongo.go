package oracle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// MongoWriter is a Writer whose outbox and ledger are collections; Tables names them as
// database.collection, and MaxPerTransaction is 1. The writers of a key take turns by the
// conflict on its document in the ledger.
type MongoWriter struct {
	Writer
	client *mongo.Client
}

// NewMongoWriter makes a writer that uses the client.
func NewMongoWriter(client *mongo.Client, cfg WriterConfig) (*MongoWriter, error) {
	inner, err := NewWriter(cfg)
	if err != nil {
		return nil, err
	}
	w := &MongoWriter{client: client}
	w.cfg = inner.cfg
	w.number.Store(inner.number.Load())
	return w, nil
}

// Run writes until the context ends or Events are written.
func (w *MongoWriter) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pace := newPacer(w.cfg.Rate)
	errs := make([]error, w.cfg.Connections)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			h := &hand{Writer: &w.Writer, pace: pace, random: rand.New(rand.NewPCG(w.cfg.Seed, uint64(i)))}
			if errs[i] = w.work(ctx, h); errs[i] != nil {
				cancel()
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (w *MongoWriter) work(ctx context.Context, h *hand) error {
	for w.cfg.Events == 0 || w.begun.Add(1) <= w.cfg.Events {
		h.choose(1)
		if !h.pace.wait(ctx, 1) {
			return nil
		}
		// A transaction that has begun is finished: a writer that stops leaves no doubt.
		tx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionTime)
		err := w.transact(tx, h)
		cancel()
		if err != nil {
			return fmt.Errorf("writing events: %w", err)
		}
	}
	return nil
}

var errRollback = errors.New("rolled back as it was meant to be")

func (w *MongoWriter) transact(ctx context.Context, h *hand) error {
	commit := h.random.Float64() >= w.cfg.Rollback
	hold := w.cfg.Hold > 0 && h.random.Float64() < w.cfg.Hold
	e := &h.events[0]
	e.N = w.number.Add(1)
	session, err := w.client.StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		var row mongoStream
		err := collection(w.client, w.cfg.Tables.Ledger).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "topic", Value: e.Topic}, {Key: "key", Value: e.Key}}}},
			bson.D{{Key: "$inc", Value: bson.D{{Key: "seq", Value: int64(1)}}}}, options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&row)
		if err != nil {
			return nil, err
		}
		e.Seq = row.Seq
		_, err = collection(w.client, w.cfg.Tables.Outbox).InsertOne(ctx, bson.D{
			{Key: "topic", Value: e.Topic}, {Key: "key", Value: e.Key}, {Key: "payload", Value: bson.Binary{Data: e.appendPayload(nil, w.cfg.PayloadBytes)}},
			{Key: "createdAt", Value: time.Now()}, {Key: "seq", Value: bson.Timestamp{}},
		})
		if err == nil && hold {
			sleep(ctx, w.cfg.HoldFor)
		}
		if err == nil && !commit {
			err = errRollback
		}
		return nil, err
	}, options.Transaction().SetWriteConcern(writeconcern.Majority()))
	switch {
	case errors.Is(err, errRollback):
		w.rolledBack.Add(1)
		return nil
	case err != nil:
		return err
	}
	w.cfg.Stopwatch.commit(e.N, time.Now())
	w.committed.Add(1)
	return nil
}

// mongoStream is a document of the ledger.
type mongoStream struct {
	ID struct {
		Topic, Key string
	} `bson:"_id"`
	Seq int64
}

// collection finds database.collection.
func collection(client *mongo.Client, name string) *mongo.Collection {
	database, rest, _ := strings.Cut(name, ".")
	return client.Database(database).Collection(rest)
}

// ReadMongoLedger is ReadLedger for collections.
func ReadMongoLedger(ctx context.Context, client *mongo.Client, tables Tables) (Ledger, error) {
	ledger := Ledger{}
	cursor, err := collection(client, tables.Ledger).Find(ctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	var rows []mongoStream
	if err := cursor.All(ctx, &rows); err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	for _, r := range rows {
		ledger[Stream{r.ID.Topic, r.ID.Key}] = r.Seq
	}
	return ledger, nil
}

// LeftInMongo is Left for collections.
func LeftInMongo(ctx context.Context, client *mongo.Client, tables Tables) (int64, error) {
	n, err := collection(client, tables.Outbox).CountDocuments(ctx, bson.D{})
	if err != nil {
		return 0, fmt.Errorf("counting the outbox: %w", err)
	}
	return n, nil
}
