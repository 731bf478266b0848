package mongo

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/outbox-forwarder/forwarder/source/sourcetest"
)

// TestConformance: what every source does, in each mode.
func TestConformance(t *testing.T) {
	const durable = "durable checkpoint"
	for name, open := range map[string]func(ctx context.Context, cfg Config) (sourcetest.Store, error){
		"poll":   func(ctx context.Context, cfg Config) (sourcetest.Store, error) { return Open(ctx, cfg) },
		"stream": func(ctx context.Context, cfg Config) (sourcetest.Store, error) { return OpenStream(ctx, cfg) },
		durable:  func(ctx context.Context, cfg Config) (sourcetest.Store, error) { return OpenDurable(ctx, cfg) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sourcetest.Sources(t, func(t *testing.T) sourcetest.Outbox {
				w := emptyWorld(t)
				w.init(func(c *Config) { c.Durable = name == durable })
				return sourcetest.Outbox{
					Repeats: name == durable,
					Open: func(t testing.TB) sourcetest.Replica {
						t.Helper()
						s, err := open(t.Context(), w.config())
						if err != nil {
							t.Fatal(err)
						}
						return sourcetest.ReplicaOf(s)
					},
					Begin: func(t testing.TB) sourcetest.Writer { return w.beginWriter(t) },
					Left:  func(testing.TB) int { return w.count(bson.D{}) },
				}
			})
		})
	}
}

// transactionWriter is a sourcetest.Writer.
type transactionWriter struct {
	t       testing.TB
	outbox  *driver.Collection
	session *driver.Session
	ctx     context.Context // of the session
}

func (w *world) beginWriter(t testing.TB) *transactionWriter {
	session, err := w.client.StartSession()
	if err != nil {
		t.Errorf("beginning a session: %v", err)
		return &transactionWriter{t: t}
	}
	x := &transactionWriter{t, w.outbox, session, driver.NewSessionContext(context.Background(), session)}
	x.check(session.StartTransaction(options.Transaction().SetWriteConcern(writeconcern.Majority())))
	return x
}

func (w *transactionWriter) check(err error) {
	if err != nil {
		w.t.Errorf("writing: %v", err)
	}
}

// Insert writes the headers as pairs, which may have a name twice.
func (w *transactionWriter) Insert(rows ...sourcetest.Row) {
	for _, r := range rows {
		d := bson.D{{Key: "topic", Value: r.Topic}, {Key: "key", Value: nil}, {Key: "payload", Value: nil}, {Key: "seq", Value: bson.Timestamp{}}, {Key: "createdAt", Value: bson.NewDateTimeFromTime(time.Now())}}
		if r.Key != nil {
			d[1].Value = string(r.Key)
		}
		if r.Payload != nil {
			d[2].Value = bson.Binary{Data: r.Payload}
		}
		if r.Headers != nil {
			var list bson.A
			for _, h := range r.Headers {
				var value any
				if h.Value != nil {
					value = string(h.Value)
				}
				list = append(list, bson.A{h.Name, value})
			}
			d = append(d, bson.E{Key: "headers", Value: list})
		}
		_, err := w.outbox.InsertOne(w.ctx, d)
		w.check(err)
	}
}

func (w *transactionWriter) Commit() {
	w.check(w.session.CommitTransaction(w.ctx))
	w.session.EndSession(w.ctx)
}

func (w *transactionWriter) Rollback() {
	w.check(w.session.AbortTransaction(w.ctx))
	w.session.EndSession(w.ctx)
}
