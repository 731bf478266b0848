package mongo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
	"github.com/outbox-forwarder/forwarder/source/sourcetest"
)

// TestNothingThere: everything that is missing is said at once.
func TestNothingThere(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	_, err := Open(t.Context(), w.config())
	problems := setupProblems(t, err)
	for _, name := range []string{"outbox:", "outbox_members,", "outbox_lanes,"} {
		wantProblem(t, problems, "there is no collection "+w.db.Name()+"."+name, "forwarder init")
	}
	if _, err := ReadOverview(t.Context(), w.config()); len(setupProblems(t, err)) != 3 {
		t.Errorf("an overview of nothing: %v", err)
	}
}

// TestWrongCollections: what is there and cannot be an outbox.
func TestWrongCollections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.db.CreateView(t.Context(), "view", "outbox", driver.Pipeline{}); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), w.config(func(c *Config) { c.Collection = "view" }))
	wantProblem(t, setupProblems(t, err), ".view is a view")
	if err := Init(t.Context(), w.config(func(c *Config) { c.Collection = "view" })); len(setupProblems(t, err)) == 0 {
		t.Error("a view became an outbox")
	}
	for name, index := range map[string]driver.IndexModel{
		"none":    {},
		"order":   {Keys: bson.D{{Key: "_id", Value: 1}, {Key: "seq", Value: 1}}},
		"partial": {Keys: w.config().withDefaults().indexKeys(), Options: options.Index().SetPartialFilterExpression(bson.D{{Key: "topic", Value: "a"}})},
		"sparse":  {Keys: w.config().withDefaults().indexKeys(), Options: options.Index().SetSparse(true)},
		"hidden":  {Keys: w.config().withDefaults().indexKeys(), Options: options.Index().SetHidden(true)},
		"down":    {Keys: bson.D{{Key: "seq", Value: 1}, {Key: "_id", Value: -1}}},
	} {
		if err := w.outbox.Indexes().DropAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if index.Keys != nil {
			if _, err := w.outbox.Indexes().CreateOne(t.Context(), index); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		_, err := Open(t.Context(), w.config())
		wantProblem(t, setupProblems(t, err), "no index on seq and _id", "createIndex")
	}
	shares := w.db.Collection("outbox" + lanesSuffix)
	if _, err := shares.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 7}}); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), w.config())
	wantProblem(t, setupProblems(t, err), "has 255 lanes", "power of two")
}

// TestValidate finds everything that is wrong without connecting.
func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"no database": {Config{URL: "mongodb://h"}, []string{"database: neither"}},
		"names": {Config{URL: "mongodb://h/a%20b", Database: "a b", Collection: "system.x", Lanes: 3, Timeout: 1},
			[]string{`"a b"`, `"system.x"`, "lanes: 3", "timeout"}},
		"fields": {Config{URL: "mongodb://h/app", Fields: Fields{Topic: "a.b", Key: "$k", Payload: "x", Headers: "x", CreatedAt: "_id"}},
			[]string{"fields.topic", "fields.key", "fields.headers", "fields.createdAt", "fields.seq"}},
	} {
		err := c.cfg.Validate()
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: no %s in: %v", name, want, err)
			}
		}
	}
	good := Config{URL: "mongodb://u:p%40@h1,h2/app?replicaSet=rs0"}
	if err := good.Validate(); err != nil || good.withDefaults().Database != "app" {
		t.Errorf("database %q: %v", good.withDefaults().Database, err)
	}
}

// TestURLProblems: a string that cannot be used is a SetupError, and nothing of it is shown.
func TestURLProblems(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://u:hunter2@h/app", "mongodb://u:hunter2@h:port/app", "mongodb://u:hun/ter2@h/app", "mongodb://u:hunter2@h/app?w=hunter2&ssl=hunter2",
		"mongodb://u:hunter2@/app", "mongodb://u:hun%ter2@h/app", "hunter2",
	} {
		cfg := Config{URL: url, Database: "app", Timeout: time.Second}
		for call, err := range map[string]error{
			"open": func() error { _, err := Open(t.Context(), cfg); return err }(),
			"init": Init(t.Context(), cfg),
			"join": NewLeases(cfg).Join(t.Context(), lanes.Member{ID: "a"}, time.Second),
		} {
			if text := fmt.Sprint(setupProblems(t, err)); strings.Contains(text, "hunter2") || strings.Contains(text, "ter2") {
				t.Errorf("%s %q tells: %s", call, url, text)
			}
		}
	}
}

