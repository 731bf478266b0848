package oracle

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"
)

// mongoDatabase is a MongoDB replica set. What it writes, a majority has; what it reads, too.
type mongoDatabase struct {
	client         *mongo.Client
	outbox, ledger *mongo.Collection
}

func openMongo(url string, tables Tables) (database, error) {
	parsed, err := connstring.Parse(url)
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(url).SetAppName(ApplicationName).
		SetReadConcern(readconcern.Majority()).SetWriteConcern(writeconcern.Majority()).
		// A primary that is gone is noticed soon, and so is a new one.
		SetServerSelectionTimeout(5 * time.Second).SetHeartbeatInterval(500 * time.Millisecond).SetConnectTimeout(5 * time.Second))
	if err != nil {
		return nil, err
	}
	collection := func(name string) *mongo.Collection {
		if database, rest, found := strings.Cut(name, "."); found {
			return client.Database(database).Collection(rest)
		}
		return client.Database(parsed.Database).Collection(name)
	}
	tables = tables.or("outbox", "oracle_ledger")
	return &mongoDatabase{client, collection(tables.Outbox), collection(tables.Ledger)}, nil
}

func (d *mongoDatabase) close(ctx context.Context) {
	_ = d.client.Disconnect(context.WithoutCancel(ctx)) // it has nothing to say by now
}

// turnID is the _id of a stream's document in the ledger.
type turnID struct {
	Topic string `bson:"topic"`
	Key   string `bson:"key"`
}

type turn struct {
	ID  turnID `bson:"_id"`
	Seq int64  `bson:"seq"`
}

// createLedger makes the collection, so that no transaction has to.
func (d *mongoDatabase) createLedger(ctx context.Context) error {
	err := d.ledger.Database().CreateCollection(ctx, d.ledger.Name())
	if hasCode(err, namespaceExists) {
		return nil
	}
	return err
}

func (d *mongoDatabase) readLedger(ctx context.Context) (Ledger, error) {
	cursor, err := d.ledger.Find(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	var turns []turn
	if err := cursor.All(ctx, &turns); err != nil {
		return nil, err
	}
	ledger := Ledger{}
	for _, t := range turns {
		ledger[Stream(t.ID)] = t.Seq
	}
	return ledger, nil
}

func (d *mongoDatabase) left(ctx context.Context) (int64, error) {
	return d.outbox.CountDocuments(ctx, bson.D{})
}

func (d *mongoDatabase) preload(ctx context.Context, ledger Ledger, rows iter.Seq[row], perTransaction int) error {
	var docs []any
	for r := range rows {
		docs = append(docs, document(r))
	}
	for part := range slices.Chunk(docs, min(perTransaction, 1000)) {
		if _, err := d.outbox.InsertMany(ctx, part); err != nil {
			return fmt.Errorf("filling the outbox: %w", err)
		}
	}
	var turns []any
	for s, seq := range ledger {
		turns = append(turns, turn{ID: turnID(s), Seq: seq})
	}
	if _, err := d.ledger.InsertMany(ctx, turns); err != nil {
		return fmt.Errorf("filling the ledger: %w", err)
	}
	return nil
}

// document is what an application would write. Its _id rises with the event's number, as those
// do that one process makes.
func document(r row) bson.D {
	return bson.D{
		{Key: "_id", Value: objectID(r.n)}, {Key: "topic", Value: r.topic}, {Key: "key", Value: r.key},
		{Key: "payload", Value: string(r.payload)}, {Key: "createdAt", Value: time.Now()}, {Key: "seq", Value: bson.Timestamp{}},
	}
}

// objectID holds the number and, where an ObjectId has its time, a time that fits it.
func objectID(n int64) (id bson.ObjectID) {
	binary.BigEndian.PutUint32(id[:], uint32(n/1e6))
	binary.BigEndian.PutUint64(id[4:], uint64(n))
	return id
}

// Codes of the server.
const (
	namespaceExists = 48
	writeConflict   = 112
	duplicateKey    = 11000
)

// notPrimary are the codes of a server that is no primary, or no more.
var notPrimary = []int{10107, 13435, 13436, 11600, 11602, 189, 91}

func hasCode(err error, codes ...int) bool {
	var refused mongo.ServerError
	return errors.As(err, &refused) && slices.ContainsFunc(codes, refused.HasErrorCode)
}

func (*mongoDatabase) transient(err error) bool {
	var refused mongo.ServerError
	if !errors.As(err, &refused) {
		return true // the network, or a time-out
	}
	for _, label := range []string{"TransientTransactionError", "UnknownTransactionCommitResult", "RetryableWriteError", "NetworkError"} {
		if refused.HasErrorLabel(label) {
			return true
		}
	}
	return hasCode(err, notPrimary...)
}

func (d *mongoDatabase) session(context.Context) (session, error) {
	inner, err := d.client.StartSession()
	if err != nil {
		return nil, err
	}
	return &mongoSession{d, inner}, nil
}

type mongoSession struct {
	*mongoDatabase
	session *mongo.Session
}

// turn tries until no other transaction has a stream's document: the server lets none wait, it
// ends the one that comes second.
func (s *mongoSession) turn(ctx context.Context, streams []Stream, count map[Stream]int64) (map[Stream]int64, error) {
	for {
		if err := s.session.StartTransaction(); err != nil {
			return nil, err
		}
		sums, err := s.add(ctx, streams, count)
		if !hasCode(err, writeConflict, duplicateKey) {
			return sums, err
		}
		if err := s.session.AbortTransaction(ctx); err != nil {
			return nil, err
		}
		if !sleep(ctx, rand.N(5*time.Millisecond)) {
			return nil, ctx.Err()
		}
	}
}

func (s *mongoSession) add(ctx context.Context, streams []Stream, count map[Stream]int64) (map[Stream]int64, error) {
	ctx = mongo.NewSessionContext(ctx, s.session)
	sums := map[Stream]int64{}
	for _, stream := range streams {
		var t turn
		err := s.ledger.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: turnID(stream)}},
			bson.D{{Key: "$inc", Value: bson.D{{Key: "seq", Value: count[stream]}}}},
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&t)
		if err != nil {
			return nil, err
		}
		sums[stream] = t.Seq
	}
	return sums, nil
}

func (s *mongoSession) insert(ctx context.Context, rows []row) error {
	if len(rows) == 0 {
		return nil
	}
	docs := make([]any, len(rows))
	for i, r := range rows {
		docs[i] = document(r)
	}
	_, err := s.outbox.InsertMany(mongo.NewSessionContext(ctx, s.session), docs)
	return err
}

func (s *mongoSession) end(ctx context.Context, rows []row, commit bool) error {
	if err := s.insert(ctx, rows); err != nil {
		return err
	}
	if !commit {
		return s.session.AbortTransaction(ctx)
	}
	return s.session.CommitTransaction(ctx)
}

// close ends a transaction that is open, so that nobody waits for it.
func (s *mongoSession) close(ctx context.Context) { s.session.EndSession(ctx) }
