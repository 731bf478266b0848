package mongo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	// deleteTries bounds how often a delete is sent that another operation or a change of
	// primary got in the way of, before the caller waits for longer.
	deleteTries = 5
	// deleteBytes bounds the _ids of one command, which may have 16 MiB.
	deleteBytes = 4 << 20
)

// Delete implements lanes.Source. There are no xids, so began is never told.
func (s *Source) Delete(ctx context.Context, ids []int64, _ func(xid uint64)) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	docs := s.handles.docs(ids)
	// In the order of the index.
	slices.SortFunc(docs, func(a, b any) int { return compareIDs(a.(bson.RawValue), b.(bson.RawValue)) })
	for len(docs) > 0 {
		n, size := 0, 0
		for n < len(docs) && size < deleteBytes {
			size += len(docs[n].(bson.RawValue).Value)
			n++
		}
		if err := s.deleteSome(ctx, docs[:n]); err != nil {
			return fmt.Errorf("deleting %d documents of %s: %w", len(ids), s.Table(), err)
		}
		docs = docs[n:]
	}
	s.handles.deleted(ids)
	return nil
}

func compareIDs(a, b bson.RawValue) int {
	if a.Type != b.Type {
		return int(a.Type) - int(b.Type)
	}
	return strings.Compare(string(a.Value), string(b.Value))
}

func (s *Source) deleteSome(ctx context.Context, docs bson.A) (err error) {
	for try := range deleteTries {
		if try > 0 {
			s.retried.Add(1)
			s.log.Debug("deleting again", "count", len(docs), "err", err)
			if err := pause(ctx, time.Duration(try)*20*time.Millisecond); err != nil {
				return err
			}
		}
		if err = s.delete(ctx, docs); err == nil || !retriable(err) {
			return err
		}
	}
	return err
}

// DeletesRetried counts the deletes that were sent again because another operation or a change
// of primary got in their way.
func (s *Source) DeletesRetried() uint64 { return s.retried.Load() }

// deleteReply is the server's answer.
type deleteReply struct {
	OpTime struct {
		TS bson.Timestamp `bson:"ts"`
	} `bson:"opTime"`
	WriteErrors []struct {
		Code    int32  `bson:"code"`
		Message string `bson:"errmsg"`
	} `bson:"writeErrors"`
	ConcernError *struct {
		Code    int32  `bson:"code"`
		Message string `bson:"errmsg"`
	} `bson:"writeConcernError"`
}

// delete sends one command. It is no call of the driver's, which would not tell when the delete
// happened.
func (s *Source) delete(ctx context.Context, docs bson.A) error {
	var reply deleteReply
	err := s.outbox.Database().RunCommand(ctx, bson.D{
		{Key: "delete", Value: s.outbox.Name()},
		{Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: docs}}}}},
			{Key: "limit", Value: 0},
		}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}},
	}).Decode(&reply)
	switch {
	case err != nil:
		return err
	case len(reply.WriteErrors) > 0:
		return driver.CommandError{Code: reply.WriteErrors[0].Code, Message: reply.WriteErrors[0].Message}
	case reply.ConcernError != nil:
		return driver.CommandError{Code: reply.ConcernError.Code, Message: reply.ConcernError.Message}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if reply.OpTime.TS.After(s.deletes) {
		s.deletes = reply.OpTime.TS
	}
	return nil
}

// behind reports whether a snapshot is older than an acknowledged delete, which may be an empty
// one.
func (s *Source) behind(snapshot bson.Timestamp) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deletes.After(snapshot)
}
