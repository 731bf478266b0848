package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// table is an outbox in PostgreSQL.
type table struct {
	reader, deleter *pgx.Conn
	last            int64
}

func openTable(ctx context.Context, url string) (_ *table, err error) {
	t := &table{}
	if t.reader, err = pgx.Connect(ctx, url); err != nil {
		return nil, err
	}
	t.deleter, err = pgx.Connect(ctx, url)
	return t, err
}

func (t *table) close() {
	_ = t.reader.Close(context.Background())
	_ = t.deleter.Close(context.Background())
}

func (t *table) read(ctx context.Context, add func(int64, *kgo.Record)) error {
	rows, err := t.reader.Query(ctx, "SELECT id, topic, key, payload FROM outbox WHERE id > $1 ORDER BY id LIMIT $2", t.last, pageRows)
	if err != nil {
		return err
	}
	for rows.Next() {
		r := &kgo.Record{}
		if err := rows.Scan(&t.last, &r.Topic, &r.Key, &r.Value); err != nil {
			return err
		}
		r.Headers = []kgo.RecordHeader{{Key: "id", Value: fmt.Append(nil, t.last)}}
		add(t.last, r)
	}
	return rows.Err()
}

func (t *table) remove(ctx context.Context, ids []int64) error {
	_, err := t.deleter.Exec(ctx, "DELETE FROM outbox WHERE id = ANY($1)", ids)
	return err
}
