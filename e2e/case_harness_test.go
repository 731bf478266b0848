package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// stage is a world without the oracle, for tests that choose each row themselves.
type stage struct {
	*world
	conn  *pgx.Conn      // the writer's session
	kafka *kadm.Client   // looks at topics and changes them
	opts  []kgo.Opt      // how the test reaches the broker
	own   *servers.Kafka // nil for the shared one
}

// newStage prepares an outbox on the shared servers, or on the given ones where they are not
// nil.
func newStage(t *testing.T, db *servers.Postgres, kafka *servers.Kafka) *stage {
	t.Helper()
	s := newBareStage(t, db, kafka)
	s.initialise()
	return s
}

// newBareStage is newStage without `forwarder init`.
func newBareStage(t *testing.T, db *servers.Postgres, kafka *servers.Kafka, opts ...kgo.Opt) *stage {
	t.Helper()
	s := &stage{world: &world{t: t}, own: kafka}
	if db != nil {
		s.url = db.URL("postgres")
	} else {
		s.url = serverstest.Database(t)
	}
	if kafka != nil {
		s.broker = kafka.Addr()
	} else {
		s.broker = serverstest.Kafka(t)
	}
	t.Cleanup(s.closeCounter)
	s.conn = s.connect()
	s.openKafka(opts...)
	return s
}

