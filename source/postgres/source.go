package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-forwarder/forwarder/lanes"
	"github.com/outbox-forwarder/forwarder/source"
)

// Source reads and deletes the rows of one outbox. Its methods are safe for concurrent use,
// but for Read, whose calls are serial.
type Source struct {
	cfg     Config
	pool    *pgxpool.Pool
	stmts   atomic.Pointer[statements]
	topics  map[string]string // interned, for Read
	stale   atomic.Bool       // the table may have changed: describe it before the next read
	retried atomic.Uint64     // deletes, see DeletesRetried
	log     *slog.Logger
}

var _ lanes.Source = (*Source)(nil)

// applicationName is what pg_stat_activity shows.
const applicationName = "outbox-forwarder"

// maxConns is for one reader, two deleters, and what looks at the table now and then.
const maxConns = 5

// Open connects to the database and checks the outbox. A source.SetupError lists what no retry
// mends; any other error may pass.
func Open(ctx context.Context, cfg Config) (*Source, error) {
	s, err := open(ctx, cfg)
	if err == nil {
		s.warnLeftover(ctx)
	}
	return s, err
}

func open(ctx context.Context, cfg Config) (*Source, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	pcfg, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, &source.SetupError{Problems: []string{"source.postgres.url: " + urlProblem(err)}}
	}
	pcfg.MaxConns = maxConns
	pcfg.MinConns = 0
	prepare(pcfg.ConnConfig, cfg)
	pcfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := settle(ctx, conn, cfg.Timeout); err != nil {
			return err
		}
		return settleQueue(ctx, conn)
	}
	pool, err := pgxpool.NewWithConfig(ctx, pcfg)
	if err != nil {
		return nil, fmt.Errorf("opening the connection pool: %w", err)
	}
	s := &Source{cfg: cfg, pool: pool, topics: make(map[string]string), log: cfg.Logger}
	if err := s.describe(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

// connect opens a single session.
func connect(ctx context.Context, cfg Config) (*pgx.Conn, error) {
	ccfg, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return nil, &source.SetupError{Problems: []string{"source.postgres.url: " + urlProblem(err)}}
	}
	prepare(ccfg, cfg)
	conn, err := pgx.ConnectConfig(ctx, ccfg)
	if err != nil {
		return nil, asSetup(fmt.Errorf("connecting to PostgreSQL: %w", err))
	}
	if err := settle(ctx, conn, cfg.Timeout); err != nil {
		_ = conn.Close(ctx) // the first error is the one to tell
		return nil, err
	}
	return conn, nil
}

func prepare(ccfg *pgx.ConnConfig, cfg Config) {
	ccfg.ConnectTimeout = min(cfg.Timeout, 10*time.Second)
	if ccfg.RuntimeParams["application_name"] == "" {
		ccfg.RuntimeParams["application_name"] = applicationName
	}
}

// settle gives a new session what every statement relies on, whatever the role's or the
// database's own settings are. It is a statement and not start-up parameters, which poolers
// refuse.
func settle(ctx context.Context, conn *pgx.Conn, timeout time.Duration) error {
	_, err := conn.Exec(ctx, `
		SELECT set_config(name, value, false) FROM (VALUES
			('statement_timeout', $1), ('lock_timeout', $1), ('idle_in_transaction_session_timeout', '60s'), ('idle_session_timeout', '0'),
			('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off'),
			('client_encoding', 'UTF8'), ('DateStyle', 'ISO'), ('extra_float_digits', '1'), ('bytea_output', 'hex'),
			('search_path', ''), ('jit', 'off'), ('max_parallel_workers_per_gather', '0')
		) settings(name, value)`, fmt.Sprintf("%dms", timeout.Milliseconds()))
	if err != nil {
		return fmt.Errorf("setting up the session: %w", err)
	}
	return nil
}

// settleQueue is for the sessions that look at the outbox. It is a queue whose statistics are
// never right: empty one moment, full the next. Its statements have one good plan each, by the
// index on the id.
func settleQueue(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `
		SELECT set_config(name, value, false) FROM (VALUES
			('plan_cache_mode', 'force_generic_plan'),
			('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_sort', 'off')
		) settings(name, value)`)
	if err != nil {
		return fmt.Errorf("setting up the session: %w", err)
	}
	return nil
}

// describe looks at the table and prepares the statements for it.
func (s *Source) describe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return asSetup(fmt.Errorf("connecting to PostgreSQL: %w", err))
	}
	defer conn.Release()
	t, err := describe(ctx, conn.Conn(), s.cfg)
	if err != nil {
		return err
	}
	s.stmts.Store(newStatements(t))
	return nil
}

// Lanes is the store's lane count.
func (s *Source) Lanes() int { return s.stmts.Load().table.lanes }

// Table is the outbox's name as it is shown.
func (s *Source) Table() string { return s.stmts.Load().table.name.String() }

// Oldest returns when the undelivered row with the lowest id was created; ok is false when
// the outbox is empty or does not tell.
func (s *Source) Oldest(ctx context.Context) (created time.Time, ok bool, err error) {
	stmts := s.stmts.Load()
	if !stmts.table.has("created_at") {
		return time.Time{}, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var found pgtype.Timestamptz
	err = s.pool.QueryRow(ctx, stmts.oldest).Scan(&found)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, false, nil
	}
	if err != nil {
		return time.Time{}, false, fmt.Errorf("looking for the oldest row: %w", err)
	}
	return found.Time, found.Valid && found.InfinityModifier == pgtype.Finite, nil
}

// Close closes the connections. No call may be running.
func (s *Source) Close() { closePool(s.pool) }

// closePool closes the connections, and does not wait for a server that does not answer: the pool
// would give it 15 s.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closeLimit):
	}
}
