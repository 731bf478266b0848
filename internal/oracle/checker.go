package oracle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// CheckerConfig configures a Checker.
type CheckerConfig struct {
	// Brokers are the seeds, each host:port. Required.
	Brokers []string
	// Topics are read from their start, all partitions. Required.
	Topics []string
	// Stopwatch is the one of the Writer, or nil when no latency is wanted.
	Stopwatch *Stopwatch
	// History is how many of a key's newest events are remembered to compare repeats with:
	// 0 remembers all, at 8 bytes an event.
	History int
}

// Checker consumes topics and judges them as it goes. It is safe for concurrent use.
type Checker struct {
	cfg    CheckerConfig
	client *kgo.Client
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	judge *judge
	next  map[string]map[int32]int64 // the offset to read next
	moved chan struct{}              // closed and replaced when next has moved
}

// StartChecker starts to consume. Stop ends it.
func StartChecker(cfg CheckerConfig) (*Checker, error) {
	if len(cfg.Brokers) == 0 || len(cfg.Topics) == 0 {
		return nil, errors.New("a checker needs brokers and topics")
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID("oracle"),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(250*time.Millisecond),
		kgo.FetchMinBytes(1),
		// A topic that was just created is found at once, and so is a broker that came back.
		kgo.MetadataMinAge(100*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
	)
	if err != nil {
		return nil, fmt.Errorf("making the checker's client: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Checker{
		cfg: cfg, client: client, cancel: cancel, done: make(chan struct{}),
		judge: newJudge(cfg.History), next: map[string]map[int32]int64{}, moved: make(chan struct{}),
	}
	go c.consume(ctx)
	return c, nil
}

// Stop ends the consumer and waits for it. The verdicts stay available.
func (c *Checker) Stop() {
	c.cancel()
	<-c.done
	c.client.Close()
}

func (c *Checker) consume(ctx context.Context) {
	defer close(c.done)
	var r record
	for {
		fetches := c.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		c.mu.Lock()
		fetches.EachRecord(func(k *kgo.Record) {
			r.set(k)
			if e, first := c.judge.observe(&r); first {
				c.cfg.Stopwatch.consume(e.N, now)
			}
			offsets := c.next[k.Topic]
			if offsets == nil {
				offsets = map[int32]int64{}
				c.next[k.Topic] = offsets
			}
			offsets[k.Partition] = k.Offset + 1
		})
		close(c.moved)
		c.moved = make(chan struct{})
		c.mu.Unlock()
	}
}

func (r *record) set(k *kgo.Record) {
	*r = record{topic: k.Topic, partition: k.Partition, offset: k.Offset, key: k.Key, value: k.Value, headers: r.headers[:0]}
	for _, h := range k.Headers {
		r.headers = append(r.headers, header{h.Key, h.Value})
		if h.Key == "id" {
			r.id = string(h.Value)
			r.idHeaders++
		}
	}
}

// Snapshot judges what was received so far.
func (c *Checker) Snapshot() Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.judge.verdict()
	v.Latency = c.cfg.Stopwatch.Total()
	return v
}

// Verdict reads the topics to their present end and holds what was received against the
// ledger.
func (c *Checker) Verdict(ctx context.Context, ledger Ledger) (Verdict, error) {
	if err := c.CatchUp(ctx); err != nil {
		return Verdict{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.judge.final(ledger)
	v.Latency = c.cfg.Stopwatch.Total()
	return v, nil
}

// CatchUp returns when everything has been consumed that is in the topics now.
func (c *Checker) CatchUp(ctx context.Context) error {
	ends, err := listEnds(ctx, kadm.NewClient(c.client), c.cfg.Topics...)
	if err != nil {
		return err
	}
	for {
		c.mu.Lock()
		behind, moved := c.behind(ends), c.moved
		c.mu.Unlock()
		if behind == "" {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("reading the topics to their end (%s): %w", behind, ctx.Err())
		}
	}
}

func (c *Checker) behind(ends kadm.ListedOffsets) string {
	behind := ""
	ends.Each(func(end kadm.ListedOffset) {
		if at := c.next[end.Topic][end.Partition]; at < end.Offset {
			behind = fmt.Sprintf("%s/%d is read up to %d of %d", end.Topic, end.Partition, at, end.Offset)
		}
	})
	return behind
}

// Received is the number of records consumed so far.
func (c *Checker) Received() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.judge.sum.received
}

// WaitReceived returns when at least n records have been consumed.
func (c *Checker) WaitReceived(ctx context.Context, n int64) error {
	for {
		c.mu.Lock()
		got, moved := c.judge.sum.received, c.moved
		c.mu.Unlock()
		if got >= n {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d records, %d received: %w", n, got, ctx.Err())
		}
	}
}
