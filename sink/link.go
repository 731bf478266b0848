package sink

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// A link is one generation of the Kafka client, with a producer id of its own.
//
// The client fixes a topic's batch limit and topic id when it first sees the topic. Its way
// to forget a topic starts the sequence numbers at zero again under the same producer id and
// epoch, and then the broker may take a new batch for a repeat of an old one and acknowledge
// it unwritten. So a topic whose limit or id changed moves to a new link instead, once it
// has nothing in flight, and the other topics follow as they fall idle.
type link struct {
	client *kgo.Client
	born   time.Time
	users  int         // topics that hold the link; guarded by links.mu
	ruined atomic.Bool // the client failed a record for a reason that only a new client may cure
}

// links holds the current link and closes those that nobody uses any more.
type links struct {
	open    func() (*kgo.Client, error)
	retire  func(*kgo.Client) // closes the client elsewhere; never blocks
	current atomic.Pointer[link]
	mu      sync.Mutex
}

// acquire returns the current link for a topic, which must release it.
func (l *links) acquire() *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	cur := l.current.Load()
	cur.users++
	return cur
}

func (l *links) release(old *link) {
	l.mu.Lock()
	old.users--
	unused := old.users == 0 && old != l.current.Load()
	l.mu.Unlock()
	if unused {
		l.retire(old.client)
	}
}

// renew makes a new link the current one, unless somebody else has replaced old already.
func (l *links) renew(old *link) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current.Load() != old {
		return nil
	}
	client, err := l.open()
	if err != nil {
		return fmt.Errorf("opening a new kafka client: %w", err)
	}
	l.current.Store(&link{client: client, born: time.Now()})
	if old != nil && old.users == 0 {
		l.retire(old.client)
	}
	return nil
}

// clientOptions are the client's settings that every link shares.
func clientOptions(cfg Config, batchLimit func(topic string) int32, part kgo.Partitioner, h *health) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID(cfg.ClientID),
		kgo.WithLogger(clientLog{cfg.Logger}),
		kgo.WithHooks(h),
		kgo.DisableClientMetrics(),

		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(part),
		kgo.ProducerBatchCompression(codec(cfg.Compression)),
		kgo.ProducerBatchMaxBytesFn(batchLimit),
		kgo.BrokerMaxWriteBytes(maxRequestBytes),
		kgo.MaxBufferedRecords(cfg.MaxInFlight),
		kgo.ProducerLinger(cfg.Linger),
		// No record retries or delivery timeout are set: the client's defaults are
		// unlimited, and a record that is given up while in flight may be written twice.
		// A topic that vanishes is the exception: records for it fail after this many
		// answers, some seconds, which outlasts a broker that starts without its metadata.
		kgo.UnknownTopicRetries(20),
		kgo.ProducerOnDataLossDetected(h.lapse),

		// A leader that moved and a topic that was just created are seen within this time.
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MetadataMaxAge(time.Minute),
		kgo.DialTimeout(5 * time.Second),
		// A quiet outbox should not pay for a new connection with every event.
		kgo.ConnIdleTimeout(5 * time.Minute),
		kgo.RetryBackoffFn(backoff),
	}
	if cfg.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(cfg.TLS.Clone()))
	}
	if m := mechanism(cfg.SASL); m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	return opts
}

// backoff grows from 100 ms to 2 s: short enough that a restarted broker is used at once,
// long enough that an outage costs no CPU to speak of.
func backoff(fails int) time.Duration {
	const first, last = 100 * time.Millisecond, 2 * time.Second
	d := last
	if fails < 6 {
		d = min(first<<max(fails-1, 0), last)
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

func codec(name string) kgo.CompressionCodec {
	switch name {
	case "gzip":
		return kgo.GzipCompression()
	case "snappy":
		return kgo.SnappyCompression()
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	default:
		return kgo.NoCompression()
	}
}

func mechanism(s SASL) sasl.Mechanism {
	switch s.Mechanism {
	case "PLAIN":
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism()
	default:
		return nil
	}
}

// clientLog hands the client's warnings on as debug lines: the sink itself reports changes of
// state, and the client repeats a warning with every attempt.
type clientLog struct{ log *slog.Logger }

func (clientLog) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (c clientLog) Log(_ kgo.LogLevel, msg string, keyvals ...any) {
	c.log.Debug("kafka client: "+msg, keyvals...)
}
