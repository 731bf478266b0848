package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/source"
)

const (
	firstSize = 1 << 10 // what a document is taken for before one was seen
	// oneAnswer is the largest answer of the server, roughly: what a step may hold beyond what
	// it asked for.
	oneAnswer = 16 << 20
)

// fetch reads the documents, in their order, in the session's snapshot. It ends with the event
// that passes the number of bytes.
//
// The server gives documents in the order of their _id, so the memory that a step takes is
// bounded by how many are asked for. A step that meets larger documents than expected is taken
// again with fewer of them.
func (s *Source) fetch(ctx context.Context, wanted []string, bytes int) ([]*source.Event, error) {
	events := make([]*source.Event, 0, len(wanted))
	size := 0
	for len(events) < len(wanted) && size < bytes {
		rest := wanted[len(events):]
		n := max(min(len(rest), (bytes-size)/s.avg+1), 1)
		got, complete, err := s.step(ctx, rest[:n], bytes-size+oneAnswer)
		if err != nil {
			return nil, err
		}
		if !complete {
			continue // s.avg says so by now
		}
		for _, ev := range got {
			events = append(events, ev)
			if size += ev.Size(); size >= bytes {
				break
			}
		}
	}
	return events, nil
}

// step reads some documents. It is not complete where they have more bytes than the limit.
func (s *Source) step(ctx context.Context, wanted []string, limit int) (events []*source.Event, complete bool, err error) {
	f := s.cfg.Fields
	place := make(map[string]int, len(wanted))
	ids := make(bson.A, len(wanted))
	for i, doc := range wanted {
		place[doc] = i
		ids[i] = docID(doc)
	}
	// One more than there are, so that the first answer ends the cursor.
	opts := options.Find().SetBatchSize(int32(len(wanted) + 1)).
		SetProjection(s.cfg.projection(f.Topic, f.Key, f.Payload, f.Headers, f.CreatedAt))
	cursor, err := s.collection().Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, opts)
	if err != nil {
		return nil, false, err
	}
	defer cursor.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the server ends it by itself
	events = make([]*source.Event, len(wanted))
	found, size := 0, 0
	var key []byte
	for cursor.Next(ctx) {
		id := cursor.Current.Lookup("_id")
		key = append(append(key[:0], byte(id.Type)), id.Value...)
		ev := s.decoder.event(cursor.Current)
		i, ok := place[string(key)]
		if !ok || events[i] != nil {
			return nil, false, fmt.Errorf("the server gave the document %s, which was not asked for", ev.Ref)
		}
		events[i] = ev
		found++
		if size += ev.Size(); size > limit && len(wanted) > 1 {
			s.avg = max(size/found, s.avg+1)
			return nil, false, nil
		}
	}
	if err := cursor.Err(); err != nil {
		return nil, false, err
	}
	if found != len(wanted) {
		return nil, false, fmt.Errorf("the server gave %d documents of %d in one snapshot", found, len(wanted))
	}
	s.avg = max(size/found, s.avg/2, 1)
	return events, true, nil
}