// TestURLNamesAFile: a file that is not there is named.
func TestURLNamesAFile(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), Config{URL: "mongodb://u:hunter2@h/app?tls=true&tlsCAFile=/absent.pem"})
	wantProblem(t, setupProblems(t, err), "/absent.pem")
}

// TestServerIsAway: a server that cannot be reached may come back, and nothing of the login is
// shown.
func TestServerIsAway(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"mongodb://u:hunter2@127.0.0.1:1/app", "mongodb://u:hunter2@127.0.0.1:1,127.0.0.1:2/app?replicaSet=rs0"} {
		_, err := Open(t.Context(), Config{URL: url, Timeout: 2 * time.Second})
		var setup *source.SetupError
		if err == nil || errors.As(err, &setup) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
	}
}

// TestStandalone: a server without a replica set is a matter of the setup, however it is named.
func TestStandalone(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{Standalone: true})
	addr := m.Members()[0].Addr()
	for _, url := range []string{
		"mongodb://" + addr + "/app", "mongodb://" + addr + "/app?directConnection=true", "mongodb://" + addr + "/app?replicaSet=rs0",
	} {
		cfg := w.config(func(c *Config) { c.URL, c.Timeout = url, 10*time.Second })
		_, err := Open(t.Context(), cfg)
		wantProblem(t, setupProblems(t, err), "no member of a replica set", "--replSet", "rs.initiate()")
		wantProblem(t, setupProblems(t, Init(t.Context(), cfg)), "no member of a replica set")
	}
	if types, err := collections(t.Context(), w.db, "outbox"); err != nil || len(types) != 0 {
		t.Errorf("created %v: %v", types, err)
	}
}

// TestWrongSet: a URL that names a replica set which its servers are not in.
func TestWrongSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	url := strings.Replace(w.url, "replicaSet=rs0", "replicaSet=other", 1)
	_, err := Open(t.Context(), w.config(func(c *Config) { c.URL, c.Timeout = url, 10*time.Second }))
	wantProblem(t, setupProblems(t, err), `"rs0"`, "replicaSet=other")
}

// TestSecondary: a URL that leads to a member that is not the primary is told so, and tried again.
func TestSecondary(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{Members: 3})
	w.init()
	primary, err := m.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range m.Members() {
		url := "mongodb://" + member.Addr() + "/app?directConnection=true"
		s, err := Open(t.Context(), w.config(func(c *Config) { c.URL = url }))
		var setup *source.SetupError
		switch {
		case member == primary && err != nil:
			t.Error(err)
		case member == primary:
			s.Close()
		case err == nil || errors.As(err, &setup) || !strings.Contains(err.Error(), "not the primary"):
			t.Errorf("%v", err)
		}
	}
	// What the URL prefers does not count: nothing is read from a secondary.
	s := w.open(func(c *Config) { c.URL += "&readPreference=secondary&readConcernLevel=local&w=1&retryWrites=false" })
	w.insert(doc("a", "k", "x"))
	eventually(t, "the document is read", func() bool { return len(read(t, s, all()).Events) == 1 })
}