// openKafka makes the client that looks at topics.
func (s *stage) openKafka(opts ...kgo.Opt) {
	s.t.Helper()
	s.opts = append(s.opts, kgo.SeedBrokers(s.broker), kgo.MetadataMinAge(10*time.Millisecond), kgo.MetadataMaxAge(100*time.Millisecond))
	s.opts = append(s.opts, opts...)
	client, err := kadm.NewOptClient(s.opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	s.kafka = client
}

// makeTopic makes a topic and returns its name.
func (s *stage) makeTopic(name string, partitions int, configs map[string]string) string {
	s.t.Helper()
	if s.own == nil {
		return serverstest.Topic(s.t, partitions, configs)
	}
	s.createTopic(name, partitions, configs)
	return name
}

// createTopic makes a topic with the given name.
func (s *stage) createTopic(name string, partitions int, configs map[string]string) {
	s.t.Helper()
	settings := map[string]*string{}
	for k, v := range configs {
		settings[k] = &v
	}
	if _, err := s.kafka.CreateTopic(s.t.Context(), int32(partitions), 1, settings, name); err != nil {
		s.t.Fatalf("creating topic %s: %v", name, err)
	}
	eventually(s.t, 20*time.Second, "the new topic has its leaders", func() bool {
		topics, err := s.kafka.Metadata(s.t.Context(), name)
		if err != nil {
			return false
		}
		led := 0
		for _, p := range topics.Topics[name].Partitions {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		}
		return led == partitions
	})
}

// configure changes a setting of a topic, and returns when the broker goes by it.
func (s *stage) configure(topic, name, value string) {
	s.t.Helper()
	answers, err := s.kafka.AlterTopicConfigs(s.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
	if err == nil {
		_, err = answers.On(topic, nil)
	}
	for _, a := range answers {
		err = errors.Join(err, a.Err)
	}
	if err != nil {
		s.t.Fatalf("setting %s of topic %s: %v", name, topic, err)
	}
	eventually(s.t, 10*time.Second, fmt.Sprintf("topic %s has %s=%s", topic, name, value), func() bool {
		answers, err := s.kafka.DescribeTopicConfigs(s.t.Context(), topic)
		if err != nil || len(answers) != 1 || answers[0].Err != nil {
			return false
		}
		for _, c := range answers[0].Configs {
			if c.Key == name && c.Value != nil {
				return *c.Value == value
			}
		}
		return false
	})
}

// row is one event for put. A nil key or payload is NULL, and headers are JSON text.
type row struct{ topic, key, payload, headers any }

// start runs the forwarder until it is ready.
func (s *stage) start(settings ...string) *process {
	s.t.Helper()
	p := s.world.start(settings...)
	p.awaitReady()
	return p
}

// put inserts rows in one transaction and returns their ids.
func (s *stage) put(rows ...row) []int64 {
	s.t.Helper()
	var ids []int64
	err := pgx.BeginFunc(s.t.Context(), s.conn, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		for _, r := range rows {
			batch.Queue("INSERT INTO outbox (topic, key, payload, headers) VALUES ($1, $2, $3, $4::text::jsonb) RETURNING id",
				r.topic, r.key, r.payload, r.headers).QueryRow(func(row pgx.Row) error {
				var id int64
				err := row.Scan(&id)
				ids = append(ids, id)
				return err
			})
		}
		return tx.SendBatch(s.t.Context(), batch).Close()
	})
	if err != nil {
		s.t.Fatalf("inserting: %v", err)
	}
	return ids
}

// sql executes a statement in the writer's session.
func (s *stage) sql(statement string, args ...any) {
	s.t.Helper()
	s.execute(s.conn, statement, args...)
}

// value reads one value with the writer's session.
func (s *stage) value(into any, query string, args ...any) {
	s.t.Helper()
	if err := s.conn.QueryRow(s.t.Context(), query, args...).Scan(into); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
}

// count is the number of records in a topic; -1 while the brokers do not say.
func (s *stage) count(topic string) int {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	ends, err := s.kafka.ListEndOffsets(ctx, topic)
	if err != nil || ends.Error() != nil {
		return -1
	}
	n := 0
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n
}

// arrive waits until the topic has n records, and fails on more.
func (s *stage) arrive(topic string, n int, within time.Duration) {
	s.t.Helper()
	got := 0
	deadline := time.Now().Add(within)
	for time.Now().Before(deadline) {
		if got = s.count(topic); got >= n {
			break
		}
		pause(s.t, 20*time.Millisecond)
	}
	if got != n {
		s.t.Fatalf("topic %s has %d records after %s, want %d", topic, got, within, n)
	}
}

// pause is the step between two looks at something that is waited for.
func pause(t *testing.T, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// records reads all that a topic holds, in the order of partition and offset.
func (s *stage) records(topic string) []*kgo.Record {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	want := s.count(topic)
	client, err := kgo.NewClient(append(s.opts, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	byPartition := map[int32][]*kgo.Record{}
	for n := 0; n < want; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			s.t.Fatalf("reading topic %s: %v", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			byPartition[r.Partition] = append(byPartition[r.Partition], r)
			n++
		})
	}
	var all []*kgo.Record
	for p := int32(0); len(byPartition) > 0; p++ {
		all = append(all, byPartition[p]...)
		delete(byPartition, p)
	}
	return all
}

// values lists the values of a key's records in their order, joined by commas.
func values(records []*kgo.Record, key string) string {
	var list []string
	for _, r := range records {
		if string(r.Key) == key {
			list = append(list, string(r.Value))
		}
	}
	return strings.Join(list, ",")
}

// header returns the value of a record's only header of that name.
func header(t *testing.T, r *kgo.Record, name string) string {
	t.Helper()
	var found []string
	for _, h := range r.Headers {
		if h.Key == name {
			found = append(found, string(h.Value))
		}
	}
	if len(found) != 1 {
		t.Fatalf("the record of key %q has %d headers %q, want one", r.Key, len(found), name)
	}
	return found[0]
}

// byID finds each record by its row's id, and fails on a row that was sent twice.
func byID(t *testing.T, records []*kgo.Record) map[int64]*kgo.Record {
	t.Helper()
	all := make(map[int64]*kgo.Record, len(records))
	for _, r := range records {
		id, err := strconv.ParseInt(header(t, r, "id"), 10, 64)
		if err != nil {
			t.Fatalf("the id header is no number: %v", err)
		}
		if all[id] != nil {
			t.Errorf("row %d was sent twice", id)
		}
		all[id] = r
	}
	return all
}

// asAdmin logs the test in where the broker asks for it.
func asAdmin(secret string) kgo.Opt {
	return kgo.SASL(plain.Auth{User: "admin", Pass: secret}.AsMechanism())
}

// grantWrite lets the user relay write a topic.
func (s *stage) grantWrite(topic string) {
	s.t.Helper()
	rule := kadm.NewACLs().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite).Allow("User:relay").AllowHosts("*")
	results, err := s.kafka.CreateACLs(s.t.Context(), rule)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		s.t.Fatalf("granting: %v", err)
	}
}
