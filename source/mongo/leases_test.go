package mongo

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source/sourcetest"
)

func (w *world) members() *driver.Collection { return w.db.Collection("outbox" + membersSuffix) }

// leases opens the leases of the test's database until the test ends.
func (w *world) leases(change ...func(*Config)) *Leases {
	w.t.Helper()
	l := NewLeases(w.config(change...))
	w.t.Cleanup(l.Close)
	return l
}

// overdue lets a member's lease have ended a while ago.
func (w *world) overdue(id string) {
	w.t.Helper()
	past := bson.D{{Key: "$subtract", Value: bson.A{now, 1000}}}
	if _, err := w.members().UpdateOne(w.t.Context(), bson.D{{Key: "_id", Value: id}}, set(bson.D{{Key: "expiresAt", Value: past}})); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) memberIDs() (list []string) {
	w.t.Helper()
	if err := w.members().Distinct(w.t.Context(), "_id", bson.D{}).Decode(&list); err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

func (w *world) join(l *Leases, ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		if err := l.Join(w.t.Context(), lanes.Member{ID: id, Lanes: lanes.DefaultLanes}, sourcetest.LeaseTTL); err != nil {
			w.t.Fatal(err)
		}
	}
}

func round(t testing.TB, l *Leases, me string) (table lanes.Table, alive bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	table, alive, err := l.Round(ctx, lanes.Member{ID: me}, sourcetest.LeaseTTL, nil)
	if err != nil {
		t.Fatalf("the round of %s: %v", me, err)
	}
	return table, alive
}

func TestLeases(t *testing.T) {
	t.Parallel()
	sourcetest.Leases(t, func(t *testing.T) sourcetest.LeaseStore {
		w := newWorld(t)
		return sourcetest.LeaseStore{
			Open:    func() lanes.Leases { return w.leases() },
			Overdue: w.overdue,
			Remove: func(id string) {
				if _, err := w.members().DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}}); err != nil {
					t.Fatal(err)
				}
			},
			MakeAnew: func(lane int) {
				shares := w.db.Collection("outbox" + lanesSuffix)
				id := bson.D{{Key: "_id", Value: int32(lane)}}
				if _, err := shares.DeleteOne(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				if _, err := shares.UpdateOne(t.Context(), id, set(bson.D{
					{Key: "owner", Value: nil}, {Key: "epoch", Value: int64(0)}, {Key: "since", Value: now},
				}), options.UpdateOne().SetUpsert(true)); err != nil {
					t.Fatal(err)
				}
			},
			Members: w.memberIDs,
			Owned: func() int {
				n, err := w.db.Collection("outbox"+lanesSuffix).CountDocuments(t.Context(), bson.D{{Key: "owner", Value: bson.D{{Key: "$ne", Value: nil}}}})
				if err != nil {
					t.Fatal(err)
				}
				return int(n)
			},
		}
	})
}

// TestLeaseRenewalUnderWay: a member whose renewal has not committed yet is not removed, and
// nobody waits for it for long.
func TestLeaseRenewalUnderWay(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{true, false} {
		w := newWorld(t)
		a := w.leases()
		w.join(a, "a", "b")
		w.overdue("b")
		session, err := w.client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		defer session.EndSession(context.Background())
		if err := session.StartTransaction(); err != nil {
			t.Fatal(err)
		}
		renewal := driver.NewSessionContext(t.Context(), session)
		if _, err := w.members().UpdateOne(renewal, bson.D{{Key: "_id", Value: "b"}}, set(bson.D{{Key: "expiresAt", Value: after(time.Minute)}})); err != nil {
			t.Fatal(err)
		}
		if table, alive := round(t, a, "a"); !alive || len(table.Members) != 2 {
			t.Errorf("while the renewal is under way: alive %v, members %v", alive, table.Members)
		}
		want := []string{"a", "b"}
		if commits {
			err = session.CommitTransaction(renewal)
		} else {
			err = session.AbortTransaction(renewal)
			want = want[:1]
		}
		if err != nil {
			t.Fatal(err)
		}
		if table, _ := round(t, a, "a"); len(table.Members) != len(want) || !slices.Equal(w.memberIDs(), want) {
			t.Errorf("commits %v: %v, in the database %v", commits, table.Members, w.memberIDs())
		}
	}
}

// TestLeaseExpiry: a renewal gives the lease from the start of its request on, at least, by the
// server's clock.
func TestLeaseExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.leases()
	w.join(a, "a")
	w.overdue("a")
	begun := time.Now()
	round(t, a, "a")
	var m struct {
		Expires time.Time `bson:"expiresAt"`
		Started time.Time `bson:"startedAt"`
	}
	if err := w.members().FindOne(t.Context(), bson.D{}).Decode(&m); err != nil {
		t.Fatal(err)
	}
	// One clock on one machine, which the server reads in whole milliseconds.
	if m.Expires.Before(begun.Add(sourcetest.LeaseTTL - time.Millisecond)) {
		t.Errorf("expires %v after the request began", m.Expires.Sub(begun))
	}
	if m.Started.After(begun) {
		t.Errorf("started at %v", m.Started)
	}
}

// TestC51LeaseConnectionDies: a call that is not answered ends by its deadline, and the next one
// goes on.
func TestC51LeaseConnectionDies(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{})
	w.init()
	l := w.leases()
	w.join(l, "a")
	round(t, l, "a")
	member := m.Members()[0]
	for range 2 {
		if err := member.Pause(); err != nil {
			t.Fatal(err)
		}
		for name, call := range map[string]func(context.Context) error{
			"round": func(ctx context.Context) error {
				_, _, err := l.Round(ctx, lanes.Member{ID: "a"}, sourcetest.LeaseTTL, nil)
				return err
			},
			"take":    func(ctx context.Context) error { _, err := l.Take(ctx, "a", []lanes.Lease{{}}); return err },
			"release": func(ctx context.Context) error { return l.Release(ctx, "a", []lanes.Lease{{}}) },
			"join":    func(ctx context.Context) error { return l.Join(ctx, lanes.Member{ID: "b"}, sourcetest.LeaseTTL) },
			"leave":   func(ctx context.Context) error { return l.Leave(ctx, "b") },
		} {
			const deadline = 300 * time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			begun := time.Now()
			err := call(ctx)
			cancel()
			// Closing the connection may take another moment.
			if took := time.Since(begun); err == nil || took > deadline+patience/6 {
				t.Errorf("%s ended after %v with %v", name, took, err)
			}
		}
		if err := member.Resume(); err != nil {
			t.Fatal(err)
		}
		if _, alive := round(t, l, "a"); !alive {
			t.Error("the member is gone")
		}
	}
}
