package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/source"
)

// scan is what was found in the outbox before the change stream was read, and may be told again.
type scan struct {
	docs  map[string]bool // by docKey
	shown uint64          // the cluster time of the list
}

// brought reports whether the scan has brought a document of which the stream tells.
func (s *scan) brought(doc []byte, at uint64) bool {
	if at > s.shown {
		s.end()
	}
	return s.docs[string(doc)]
}

// end says that the stream is past the list.
func (s *scan) end() { s.docs = nil }

const (
	// scanPage and scanBytes bound what is read of a scan at once, one document beyond.
	scanPage  = 2048
	scanBytes = 4 << 20
)

// scanOutbox delivers what is in the outbox and is not told by the change stream c, which is about to be
// read and may have begun long before.
//
// What the stream does tell is left to it: some of that may be delivered and deleted already, by a
// process that died before the end of its scan, or deleted by its writer. The stream tells it in any
// case, and must not tell it behind what is younger.
func (d *Durable) scanOutbox(ctx context.Context, c *changes) error {
	// What the forwarder has by now need not be found; what is deleted meanwhile must not be.
	held := d.handles.numbers()
	list, shown, err := d.list(ctx)
	if err != nil {
		return fmt.Errorf("listing the documents of %s: %w", d.Table(), err)
	}
	d.scan = scan{docs: make(map[string]bool, len(list)), shown: clusterTime(shown)}
	for _, doc := range list {
		d.scan.docs[doc] = true
	}
	if len(list) > 0 {
		if err := d.lookAhead(ctx, c); err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(doc string) bool { return !d.scan.docs[doc] })
	}
	if len(list) > 0 {
		d.link.wait(fmt.Sprintf("%d documents that are in the outbox are delivered first", len(list)))
		d.Source.log.Info("the outbox is scanned for what the change stream does not tell", "collection", d.Table(), "count", len(list))
	}
	for page := range slices.Chunk(list, scanPage) {
		for len(page) > 0 {
			var events []*source.Event
			if events, page, err = d.found(ctx, page, held); err != nil {
				return fmt.Errorf("scanning %s: %w", d.Table(), err)
			}
			if err := d.log.Scan(ctx, events, false); err != nil {
				return err
			}
		}
	}
	if err := d.log.Scan(ctx, nil, true); err != nil {
		return err
	}
	d.log.EndSkip() // scan.brought knows better, by _id and time
	d.scanning.Store(true)
	return nil
}

// lookAhead takes out of the scan what the stream tells, and leaves the stream as it was.
func (d *Durable) lookAhead(ctx context.Context, c *changes) error {
	d.link.wait("the change stream is read up to now, to tell what the outbox alone has")
	ahead := d.changes(c.start)
	ahead.token = c.token
	defer ahead.close()
	for {
		got, ok, err := ahead.next(ctx)
		var invalidated *invalidatedError
		switch {
		case errors.As(err, &invalidated):
			return nil // the collection has ended, which the stream itself has to meet
		case err != nil:
			return err
		case !ok || clusterTime(got.at) > d.scan.shown:
			return nil
		}
		delete(d.scan.docs, string(docBytes(got.doc)))
	}
}

// list returns the docKeys of the outbox in its order, and the cluster time that they show. It is
// not older than what was deleted before.
func (d *Durable) list(ctx context.Context) (list []string, shown bson.Timestamp, err error) {
	if _, err := d.deleteSome(ctx, bson.A{}); err != nil {
		return nil, bson.Timestamp{}, fmt.Errorf("waiting for a majority: %w", err)
	}
	err = d.snapshot(ctx, func(ctx context.Context, session *driver.Session) error {
		list = nil
		opts := options.Find().SetSort(d.cfg.order()).SetProjection(d.cfg.projection(d.cfg.Fields.Seq)).SetBatchSize(walkBatch)
		if index := *d.index.Load(); index != "" {
			opts.SetHint(index)
		}
		cursor, err := d.collection().Find(ctx, bson.D{}, opts)
		if err != nil {
			return err
		}
		defer cursor.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the server ends it by itself
		if shown = session.SnapshotTime(); d.seen.beyond(shown) {
			return errBehind
		}
		for cursor.Next(ctx) {
			list = append(list, string(docBytes(cursor.Current)))
		}
		return cursor.Err()
	})
	return list, shown, err
}

// found reads the first of the documents, as far as they are still there, and returns the rest.
func (d *Durable) found(ctx context.Context, page []string, held map[string]int64) (events []*source.Event, rest []string, err error) {
	err = d.snapshot(ctx, func(ctx context.Context, _ *driver.Session) error {
		ids := make(bson.A, len(page))
		for i, doc := range page {
			ids[i] = docID(doc)
		}
		there := make(map[string]bool, len(page))
		cursor, err := d.collection().Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, options.Find().SetProjection(d.cfg.projection()))
		if err != nil {
			return err
		}
		defer cursor.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the server ends it by itself
		for cursor.Next(ctx) {
			there[string(docBytes(cursor.Current))] = true
		}
		if err := cursor.Err(); err != nil {
			return err
		}
		wanted := slices.DeleteFunc(slices.Clone(page), func(doc string) bool { return !there[doc] })
		if events, err = d.fetch(ctx, wanted, scanBytes); err != nil {
			return err
		}
		rest = wanted[len(events):]
		kept := events[:0]
		for i, ev := range events {
			id, was := held[wanted[i]]
			if was && len(d.handles.docs([]int64{id})) == 0 {
				continue // it was delivered since
			}
			ev.ID = d.handles.told([]byte(wanted[i]), ev.Key == nil, 0)
			kept = append(kept, ev)
		}
		events = kept
		return nil
	})
	return events, rest, err
}

// snapshot calls read in a snapshot session, again where its snapshot is of no use.
func (s *Source) snapshot(ctx context.Context, read func(context.Context, *driver.Session) error) (err error) {
	for try := range readTries {
		if try > 0 {
			if err := pause(ctx, time.Duration(try)*10*time.Millisecond); err != nil {
				return err
			}
		}
		if err = s.inSnapshot(ctx, read); err == nil || !retriable(err) && !errors.Is(err, errBehind) {
			return err
		}
	}
	return err
}

func (s *Source) inSnapshot(ctx context.Context, read func(context.Context, *driver.Session) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	session, err := s.client.StartSession(options.Session().SetSnapshot(true))
	if err != nil {
		return err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	return read(driver.NewSessionContext(ctx, session), session)
}
