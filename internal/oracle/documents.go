package oracle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// DocumentsConfig describes a workload for an outbox that is a collection. The zero value of a
// field means its default.
type DocumentsConfig struct {
	Outbox *mongo.Collection // required
	Topic  string            // required
	// Connections insert at the same time, default 8. Keys default to 1000.
	Connections, Keys int
	// Rate is the number of inserts per second over all connections; 0 is full speed.
	Rate float64
	// PayloadBytes is the approximate size of a payload, default 200.
	PayloadBytes int
	// Stopwatch learns when each insert was acknowledged; may be nil.
	Stopwatch *Stopwatch
}

// Documents writes numbered events into a collection by single inserts, without the transactions
// of a MongoWriter, for measurements. Each key belongs to one connection, which waits for the
// answer before it writes the next one: so the order of a key's commits is known without a lock,
// and the ledger is kept here. What became of an insert whose answer was lost is not known, so
// that ends it.
type Documents struct {
	cfg DocumentsConfig

	mu     sync.Mutex
	ledger Ledger
	number int64
}

// NewDocuments makes a workload; nothing is sent yet.
func NewDocuments(cfg DocumentsConfig) (*Documents, error) {
	for _, d := range []struct {
		field *int
		value int
	}{{&cfg.Connections, 8}, {&cfg.Keys, 1000}, {&cfg.PayloadBytes, 200}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if cfg.Outbox == nil || !plainName(cfg.Topic) || cfg.Connections < 1 || cfg.Keys < cfg.Connections || cfg.Rate < 0 {
		return nil, fmt.Errorf("writing documents: topic %q, %d connections, %d keys, %v a second", cfg.Topic, cfg.Connections, cfg.Keys, cfg.Rate)
	}
	return &Documents{cfg: cfg, ledger: make(Ledger)}, nil
}

// Ledger is what has been acknowledged so far.
func (d *Documents) Ledger() Ledger {
	d.mu.Lock()
	defer d.mu.Unlock()
	ledger := make(Ledger, len(d.ledger))
	for s, n := range d.ledger {
		ledger[s] = n
	}
	return ledger
}

// Run inserts until the context ends; inserts under way are finished.
func (d *Documents) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pace := newPacer(d.cfg.Rate)
	errs := make([]error, d.cfg.Connections)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			random := rand.New(rand.NewPCG(0, uint64(i)))
			for pace.wait(ctx, 1) {
				// The square makes the first keys hot and still reaches all.
				u := random.Float64()
				mine := (d.cfg.Keys - i + d.cfg.Connections - 1) / d.cfg.Connections
				if errs[i] = d.insert(ctx, KeyName(int(u*u*float64(mine))*d.cfg.Connections+i)); errs[i] != nil {
					cancel()
					return
				}
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (d *Documents) insert(ctx context.Context, key string) error {
	e := d.next(key)
	// An insert that was sent is waited for: a writer that stops leaves no doubt.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionTime)
	defer cancel()
	if _, err := d.cfg.Outbox.InsertOne(ctx, d.document(e)); err != nil {
		return fmt.Errorf("inserting an event: %w", err)
	}
	d.cfg.Stopwatch.commit(e.N, time.Now())
	d.note(e)
	return nil
}

// next is the next event of a key, which one goroutine at a time asks for.
func (d *Documents) next(key string) event {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number++
	return event{Topic: d.cfg.Topic, Key: key, Seq: d.ledger[Stream{d.cfg.Topic, key}] + 1, N: d.number}
}

func (d *Documents) note(e event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ledger[Stream{e.Topic, e.Key}] = e.Seq
}

func (d *Documents) document(e event) bson.D {
	return bson.D{
		{Key: "topic", Value: e.Topic},
		{Key: "key", Value: e.Key},
		{Key: "payload", Value: bson.Binary{Data: e.appendPayload(nil, d.cfg.PayloadBytes)}},
		{Key: "createdAt", Value: time.Now()},
		{Key: "seq", Value: bson.Timestamp{}}, // the server's to fill in
	}
}

// preloadBatch is the number of documents in an insert of Preload.
const preloadBatch = 1000

// Preload inserts events in order, spread over the keys in turn, so that neighbours differ in
// their key. It does not run beside Run.
func (d *Documents) Preload(ctx context.Context, events int) error {
	docs := make([]any, 0, preloadBatch)
	for i := range events {
		e := d.next(KeyName(i % d.cfg.Keys))
		d.note(e)
		docs = append(docs, d.document(e))
		if len(docs) == preloadBatch || i == events-1 {
			if _, err := d.cfg.Outbox.InsertMany(ctx, docs); err != nil {
				return fmt.Errorf("filling the outbox: %w", err)
			}
			docs = docs[:0]
		}
	}
	return nil
}
