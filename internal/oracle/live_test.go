package oracle

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

func TestMain(m *testing.M) { serverstest.Main(m) }

const createOutbox = `CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL,
	key text, payload bytea, headers jsonb, created_at timestamptz NOT NULL DEFAULT now())`

func execute(t *testing.T, url, statement string) {
	t.Helper()
	err := withConn(t.Context(), url, func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), statement)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestApart: connections with keys of their own number them as they are committed, and the ledger
// that they write at the end says the same as the outbox.
func TestApart(t *testing.T) {
	url := serverstest.Database(t)
	execute(t, url, createOutbox)
	writer, err := NewWriter(WriterConfig{URL: url, Topics: []string{"orders"}, Keys: 30, Events: 2000, Apart: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := Ledger{}
	err = withConn(t.Context(), url, func(conn *pgx.Conn) error {
		rows, err := conn.Query(t.Context(), "SELECT payload FROM outbox ORDER BY id")
		if err != nil {
			return err
		}
		var payload []byte
		_, err = pgx.ForEachRow(rows, []any{&payload}, func() error {
			e, err := parseEvent(payload)
			s := Stream{e.Topic, e.Key}
			if found[s]++; err == nil && e.Seq != found[s] {
				t.Errorf("event %d of %v is the one with number %d", e.Seq, s, found[s])
			}
			return err
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ledger, err := ReadLedger(t.Context(), url, Tables{})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(ledger, found) || ledger.Events() != writer.Stats().Committed || len(found) < 24 {
		t.Errorf("the outbox has %v, the ledger says %v and the writer %+v", found, ledger, writer.Stats())
	}
}

// TestLive runs the writer and the checker over real servers around a small pipe that is
// right, and around the same pipe with one mistake in it.
func TestLive(t *testing.T) {
	for _, c := range []struct {
		name    string
		mistake func(batch []*kgo.Record, round int) []*kgo.Record
		cursor  bool
		found   func(Verdict) int64
	}{
		{name: "right"},
		{
			name: "repeats a suffix",
			mistake: func(batch []*kgo.Record, round int) []*kgo.Record {
				if round%3 == 0 { // as after a crash between acknowledgement and delete
					for _, r := range batch {
						again := *r // the client does not take one record twice
						batch = append(batch, &again)
					}
				}
				return batch
			},
		},
		{
			name: "loses the last of a batch",
			mistake: func(batch []*kgo.Record, round int) []*kgo.Record {
				if round == 5 {
					return batch[:len(batch)-1]
				}
				return batch
			},
			found: func(v Verdict) int64 { return v.Lost },
		},
		{
			name: "sends a batch backwards",
			mistake: func(batch []*kgo.Record, _ int) []*kgo.Record {
				slices.Reverse(batch)
				return batch
			},
			found: func(v Verdict) int64 { return v.OutOfOrder },
		},
		{
			name: "alters repeats",
			mistake: func(batch []*kgo.Record, _ int) []*kgo.Record {
				again := *batch[len(batch)-1]
				again.Headers = append(slices.Clone(again.Headers), kgo.RecordHeader{Key: "attempt", Value: []byte("2")})
				return append(batch, &again)
			},
			found: func(v Verdict) int64 { return v.Altered },
		},
		{name: "reads with a cursor", cursor: true, found: func(v Verdict) int64 { return v.Lost }},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, topic := serverstest.Database(t), serverstest.Topic(t, 4, nil)
			brokers := []string{serverstest.Kafka(t)}
			if err := AwaitTopic(t.Context(), brokers, topic); err != nil {
				t.Fatal(err)
			}
			execute(t, url, createOutbox)
			var watch Stopwatch
			writer, err := NewWriter(WriterConfig{
				URL: url, Topics: []string{topic}, Keys: 50, Events: 3000, MaxPerTransaction: 3,
				Rollback: 0.1, Hold: 0.05, HoldFor: 5 * time.Millisecond, Stopwatch: &watch,
			})
			if err != nil {
				t.Fatal(err)
			}
			checker, err := StartChecker(CheckerConfig{Brokers: brokers, Topics: []string{topic}, Stopwatch: &watch})
			if err != nil {
				t.Fatal(err)
			}
			defer checker.Stop()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			written := make(chan error, 1)
			go func() { written <- writer.Run(ctx) }()
			p := pipe{url: url, brokers: brokers, cursor: c.cursor, mistake: c.mistake}
			if err := p.run(ctx, written); err != nil {
				t.Fatal(err)
			}

			ledger, err := ReadLedger(ctx, url, Tables{})
			if err != nil {
				t.Fatal(err)
			}
			if stats := writer.Stats(); stats.Committed != ledger.Events() || stats.RolledBack == 0 || stats.Unknown != 0 {
				t.Errorf("the writer counts %+v, the ledger %d", stats, ledger.Events())
			}
			v, err := checker.Verdict(ctx, ledger)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(v)
			if c.found == nil {
				if err := v.Err(); err != nil || v.Lost != 0 || v.Delivered != ledger.Events() || v.Latency.Count != v.Written {
					t.Errorf("a right pipe is blamed: %v", err)
				}
				if (c.mistake != nil) != (v.Repeated > 0) {
					t.Errorf("%d repeats are counted", v.Repeated)
				}
			} else if c.found(v) == 0 || v.Err() == nil {
				t.Error("the mistake was not found")
			}
		})
	}
}

// pipe is a forwarder in its simplest right form: one page at a time from the head of the
// table. It ends when the writer has ended and a read finds nothing.
type pipe struct {
	url     string
	brokers []string
	cursor  bool
	mistake func(batch []*kgo.Record, round int) []*kgo.Record
}

func (p *pipe) run(ctx context.Context, written <-chan error) (err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(p.brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	return withConn(ctx, p.url, func(conn *pgx.Conn) error {
		ended := false
		var last int64
		for round := 0; ; {
			batch, ids, err := p.read(ctx, conn, last)
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				if ended {
					return nil
				}
				select {
				case err := <-written:
					if err != nil {
						return err
					}
					ended = true
				case <-time.After(time.Millisecond):
				}
				continue
			}
			if p.cursor {
				last = ids[len(ids)-1]
			}
			if round++; p.mistake != nil {
				batch = p.mistake(batch, round)
			}
			if err := client.ProduceSync(ctx, batch...).FirstErr(); err != nil {
				return err
			}
			if _, err := conn.Exec(ctx, "DELETE FROM outbox WHERE id = ANY($1)", ids); err != nil {
				return err
			}
		}
	})
}

func (p *pipe) read(ctx context.Context, conn *pgx.Conn, last int64) (batch []*kgo.Record, ids []int64, err error) {
	rows, err := conn.Query(ctx, "SELECT id, id::text, topic, key, payload FROM outbox WHERE id > $1 ORDER BY outbox.id LIMIT 50", last)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var text, topic string
		var key, payload []byte
		if err := rows.Scan(&id, &text, &topic, &key, &payload); err != nil {
			return nil, nil, err
		}
		ids = append(ids, id)
		batch = append(batch, &kgo.Record{Topic: topic, Key: key, Value: payload, Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(text)}}})
	}
	return batch, ids, rows.Err()
}

// TestWriterAcrossRestarts kills and starts the database under the writer: the ledger must
// agree with the table whatever the writer was told.
func TestWriterAcrossRestarts(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		db, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer closing(t, db)
		execute(t, db.URL("postgres"), createOutbox)
		acrossRestarts(t, db.URL("postgres"), db.Kill, db.Stop, db.Start)
	})
	t.Run("MongoDB", func(t *testing.T) {
		db, err := servers.StartMongo(t.Context(), servers.MongoConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer closing(t, db)
		member := db.Members()[0]
		acrossRestarts(t, db.URL("app"), member.Kill, member.Stop, member.Start)
	})
}

