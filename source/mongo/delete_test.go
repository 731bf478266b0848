package mongo

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/outbox-forwarder/forwarder/internal/servers"
	"github.com/outbox-forwarder/forwarder/source"
)

// TestDelete removes what it is asked to, and only that, whether it is there or not.
func TestDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	w.many(0, 5000)
	events := read(t, s, all()).Events
	if err := s.Delete(t.Context(), ids(events[10:4096]), nil); err != nil {
		t.Fatal(err)
	}
	if n, low := w.count(bson.D{}), w.count(bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 10}}}}); n != 5000-4086 || low != 10 {
		t.Errorf("%d are left, %d of the first ten", n, low)
	}
	if err := s.Delete(t.Context(), ids(events[:20]), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), ids(events[4096:]), nil); err != nil || w.count(bson.D{}) != 0 {
		t.Errorf("%d are left: %v", w.count(bson.D{}), err)
	}
	if page := read(t, s, all()); len(page.Events) != 0 || s.handles.size() != 0 {
		t.Errorf("%d events, %d handles", len(page.Events), s.handles.size())
	}
}

// TestDeleteWhileItIsRead: a document that is deleted while a read is on its way, whose snapshot
// still shows it, is not read again.
func TestDeleteWhileItIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	w.many(0, 2000)
	q := all()
	q.Limit = 200
	seen := make(map[string]bool)
	for len(seen) < 2000 {
		page := read(t, s, q)
		for _, ev := range page.Events {
			if seen[ev.Ref] {
				t.Fatalf("%s was read twice", ev.Ref)
			}
			seen[ev.Ref] = true
		}
		// The next read is sent with these known, and races with their delete.
		done := q.Known
		q.Known = append(ids(page.Events), done...)
		var wg sync.WaitGroup
		wg.Go(func() {
			for len(done) > 0 {
				n := min(20, len(done))
				if err := s.Delete(t.Context(), done[:n], nil); err != nil {
					t.Error(err)
				}
				done = done[n:]
			}
		})
		q.Limit = 1 // for what is read here is not remembered
		for range 5 {
			for _, ev := range read(t, s, q).Events {
				if seen[ev.Ref] {
					t.Errorf("%s was read while it was known", ev.Ref)
				}
			}
		}
		q.Limit = 200
		wg.Wait()
		q.Known = ids(page.Events)
	}
}

// TestDeleteMeetsAWriter: a transaction that has a document delays its delete, and loses or
// breaks nothing.
func TestDeleteMeetsAWriter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	w.many(0, 3)
	events := read(t, s, all()).Events
	tx := w.begin()
	tx.change(1)
	short := w.open(func(c *Config) { c.Timeout = time.Second })
	again := read(t, short, all()).Events
	if err := short.Delete(t.Context(), ids(again), nil); err == nil {
		t.Error("the delete of a document that somebody changes ended")
	}
	deleted := make(chan error, 1)
	go func() { deleted <- s.Delete(context.Background(), ids(events), nil) }()
	if err := tx.session.AbortTransaction(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-deleted; err != nil || w.count(bson.D{}) != 0 {
		t.Errorf("%d are left: %v", w.count(bson.D{}), err)
	}
}

// TestDeletesAreRetried: a delete that meets a change of primary is sent again and counted, and
// the document is not read again meanwhile.
func TestDeletesAreRetried(t *testing.T) {
	t.Parallel()
	m, w := ownServer(t, servers.MongoConfig{Members: 3})
	w.init()
	s := w.open()
	for try := 0; s.DeletesRetried() == 0; try++ {
		if try == 10 {
			t.Fatal("no delete was sent again over 10 changes of primary")
		}
		w.many(1000*try, 1000)
		events := read(t, s, all()).Events
		if len(events) != 1000 {
			t.Fatalf("%d events", len(events))
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range events {
				if err := s.Delete(t.Context(), []int64{events[i].ID}, nil); err != nil {
					t.Error(err)
				}
			}
		})
		if err := m.StepDown(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if page := read(t, s, all()); len(page.Events) != 0 {
			t.Errorf("deleted, and read again: %s", refs(page.Events))
		}
	}
	t.Logf("%d were sent again", s.DeletesRetried())
}

// TestSnapshotBehind: a snapshot that does not show an acknowledged delete is not used.
func TestSnapshotBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	w.many(0, 10)
	page := read(t, s, all())
	if err := s.Delete(t.Context(), ids(page.Events[:1]), nil); err != nil {
		t.Fatal(err)
	}
	deleted := s.seen.deleted
	if deleted.IsZero() || s.seen.beyond(deleted) || !s.seen.beyond(bson.Timestamp{T: deleted.T - 1}) {
		t.Errorf("the delete is of %v", deleted)
	}
	s.seen.deleted.T += 1000
	if _, err := s.Read(t.Context(), all()); err == nil || !strings.Contains(err.Error(), errBehind.Error()) {
		t.Errorf("read from before the delete: %v", err)
	}
	s.seen.deleted.T -= 1000
	if got := fmt.Sprint(len(read(t, s, all()).Events)); got != "9" {
		t.Errorf("%s events", got)
	}
}

// TestGainedLanes: the first read of a lane shows at least what a majority had when it was sent.
func TestGainedLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	written := func() bson.Timestamp {
		t.Helper()
		session, err := w.client.StartSession()
		if err != nil {
			t.Fatal(err)
		}
		defer session.EndSession(t.Context())
		if _, err := w.db.Collection("other").InsertOne(driver.NewSessionContext(t.Context(), session), bson.D{}); err != nil {
			t.Fatal(err)
		}
		return *session.OperationTime()
	}
	q := all()
	for _, step := range []struct {
		lanes  []source.Lane
		gained bool
	}{
		{[]source.Lane{1, 2}, true}, {[]source.Lane{1, 2}, false}, {[]source.Lane{2}, false}, {[]source.Lane{1, 2}, true},
		{[]source.Lane{1, 2, 255}, true}, {nil, true}, {nil, false}, {[]source.Lane{}, false}, {nil, true},
	} {
		at := written()
		q.Lanes = step.lanes
		read(t, s, q)
		if gained := !s.seen.deleted.Before(at); gained != step.gained {
			t.Errorf("lanes %v: waits %v, for %v after a write at %v", step.lanes, gained, s.seen.deleted, at)
		}
	}
}
