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
func (s *Source) Delete(ctx context.Context, ids []int64, began func(xid uint64)) error {
	_, err := s.DeleteRows(ctx, ids, began)
	return err
}

// DeleteRows implements tail.Table: it is Delete, and returns how many documents it found. A
// delete that had to be sent again may have found more.
func (s *Source) DeleteRows(ctx context.Context, ids []int64, _ func(xid uint64)) (found int, err error) {
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
		deleted, err := s.deleteSome(ctx, docs[:n])
		if err != nil {
			return 0, fmt.Errorf("deleting %d documents of %s: %w", len(ids), s.Table(), err)
		}
		found += deleted
		docs = docs[n:]
	}
	s.handles.deleted(ids)
	return found, nil
}

func compareIDs(a, b bson.RawValue) int {
	if a.Type != b.Type {
		return int(a.Type) - int(b.Type)
	}
	return strings.Compare(string(a.Value), string(b.Value))
}

func (s *Source) deleteSome(ctx context.Context, docs bson.A) (n int, err error) {
	for try := range deleteTries {
		if try > 0 {
			s.retried.Add(1)
			s.log.Debug("deleting again", "count", len(docs), "err", err)
			if err := pause(ctx, time.Duration(try)*20*time.Millisecond); err != nil {
				return 0, err
			}
		}
		if n, err = s.delete(ctx, docs); err == nil || !retriable(err) {
			return n, err
		}
	}
	return 0, err
}

// DeletesRetried counts the deletes that were sent again because another operation or a change
// of primary got in their way.
func (s *Source) DeletesRetried() uint64 { return s.retried.Load() }

// deleteReply is the server's answer.
type deleteReply struct {
	N      int `bson:"n"`
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
func (s *Source) delete(ctx context.Context, docs bson.A) (n int, err error) {
	var reply deleteReply
	err = s.outbox.Database().RunCommand(ctx, bson.D{
		{Key: "delete", Value: s.outbox.Name()},
		{Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: docs}}}}},
			{Key: "limit", Value: 0},
		}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}},
	}).Decode(&reply)
	switch {
	case err != nil:
		return 0, err
	case len(reply.WriteErrors) > 0:
		return 0, driver.CommandError{Code: reply.WriteErrors[0].Code, Message: reply.WriteErrors[0].Message}
	case reply.ConcernError != nil:
		return 0, driver.CommandError{Code: reply.ConcernError.Code, Message: reply.ConcernError.Message}
	}
	s.seen.delete(reply.OpTime.TS)
	return reply.N, nil
}
