// Command pipe is the bare pipe that the forwarder is measured against: it reads an outbox by
// id, or by the time of the inserts in MongoDB, produces, and deletes by id once all of a page is
// acknowledged. It keeps no order through errors, misses rows that commit late, gives up at the
// first error, and is here only to show what the servers and their drivers can do without any of
// that.
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

	"github.com/twmb/franz-go/pkg/kgo"
)

// pageRows is the number of rows in a read and in a delete.
const pageRows = 5000

// outbox is what is read and deleted from, with ids of a type.
type outbox[ID any] interface {
	// read calls add for each of the next rows.
	read(ctx context.Context, add func(ID, *kgo.Record)) error
	remove(ctx context.Context, ids []ID) error
	close()
}

// page is a set of rows on their way.
type page[ID any] struct {
	ids   []ID
	acks  sync.WaitGroup
	mu    sync.Mutex
	error error
}

func (p *page[ID]) acked(_ *kgo.Record, err error) {
	if err != nil {
		p.mu.Lock()
		p.error = err
		p.mu.Unlock()
	}
	p.acks.Done()
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
	if strings.HasPrefix(url, "mongodb") {
		c, err := openCollection(url)
		if err != nil {
			return err
		}
		return forward(ctx, c, client)
	}
	t, err := openTable(ctx, url)
	if err != nil {
		return err
	}
	return forward(ctx, t, client)
}

func forward[ID any](ctx context.Context, o outbox[ID], client *kgo.Client) error {
	defer o.close()
	ctx, cancel := context.WithCancelCause(ctx)
	pages := make(chan *page[ID], 8)
	var deleter sync.WaitGroup
	deleter.Go(func() { cancel(remove(ctx, o, pages)) })
	err := read(ctx, o, client, pages)
	close(pages)
	deleter.Wait()
	return errors.Join(err, context.Cause(ctx))
}

func read[ID any](ctx context.Context, o outbox[ID], client *kgo.Client, pages chan<- *page[ID]) error {
	for {
		p := &page[ID]{}
		err := o.read(ctx, func(id ID, r *kgo.Record) {
			p.ids = append(p.ids, id)
			p.acks.Add(1)
			client.Produce(ctx, r, p.acked)
		})
		if err != nil {
			return err
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

func remove[ID any](ctx context.Context, o outbox[ID], pages <-chan *page[ID]) error {
	for p := range pages {
		p.acks.Wait()
		if p.error != nil {
			return p.error
		}
		if err := o.remove(ctx, p.ids); err != nil {
			return err
		}
	}
	return nil
}
