package sink

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config says how to reach Kafka. There is no setting for acks, idempotence, the partitioner
// or a delivery timeout: every other value than the built-in one would weaken delivery.
type Config struct {
	// Brokers are the addresses to start from, as host:port.
	Brokers []string
	// ClientID names this process in the brokers' logs and quotas. Default "outbox-forwarder".
	ClientID string
	// Compression is none, gzip, snappy, lz4 or zstd. Default lz4.
	Compression string
	// TLS is used for every connection when it is not nil.
	TLS *tls.Config
	// SASL is used when its Mechanism is not empty.
	SASL SASL
	// MaxBatchBytes bounds a record batch of any topic before compression, and so the
	// largest record. A topic's own limit applies where it is smaller. Default 64 MiB,
	// which leaves the topics' limits to rule.
	MaxBatchBytes int
	// MaxInFlight is the number of records that the client holds; Submit blocks beyond it.
	// It must be above what the caller keeps in memory. Default 262144.
	MaxInFlight int
	// Linger is how long a record may wait for company while others are on the wire. With
	// little in flight records go out at once. Default 2 ms.
	Linger time.Duration
	// TopicMaxAge is how long knowledge about a topic is used before it is asked for again
	// in the background. Default 30 s.
	TopicMaxAge time.Duration
	// AskTimeout bounds one question to the brokers about topics. Default 5 s.
	AskTimeout time.Duration
	// Logger receives changes of state. Default slog.Default().
	Logger *slog.Logger
}

// SASL holds a user's credentials. It prints without the password.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
	User      string
	Password  string
}

// String names the mechanism and the user.
func (s SASL) String() string {
	if s.Mechanism == "" {
		return "no SASL"
	}
	return fmt.Sprintf("SASL %s as user %q", s.Mechanism, s.User)
}

// GoString keeps the password out of %#v.
func (s SASL) GoString() string { return s.String() }

// LogValue keeps the password out of structured logs.
func (s SASL) LogValue() slog.Value { return slog.StringValue(s.String()) }

// The words that Config accepts.
var (
	compressions = []string{"none", "gzip", "snappy", "lz4", "zstd"}
	mechanisms   = []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
)

// Bounds of the client's own settings.
const (
	// minBatchBytes is the smallest batch limit that the client takes.
	minBatchBytes = 512
	// maxRequestBytes is Kafka's socket.request.max.bytes: a broker closes the connection on
	// a larger request.
	maxRequestBytes = 100 << 20
	// requestOverhead covers what a produce request holds besides one batch.
	requestOverhead = 16 << 10
)

func (c Config) withDefaults() Config {
	if c.ClientID == "" {
		c.ClientID = "outbox-forwarder"
	}
	if c.Compression == "" {
		c.Compression = "lz4"
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = 64 << 20
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 1 << 18
	}
	if c.Linger == 0 {
		c.Linger = 2 * time.Millisecond
	}
	if c.TopicMaxAge == 0 {
		c.TopicMaxAge = 30 * time.Second
	}
	if c.AskTimeout == 0 {
		c.AskTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate returns all problems of the configuration joined, or nil. A zero field stands for
// its default.
func (c Config) Validate() error {
	c = c.withDefaults()
	var problems []error
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(format, args...))
	}
	if len(c.Brokers) == 0 {
		problem("brokers: none given; name at least one as host:port")
	}
	for _, b := range c.Brokers {
		if err := checkAddress(b); err != nil {
			problem("brokers: %q is not host:port: %w", b, err)
		}
	}
	if !slices.Contains(compressions, c.Compression) {
		problem("compression: %q is not one of %s", c.Compression, strings.Join(compressions, ", "))
	}
	switch s := c.SASL; {
	case s.Mechanism == "" && (s.User != "" || s.Password != ""):
		problem("sasl: a user or password is given without a mechanism; use one of %s", strings.Join(mechanisms, ", "))
	case s.Mechanism == "":
	case !slices.Contains(mechanisms, s.Mechanism):
		problem("sasl: mechanism %q is not one of %s", s.Mechanism, strings.Join(mechanisms, ", "))
	default:
		if s.User == "" {
			problem("sasl: mechanism %s needs a user", s.Mechanism)
		}
		if s.Password == "" {
			problem("sasl: mechanism %s needs a password", s.Mechanism)
		}
	}
	if c.MaxBatchBytes < minBatchBytes || c.MaxBatchBytes > maxRequestBytes-requestOverhead {
		problem("max batch bytes: %d is outside %d..%d", c.MaxBatchBytes, minBatchBytes, maxRequestBytes-requestOverhead)
	}
	if c.MaxInFlight < 1 {
		problem("max in flight: %d is not positive", c.MaxInFlight)
	}
	// The linger is paid by every record under load; a second would be a mistyped unit.
	if c.Linger < 0 || c.Linger > time.Second {
		problem("linger: %v is outside 0s..1s", c.Linger)
	}
	if c.TopicMaxAge < time.Second {
		problem("topic max age: %v is below 1s", c.TopicMaxAge)
	}
	if c.AskTimeout < 100*time.Millisecond {
		problem("ask timeout: %v is below 100ms", c.AskTimeout)
	}
	return errors.Join(problems...)
}

func checkAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if host == "" {
		return errors.New("the host is empty")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("the port %q is not a number from 1 to 65535", port)
	}
	return nil
}

// reached says in words what is connected to and how, without secrets.
func (c Config) reached() string {
	enc := "TLS off"
	if c.TLS != nil {
		enc = "TLS on"
	}
	return fmt.Sprintf("%s (%s, %s)", strings.Join(c.Brokers, ", "), enc, c.SASL)
}
