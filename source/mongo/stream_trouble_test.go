package mongo

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
)

// testCommands lets a server fail by command.
var testCommands = servers.MongoConfig{Parameters: map[string]string{"enableTestCommands": "1"}}

// fail makes the server answer the next commands of these names on the world's outbox with an
// error; times 0 is for ever, and nil names end it.
func (w *world) fail(times, errorCode int, names ...string) {
	w.t.Helper()
	mode := any("alwaysOn")
	if times > 0 {
		mode = bson.D{{Key: "times", Value: times}}
	}
	if names == nil {
		mode = "off"
	}
	err := w.client.Database("admin").RunCommand(context.WithoutCancel(w.t.Context()), bson.D{
		{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: mode},
		{Key: "data", Value: bson.D{
			{Key: "failCommands", Value: names}, {Key: "errorCode", Value: errorCode},
			{Key: "namespace", Value: w.db.Name() + ".outbox"},
		}},
	}).Err()
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestStreamC56: a position that is not in the oplog any more ends in a new change stream and a
// read of the collection, at once and with one warning.
func TestStreamC56(t *testing.T) {
	t.Parallel()
	_, w := ownServer(t, testCommands)
	w.init()
	sink := newRecorder()
	st := w.stream(sink, nil)
	st.live()
	for i, c := range []int{historyLost, cappedPositionLost, fatalStreamError} {
		w.fail(1, c, "getMore")
		eventually(t, "a new change stream", func() bool { return st.Stats().Begun == uint64(i+2) })
		w.insert(doc(int32(i), "k", fmt.Sprint(i+1)))
		eventually(t, "the event", func() bool { return sink.count() == i+1 })
		st.live()
	}
	w.emptied()
	sink.check(t, map[string]int{"k": 3})
	if n := strings.Count(w.logged.String(), "not in the oplog any more"); n == 0 {
		t.Error("it was not said")
	}
}

// TestStreamPolls: while no change stream can be had the collection is read, and said why.
func TestStreamPolls(t *testing.T) {
	t.Parallel()
	_, w := ownServer(t, testCommands)
	w.init()
	sink := newRecorder()
	st := w.stream(sink, nil)
	st.live()
	w.fail(0, unauthorized, "aggregate", "getMore")
	eventually(t, "the change stream is lost", func() bool { return !st.Stats().Streaming })
	for i := range 20 {
		w.insert(doc(int32(i), "k", fmt.Sprint(i+1)))
	}
	eventually(t, "the events", func() bool { return sink.count() == 20 })
	eventually(t, "it is not ready", func() bool { return len(st.Unready()) == 1 })
	if got := st.Unready()[0]; !strings.Contains(got, "changeStream") || !strings.Contains(got, "grant a role") {
		t.Errorf("it is not ready for %q", got)
	}
	w.fail(0, 0)
	st.live()
	if got := st.Unready(); len(got) != 0 {
		t.Errorf("it is not ready for %q", got)
	}
	w.fail(0, 50, "aggregate", "getMore") // MaxTimeMSExpired: an interruption that lasts
	for i := 20; i < 40; i++ {
		w.insert(doc(int32(i), "k", fmt.Sprint(i+1)))
	}
	eventually(t, "the events", func() bool { return sink.count() == 40 })
	w.fail(0, 0)
	st.live()
	w.emptied()
	if repeats := sink.check(t, map[string]int{"k": 40}); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// TestStreamC59: a collection that is dropped, renamed or replaced ends the change stream, not the
// forwarding.
func TestStreamC59(t *testing.T) {
	t.Parallel()
	_, w := ownServer(t, servers.MongoConfig{})
	w.init()
	sink := newRecorder()
	st := w.stream(sink, nil)
	st.live()
	n := 0
	add := func(collection string) {
		t.Helper()
		n++
		if _, err := w.db.Collection(collection).InsertOne(t.Context(), doc(int32(n), "k", fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rename := func(from, to string, drop bool) error {
		return w.client.Database("admin").RunCommand(t.Context(), bson.D{
			{Key: "renameCollection", Value: w.db.Name() + "." + from}, {Key: "to", Value: w.db.Name() + "." + to}, {Key: "dropTarget", Value: drop},
		}).Err()
	}
	for _, what := range []struct {
		name string
		do   func()
	}{
		{"the collection was dropped", func() { must(w.outbox.Drop(t.Context())) }},
		{"the collection was renamed", func() { must(rename("outbox", "old", false)) }},
		{"another collection was renamed to be the outbox", func() {
			must(Init(t.Context(), w.config(func(c *Config) { c.Collection = "other" })))
			add("other")
			must(rename("other", "outbox", true))
		}},
		{"the database was dropped", func() { must(w.db.Drop(t.Context())) }},
	} {
		streams := st.Stats().Begun
		what.do()
		begun := time.Now()
		eventually(t, what.name, func() bool { return st.Stats().Begun > streams }) // by more than one where the new stream tells of it again
		w.init()
		add("outbox")
		eventually(t, "events after "+what.name, func() bool { return sink.count() == n })
		t.Logf("%s: delivered after %v", what.name, time.Since(begun))
		st.live()
		if !strings.Contains(w.logged.String(), what.name) {
			t.Logf("%q was not said", what.name)
		}
	}
	w.emptied()
	if repeats := sink.check(t, map[string]int{"k": n}); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
}

// TestStreamLargest: a change stream tells of the largest documents that there can be.
func TestStreamLargest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.feed()
	before := f.Stats()
	empty, err := bson.Marshal(doc("large", "k", bson.Binary{}))
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 16<<20-len(empty))
	w.insert(doc("large", "k", bson.Binary{Data: payload}))
	if events := f.memory(1); len(events[0].Payload) != len(payload) {
		t.Errorf("%d bytes", len(events[0].Payload))
	}
	if after := f.Stats(); after.TableReads != before.TableReads || after.Begun != 1 {
		t.Errorf("it was read: %+v", after)
	}
}

// TestStreamTooLarge: a document that a change stream cannot tell of, for its _id is in each event
// several times, is read from the collection, and the ones behind it are told.
func TestStreamTooLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sink := newRecorder()
	st := w.stream(sink, nil)
	st.live()
	w.insert(doc(strings.Repeat("i", 7<<20), "k", "1"))
	eventually(t, "the large document", func() bool { return sink.count() == 1 })
	st.live()
	w.insert(doc("small", "k", "2"))
	eventually(t, "the one behind it", func() bool { return sink.count() == 2 })
	w.emptied()
	sink.check(t, map[string]int{"k": 2})
	if got := st.Stats(); got.Begun != 2 {
		t.Errorf("%+v", got)
	}
}

// moreOf returns what waits for a hundred further events.
func moreOf(t *testing.T, sink *recorder) func() {
	return func() {
		t.Helper()
		at := sink.count()
		eventually(t, "more events", func() bool { return sink.count() >= at+100 })
	}
}

func noError(t *testing.T) func(error) {
	return func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// troublePrimaries lets the primary step down, kills one, and silences one for a while. After each
// of them, more waits until events flow.
func troublePrimaries(t *testing.T, m *servers.Mongo, more func()) {
	t.Helper()
	must := noError(t)
	more()
	must(m.StepDown(t.Context()))
	more()
	killed, err := m.Primary(t.Context())
	must(err)
	must(killed.Kill())
	more()
	must(killed.Start(t.Context()))
	paused, err := m.Primary(t.Context())
	must(err)
	must(paused.Pause())
	more()
	must(paused.Resume())
	more()
}

// TestStreamC63Election: two replicas share the lanes and stream while the primary steps down, is
// killed, is silent and comes back. Nothing is lost, each key stays in order, and all goes on by
// itself.
func TestStreamC63Election(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{Members: 3})
	w.init()
	sink := newRecorder()
	var streams []*streaming
	for range 2 {
		l := w.leases()
		k := lanes.NewKeeper(lanes.KeeperConfig{Host: "r", TTL: 5 * time.Second, Logger: w.logged.logger()}, l, lanes.DefaultLanes)
		streams = append(streams, w.stream(sink, k))
	}
	ws := w.startWriters(4, 12)
	troublePrimaries(t, m, moreOf(t, sink))
	written := ws.stop()
	w.emptied()
	repeats := sink.check(t, written)
	t.Logf("%d events, %d repeats", sink.count(), repeats)
	for _, st := range streams {
		st.live()
		stats := st.Stats()
		t.Logf("%+v", stats)
		if stats.Begun+stats.Resumed < 2 {
			t.Errorf("nothing happened to the change stream: %+v", stats)
		}
	}
}

// TestStreamC69: a change stream needs one right more than polling, and no other.
func TestStreamC69(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{Auth: true})
	w.init()
	login := func(name string, outbox ...string) func(*Config) {
		t.Helper()
		privilege := func(collection string, actions ...string) bson.D {
			return bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "app"}, {Key: "collection", Value: collection}}}, {Key: "actions", Value: actions}}
		}
		for _, command := range []bson.D{
			{{Key: "createRole", Value: name}, {Key: "roles", Value: bson.A{}}, {Key: "privileges", Value: bson.A{
				privilege("outbox", outbox...), privilege("outbox_members", "find", "insert", "update", "remove"), privilege("outbox_lanes", "find", "update"),
			}}},
			{{Key: "createUser", Value: name}, {Key: "pwd", Value: "hunter2"}, {Key: "roles", Value: bson.A{name}}},
		} {
			if err := w.client.Database("admin").RunCommand(t.Context(), command).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return func(c *Config) { c.URL = m.URLAs(name+":hunter2", "app") }
	}
	polls := login("polls", "find", "remove")
	w.open(polls)
	_, err := OpenStream(t.Context(), w.config(polls))
	wantProblem(t, setupProblems(t, err), "user polls may not changeStream in collection app.outbox", "grant a role", `actions: ["changeStream"]`)
	sink := newRecorder()
	w.stream(sink, nil, login("streams", "find", "remove", "changeStream")).live()
	w.insert(doc("a", "k", "1"))
	eventually(t, "the event", func() bool { return sink.count() == 1 })
	w.emptied()
}

// TestStreamStandalone: a server without a replica set has no change streams.
func TestStreamStandalone(t *testing.T) {
	t.Parallel()
	_, w := ownServer(t, servers.MongoConfig{Standalone: true})
	_, err := OpenStream(t.Context(), w.config())
	wantProblem(t, setupProblems(t, err), "no member of a replica set", "--replSet")
}
