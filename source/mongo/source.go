package mongo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/lanes"
)

// Source reads and deletes the documents of one outbox. Its methods are safe for concurrent
// use, but for Read, whose calls are serial.
type Source struct {
	cfg       Config
	client    *driver.Client
	primary   *primary
	outbox    *driver.Collection
	lanes     int
	index     atomic.Pointer[string] // see store
	handles   *registry
	decoder   decoder // of Read
	pace      pace    // of Read
	live      []bool  // of Read: the lanes of the last one
	avg       int     // of Read: the size of a document, roughly
	retried   atomic.Uint64
	log       *slog.Logger
	unordered sync.Once // see noteUnordered

	seen seen
}

var _ lanes.Source = (*Source)(nil)

// Open connects to the database and checks the outbox. A source.SetupError lists what no retry
// mends; any other error may pass.
func Open(ctx context.Context, cfg Config) (*Source, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	server := &primary{}
	client, err := newClient(cfg, sourceConns, server.watch)
	if err != nil {
		return nil, err
	}
	st, err := describe(ctx, client, cfg)
	if err != nil {
		disconnect(client)
		return nil, err
	}
	s := &Source{
		cfg:     cfg,
		client:  client,
		primary: server,
		outbox:  client.Database(cfg.Database).Collection(cfg.Collection),
		lanes:   st.lanes,
		live:    make([]bool, st.lanes),
		handles: newRegistry(),
		decoder: newDecoder(cfg, st.lanes),
		avg:     firstSize,
		log:     cfg.Logger,
	}
	s.index.Store(&st.index)
	return s, nil
}

func newDecoder(cfg Config, n int) decoder {
	return decoder{fields: cfg.Fields, canonical: cfg.Canonical, lanes: n, topics: make(map[string]string)}
}

// Lanes is the store's lane count.
func (s *Source) Lanes() int { return s.lanes }

// Table is the outbox's name as it is shown.
func (s *Source) Table() string { return s.cfg.namespace() }

// order is how the outbox is read.
func (c Config) order() bson.D { return bson.D{{Key: c.Fields.Seq, Value: 1}, {Key: "_id", Value: 1}} }

// Oldest returns when the undelivered document that was inserted first was created; ok is
// false when the outbox is empty or does not tell.
func (s *Source) Oldest(ctx context.Context) (created time.Time, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	opts := options.FindOne().SetSort(s.cfg.order()).SetProjection(s.cfg.projection(s.cfg.Fields.CreatedAt, s.cfg.Fields.Seq))
	if index := *s.index.Load(); index != "" {
		opts.SetHint(index)
	}
	doc, err := s.outbox.FindOne(ctx, bson.D{}, opts).Raw()
	if errors.Is(err, driver.ErrNoDocuments) {
		return time.Time{}, false, nil
	}
	if err != nil {
		return time.Time{}, false, fmt.Errorf("looking for the oldest document: %w", err)
	}
	created, ok = createdOf(doc, s.cfg.Fields)
	return created, ok, nil
}

// projection asks for _id and the fields, as far as there are such.
func (c Config) projection(fields ...string) bson.D {
	p := bson.D{{Key: "_id", Value: 1}}
	for _, f := range fields {
		if f != "" {
			p = append(p, bson.E{Key: f, Value: 1})
		}
	}
	return p
}

// Close closes the connections. No call may be running.
func (s *Source) Close() { disconnect(s.client) }
