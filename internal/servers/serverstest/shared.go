package serverstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// startLimit bounds the first start, which may have to fetch the server's programs.
const startLimit = 15 * time.Minute

// PostgresConfig is how the shared PostgreSQL is set up: it outlives no crash of the
// machine, so it does not wait for the disk.
func PostgresConfig() servers.PostgresConfig {
	return servers.PostgresConfig{Settings: map[string]string{
		"fsync": "off", "max_prepared_transactions": "20", "max_replication_slots": "50", "max_wal_senders": "50",
	}}
}

// shared is a server that the first caller starts. A start that went wrong is not tried
// again: every later test would wait for the same failure.
type shared struct {
	env   string // names a server to use instead
	start func(ctx context.Context) (io.Closer, string, error)

	mu      sync.Mutex
	done    bool
	server  io.Closer // nil for a server that is not ours
	address string
	err     error
}

var (
	sharedPostgres = &shared{env: PostgresEnv, start: func(ctx context.Context) (io.Closer, string, error) {
		p, err := servers.StartPostgres(ctx, PostgresConfig())
		if err != nil {
			return nil, "", err
		}
		return p, p.URL("postgres"), nil
	}}
	sharedKafka = &shared{env: KafkaEnv, start: func(ctx context.Context) (io.Closer, string, error) {
		k, err := servers.StartKafka(ctx, servers.KafkaConfig{})
		if err != nil {
			return nil, "", err
		}
		return k, k.Addr(), nil
	}}
	sharedMongo = &shared{env: MongoEnv, start: func(ctx context.Context) (io.Closer, string, error) {
		m, err := servers.StartMongo(ctx, servers.MongoConfig{})
		if err != nil {
			return nil, "", err
		}
		return m, m.URL(""), nil
	}}
)

func (s *shared) use(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done {
		s.done = true
		if s.address = os.Getenv(s.env); s.address == "" {
			ctx, cancel := context.WithTimeout(context.Background(), startLimit)
			defer cancel()
			s.server, s.address, s.err = s.start(ctx)
		}
	}
	if s.err != nil {
		t.Fatalf("getting the shared server (or set %s): %v", s.env, s.err)
	}
	return s.address
}

func (s *shared) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return nil
	}
	err := s.server.Close()
	s.server, s.err = nil, errors.New("the tests have ended")
	return err
}

// Postgres returns the connection URL of the shared PostgreSQL, as its superuser and with
// its database postgres. Tests that want tables ask for a Database.
func Postgres(t testing.TB) string {
	t.Helper()
	return sharedPostgres.use(t)
}

// Kafka returns the address of the shared broker.
func Kafka(t testing.TB) string {
	t.Helper()
	return sharedKafka.use(t)
}

// Mongo returns the connection string of the shared MongoDB, a replica set of one member.
// Tests that want collections ask for a MongoDatabase.
func Mongo(t testing.TB) string {
	t.Helper()
	return sharedMongo.use(t)
}

// Main runs the tests of a package, stops the shared servers, and then fails the run if a
// goroutine is left over. To be called from TestMain; it does not return.
func Main(m *testing.M, options ...goleak.Option) { os.Exit(Run(m, options...)) }

// Run is Main for a TestMain that has something to clean up: it returns the exit code.
func Run(m *testing.M, options ...goleak.Option) int {
	code := m.Run()
	for _, s := range []*shared{sharedPostgres, sharedKafka, sharedMongo} {
		if err := s.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping a shared server:", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, "the tests left goroutines behind:", err)
			code = 1
		}
	}
	return code
}
