// Command pipe is the bare pipe that the forwarder is measured against: it reads an outbox by
// id, produces, and deletes by id once all of a page is acknowledged. It keeps no order
// through errors, misses rows that commit late, gives up at the first error, and is here only
// to show what the two servers and their drivers can do without any of that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// pageRows is the number of rows in a read and in a delete.
const pageRows = 5000

// page is a set of rows on their way.
type page struct {
	ids   []int64
	acks  sync.WaitGroup
	mu    sync.Mutex
	error error
}

func main() {
	url := flag.String("source-url", "", "URL of the database")
	brokers := flag.String("brokers", "", "brokers, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *url, strings.Split(*brokers, ","))
	asked := ctx.Err() != nil
	stop()
	if err != nil && !asked {
		fmt.Fprintln(os.Stderr, "pipe:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string, brokers []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.MaxBufferedRecords(100_000), kgo.ProducerLinger(2*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	pages := make(chan *page, 8)
	var deleter sync.WaitGroup
	deleter.Go(func() { cancel(remove(ctx, url, pages)) })
	err = read(ctx, url, client, pages)
	close(pages)
	deleter.Wait()
	return errors.Join(err, context.Cause(ctx))
}

func read(ctx context.Context, url string, client *kgo.Client, pages chan<- *page) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for last := int64(0); ; {
		rows, err := conn.Query(ctx, "SELECT id, topic, key, payload FROM outbox WHERE id > $1 ORDER BY id LIMIT $2", last, pageRows)
		if err != nil {
			return err
		}
		p := &page{}
		for rows.Next() {
			r := &kgo.Record{}
			if err := rows.Scan(&last, &r.Topic, &r.Key, &r.Value); err != nil {
				return err
			}
			r.Headers = []kgo.RecordHeader{{Key: "id", Value: fmt.Append(nil, last)}}
			p.ids = append(p.ids, last)
			p.acks.Add(1)
			client.Produce(ctx, r, p.acked)
		}
		if rows.Err() != nil {
			return rows.Err()
		}
		if len(p.ids) == 0 {
			time.Sleep(5 * time.Millisecond)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		select {
		case pages <- p:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *page) acked(_ *kgo.Record, err error) {
	if err != nil {
		p.mu.Lock()
		p.error = err
		p.mu.Unlock()
	}
	p.acks.Done()
}

func remove(ctx context.Context, url string, pages <-chan *page) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for p := range pages {
		p.acks.Wait()
		if p.error != nil {
			return p.error
		}
		if _, err := conn.Exec(ctx, "DELETE FROM outbox WHERE id = ANY($1)", p.ids); err != nil {
			return err
		}
	}
	return nil
}