// TestC70ShardedCluster: a mongos is refused by what it says of itself, and an old server too.
func TestC70ShardedCluster(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hello bson.D
		want  string
	}{
		"mongos": {bson.D{{Key: "isWritablePrimary", Value: true}, {Key: "msg", Value: "isdbgrid"}, {Key: "maxWireVersion", Value: 17}}, "sharded cluster"},
		"old":    {bson.D{{Key: "isWritablePrimary", Value: true}, {Key: "setName", Value: "rs0"}, {Key: "maxWireVersion", Value: 9}}, "MongoDB 5.0"},
		"good":   {bson.D{{Key: "isWritablePrimary", Value: true}, {Key: "setName", Value: "rs0"}, {Key: "maxWireVersion", Value: 17}}, ""},
	} {
		data, err := bson.Marshal(c.hello)
		if err != nil {
			t.Fatal(err)
		}
		var h hello
		if err := bson.Unmarshal(data, &h); err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(h.problems(), "\n"); (text == "") != (c.want == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestC69Rights: what the documentation lists is enough, and each right that is missing is named
// with where and how to give it.
func TestC69Rights(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{Auth: true})
	w.init()
	type privilege struct {
		collection string
		actions    []string
	}
	enough := []privilege{
		{"outbox", []string{"find", "remove"}},
		{"outbox_members", []string{"find", "insert", "update", "remove"}},
		{"outbox_lanes", []string{"find", "update"}},
	}
	n := 0
	login := func(privileges []privilege) (url string) {
		t.Helper()
		n++
		name := fmt.Sprintf("u%d", n)
		var list bson.A
		for _, p := range privileges {
			list = append(list, bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "app"}, {Key: "collection", Value: p.collection}}}, {Key: "actions", Value: p.actions}})
		}
		admin := w.client.Database("admin")
		for _, command := range []bson.D{
			{{Key: "createRole", Value: name}, {Key: "privileges", Value: list}, {Key: "roles", Value: bson.A{}}},
			{{Key: "createUser", Value: name}, {Key: "pwd", Value: "hunter2"}, {Key: "roles", Value: bson.A{name}}},
		} {
			if err := admin.RunCommand(t.Context(), command).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return m.URLAs(name+":hunter2", "app")
	}
	with := func(url string) Config { return w.config(func(c *Config) { c.URL = url }) }

	cfg := with(login(enough))
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w.insert(doc("a", "k", "x"))
	page := read(t, s, all())
	if _, _, err := s.Oldest(t.Context()); err != nil || len(page.Events) != 1 {
		t.Errorf("%d events: %v", len(page.Events), err)
	}
	if err := s.Delete(t.Context(), ids(page.Events), nil); err != nil {
		t.Error(err)
	}
	l := NewLeases(cfg)
	defer l.Close()
	w.join(l, "a", "b")
	w.overdue("b")
	table, alive := round(t, l, "a")
	got, err := l.Take(t.Context(), "a", table.Leases[:3])
	if err != nil || !alive || len(table.Members) != 1 || len(got) != 3 {
		t.Errorf("alive %v, members %v, took %v: %v", alive, table.Members, got, err)
	}
	if err := errors.Join(l.Release(t.Context(), "a", got), l.Leave(t.Context(), "a")); err != nil {
		t.Error(err)
	}
	if _, err := ReadOverview(t.Context(), cfg); err != nil {
		t.Error(err)
	}
	// It may create nothing, and is told who may.
	err = Init(t.Context(), w.config(func(c *Config) { c.URL, c.Collection = cfg.URL, "another" }))
	wantProblem(t, setupProblems(t, err), "cannot be created", "forwarder init --print")

	for i, p := range enough {
		for _, action := range p.actions {
			var less []privilege
			for j, q := range enough {
				var actions []string
				for _, a := range q.actions {
					if i != j || a != action {
						actions = append(actions, a)
					}
				}
				less = append(less, privilege{q.collection, actions})
			}
			_, err := Open(t.Context(), with(login(less)))
			problems := setupProblems(t, err)
			if len(problems) != 1 {
				t.Errorf("without %s on %s: %q", action, p.collection, problems)
			}
			wantProblem(t, problems, "may not "+action, "app."+p.collection, fmt.Sprintf(`actions: [%q]`, action))
		}
	}
	// The roles that the server comes with.
	if err := w.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "createUser", Value: "rw"}, {Key: "pwd", Value: "hunter2"},
		{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "app"}}}}}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := Init(t.Context(), with(m.URLAs("rw:hunter2", "app"))); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{"rw:wrong", "nobody:hunter2"} {
		_, err := Open(t.Context(), with(m.URLAs(wrong, "app")))
		wantProblem(t, setupProblems(t, err), "refuses the login")
		l := NewLeases(with(m.URLAs(wrong, "app")))
		defer l.Close()
		wantProblem(t, setupProblems(t, l.Join(context.Background(), lanes.Member{ID: "x"}, sourcetest.LeaseTTL)), "refuses the login")
	}
	_, err = Open(t.Context(), with(m.URLAs("", "app")))
	wantProblem(t, setupProblems(t, err), "asks for a login")
}