func closing(t *testing.T, server io.Closer) {
	t.Helper()
	if err := server.Close(); err != nil {
		t.Error(err)
	}
}

func acrossRestarts(t *testing.T, url string, kill, stop func() error, start func(context.Context) error) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	writer, err := NewWriter(WriterConfig{URL: url, Topics: []string{"x", "y"}, MaxPerTransaction: 4, Rollback: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	writing, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- writer.Run(writing) }()
	for round, halt := range []func() error{kill, stop, kill} {
		for goal := int64(1000 * (round + 1)); writer.Stats().Committed < goal; {
			if !sleep(ctx, 5*time.Millisecond) {
				t.Fatalf("round %d: the writer does not go on: %+v", round, writer.Stats())
			}
		}
		if err := errors.Join(halt(), start(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	end()
	if err := <-done; err != nil {
		t.Fatalf("the writer gave up: %v", err)
	}
	ledger, err := ReadLedger(ctx, url, Tables{})
	if err != nil {
		t.Fatal(err)
	}
	left, err := Left(ctx, url, Tables{})
	if err != nil {
		t.Fatal(err)
	}
	stats := writer.Stats()
	t.Logf("ledger %d, table %d, writer %+v", ledger.Events(), left, stats)
	if left != ledger.Events() || left < stats.Committed || left > stats.Committed+stats.Unknown {
		t.Error("ledger, table and writer disagree")
	}
	if stats.Reconnects < 3 {
		t.Errorf("%d reconnects over three outages", stats.Reconnects)
	}
}

func TestPreload(t *testing.T) {
	url := serverstest.Database(t)
	execute(t, url, createOutbox)
	_, name := serverstest.MongoDatabase(t)
	for _, url := range []string{url, mongoURL(t, name)} {
		if err := Preload(t.Context(), PreloadConfig{URL: url, Topic: "x", Events: 1003, Keys: 100, PayloadBytes: 200}); err != nil {
			t.Fatal(err)
		}
		left, err := Left(t.Context(), url, Tables{})
		if err != nil {
			t.Fatal(err)
		}
		ledger, err := ReadLedger(t.Context(), url, Tables{})
		if err != nil {
			t.Fatal(err)
		}
		if left != 1003 || ledger.Events() != 1003 || ledger[Stream{"x", KeyName(2)}] != 11 || ledger[Stream{"x", KeyName(3)}] != 10 {
			t.Errorf("table %d, ledger %d, %d, %d", left, ledger.Events(), ledger[Stream{"x", KeyName(2)}], ledger[Stream{"x", KeyName(3)}])
		}
	}
}

func mongoURL(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(serverstest.Mongo(t))
	if err != nil {
		t.Fatal("the shared MongoDB's address is not a URL")
	}
	u.Path = "/" + database
	return u.String()
}

// TestMongoWriterCountsEachStream looks at what the writer leaves in a collection: each stream's
// events are numbered from 1 to what the ledger says, in the order of seq.
func TestMongoWriterCountsEachStream(t *testing.T) {
	client, name := serverstest.MongoDatabase(t)
	at := mongoURL(t, name)
	if err := client.Database(name).CreateCollection(t.Context(), "outbox"); err != nil {
		t.Fatal(err)
	}
	writer, err := NewWriter(WriterConfig{URL: at, Topics: []string{"x", "y"}, Keys: 20, Events: 2000, MaxPerTransaction: 4, Rollback: 0.1, Hold: 0.05, HoldFor: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	ledger, err := ReadLedger(t.Context(), at, Tables{})
	if err != nil {
		t.Fatal(err)
	}
	if stats := writer.Stats(); stats.Committed != ledger.Events() || stats.RolledBack == 0 || stats.Unknown != 0 {
		t.Errorf("the writer counts %+v, the ledger %d", stats, ledger.Events())
	}
	cursor, err := client.Database(name).Collection("outbox").Find(t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "seq", Value: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct {
		ID                  bson.ObjectID `bson:"_id"`
		Topic, Key, Payload string
	}
	if err := cursor.All(t.Context(), &docs); err != nil {
		t.Fatal(err)
	}
	seen := Ledger{}
	for _, d := range docs {
		s := Stream{d.Topic, d.Key}
		seen[s]++
		e, err := parseEvent([]byte(d.Payload))
		if err != nil {
			t.Fatal(err)
		}
		if d.ID != objectID(e.N) || e.Seq != seen[s] || e.Topic != d.Topic || e.Key != d.Key {
			t.Errorf("document %s of %v is %+v, want sequence %d", d.ID.Hex(), s, e, seen[s])
		}
	}
	if !maps.Equal(seen, ledger) {
		t.Error("the collection and the ledger disagree")
	}
}

func TestWriterGivesUpOnWhatWaitingCannotHeal(t *testing.T) {
	writer, err := NewWriter(WriterConfig{URL: serverstest.Database(t), Topics: []string{"x"}}) // no outbox there
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Run(t.Context()); err == nil {
		t.Error("a missing table is not an error")
	}
}
