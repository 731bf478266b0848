package mongo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

func TestMain(m *testing.M) { serverstest.Main(m) }

// patience bounds every wait for something that must happen: long enough for a busy machine,
// since only a failing test waits for all of it.
const patience = 30 * time.Second

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-tick.C
	}
}

// world is a test's own database, with a client to look at it.
type world struct {
	t      testing.TB
	url    string
	client *driver.Client
	db     *driver.Database
	outbox *driver.Collection
	logged *logText
	opened func() // called by durable when the outbox is open; nil for nothing
	held   string // the key of which durable's sink acknowledges nothing; empty for none
}

// newWorld makes a database with an outbox in it, as Init makes it.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := emptyWorld(t)
	w.init()
	return w
}

func emptyWorld(t testing.TB) *world {
	t.Helper()
	client, name := serverstest.MongoDatabase(t)
	return worldAt(t, serverstest.Mongo(t), client, name)
}

func worldAt(t testing.TB, url string, client *driver.Client, name string) *world {
	db := client.Database(name)
	return &world{t: t, url: url, client: client, db: db, outbox: db.Collection("outbox"), logged: &logText{}}
}

// ownServer starts servers that the test may stop, and returns a world in them, without an
// outbox.
func ownServer(t testing.TB, cfg servers.MongoConfig) (*servers.Mongo, *world) {
	t.Helper()
	m, err := servers.StartMongo(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := driver.Connect(options.Client().ApplyURI(m.URL("")).SetHeartbeatInterval(500 * time.Millisecond).SetConnectTimeout(2 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disconnect(client) })
	return m, worldAt(t, m.URL(""), client, "app")
}

func (w *world) config(change ...func(*Config)) Config {
	cfg := Config{URL: w.url, Database: w.db.Name(), Timeout: patience, Logger: w.logged.logger()}
	for _, c := range change {
		c(&cfg)
	}
	return cfg
}

func (w *world) init(change ...func(*Config)) {
	w.t.Helper()
	if err := Init(w.t.Context(), w.config(change...)); err != nil {
		w.t.Fatal(err)
	}
}

// open opens the source until the test ends.
func (w *world) open(change ...func(*Config)) *Source {
	w.t.Helper()
	s, err := Open(w.t.Context(), w.config(change...))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

// setupProblems returns the problems of the source.SetupError that the call must end with.
func setupProblems(t testing.TB, err error) []string {
	t.Helper()
	var setup *source.SetupError
	if !errors.As(err, &setup) {
		t.Fatalf("not a SetupError: %v", err)
	}
	return setup.Problems
}

// wantProblem checks that exactly one of the problems holds all the words.
func wantProblem(t testing.TB, problems []string, words ...string) {
	t.Helper()
	found := 0
	for _, p := range problems {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(p, word) }) {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d problems with %q in:\n%s", found, words, strings.Join(problems, "\n"))
	}
}

// doc is a document of the outbox.
func doc(id any, key any, payload any, more ...bson.E) bson.D {
	d := bson.D{{Key: "_id", Value: id}, {Key: "topic", Value: "orders"}, {Key: "key", Value: key}, {Key: "payload", Value: payload}, {Key: "seq", Value: bson.Timestamp{}}}
	for _, e := range more {
		i := slices.IndexFunc(d, func(have bson.E) bool { return have.Key == e.Key })
		switch {
		case i >= 0 && e.Value == nil:
			d = slices.Delete(d, i, i+1)
		case i >= 0:
			d[i] = e
		default:
			d = append(d, e)
		}
	}
	return d
}

// insert inserts documents one by one.
func (w *world) insert(docs ...bson.D) {
	w.t.Helper()
	for _, d := range docs {
		if _, err := w.outbox.InsertOne(w.t.Context(), d); err != nil {
			w.t.Fatal(err)
		}
	}
}

// many inserts n documents with the keys k0 to k9 in turn, with _ids from first on.
func (w *world) many(first, n int) {
	w.t.Helper()
	var docs []any
	for i := first; i < first+n; i++ {
		docs = append(docs, doc(int32(i), fmt.Sprintf("k%d", i%10), fmt.Sprint(i)))
	}
	if _, err := w.outbox.InsertMany(w.t.Context(), docs); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) count(filter any) int {
	w.t.Helper()
	n, err := w.outbox.CountDocuments(context.WithoutCancel(w.t.Context()), filter)
	if err != nil {
		w.t.Fatal(err)
	}
	return int(n)
}

// all is a read of everything.
func all() *source.Read { return &source.Read{Floor: lanes.Start, Limit: 1 << 20, Bytes: 1 << 30} }

func read(t testing.TB, s *Source, r *source.Read) *source.Page {
	t.Helper()
	page, err := s.Read(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for i, ev := range page.Events {
		if i > 0 && ev.ID <= page.Events[i-1].ID {
			t.Fatalf("the ids of a page do not rise: %d after %d", ev.ID, page.Events[i-1].ID)
		}
	}
	return page
}

func refs(events []*source.Event) string {
	var list []string
	for _, ev := range events {
		list = append(list, ev.Ref)
	}
	return strings.Join(list, " ")
}

func ids(events []*source.Event) (list []int64) {
	for _, ev := range events {
		list = append(list, ev.ID)
	}
	return list
}

// logText gathers a log.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// logger writes everything, from debug on.
func (l *logText) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
