package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-forwarder/forwarder/source"
)

// replication is a connection on which the server sends its log. While it does, one goroutine
// may receive and another one confirm.
type replication struct {
	conn *pgconn.PgConn
	// interval is how often the server is told a position, and silence how long it may say
	// nothing. While it decodes a large transaction of other tables it answers only after half
	// of its time limit.
	interval, silence time.Duration
}

const (
	// maxInterval is how often the server hears of us whatever time it would leave us.
	maxInterval = 10 * time.Second
	// minSilence keeps a busy machine from looking dead.
	minSilence = 5 * time.Second
)

// dialReplication connects to the log of the configuration's database.
func dialReplication(ctx context.Context, cfg Config) (*replication, error) {
	rcfg, err := replicationConfig(cfg)
	if err != nil {
		return nil, err
	}
	conn, err := pgconn.ConnectConfig(ctx, rcfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to PostgreSQL for replication: %w", err)
	}
	r := &replication{conn: conn}
	limit, err := r.value(ctx, "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'")
	if err == nil {
		err = r.setTimes(limit)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func replicationConfig(cfg Config) (*pgconn.Config, error) {
	field, url := "source.postgres.url", cfg.URL
	if cfg.ReplicationURL != "" {
		field, url = "source.postgres.replication_url", cfg.ReplicationURL
	}
	pcfg, err := pgxpool.ParseConfig(url) // it knows the parameters that are not the server's
	if err != nil {
		return nil, &source.SetupError{Problems: []string{field + ": " + urlProblem(err)}}
	}
	prepare(pcfg.ConnConfig, cfg)
	rcfg := &pcfg.ConnConfig.Config
	rcfg.BuildFrontend = gatheringFrontend
	rcfg.RuntimeParams["replication"] = "database"
	rcfg.RuntimeParams["client_encoding"] = "UTF8"
	// The role's and the database's own limits are not meant for this.
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout"} {
		rcfg.RuntimeParams[name] = "0"
	}
	return rcfg, nil
}

// setTimes takes wal_sender_timeout in milliseconds; 0 is none.
func (r *replication) setTimes(limit string) error {
	n, err := strconv.Atoi(limit)
	if err != nil {
		return fmt.Errorf("reading wal_sender_timeout: %w", err)
	}
	timeout := time.Duration(n) * time.Millisecond
	if timeout == 0 {
		timeout = time.Minute
	}
	r.interval = min(timeout/3, maxInterval)
	r.silence = max(timeout*2/3, 2*r.interval, minSilence)
	return nil
}

// value asks for one value in the simple protocol, which is all that such a connection has.
// NULL and no row are empty.
func (r *replication) value(ctx context.Context, sql string) (string, error) {
	results, err := r.conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	if len(results) == 0 || len(results[0].Rows) == 0 {
		return "", nil
	}
	return string(results[0].Rows[0][0]), nil
}

// xid returns a transaction id that is assigned now, to a transaction of its own.
func (r *replication) xid(ctx context.Context) (uint64, error) {
	text, err := r.value(ctx, "SELECT pg_catalog.pg_current_xact_id()")
	if err != nil {
		return 0, fmt.Errorf("taking a transaction id: %w", err)
	}
	return strconv.ParseUint(text, 10, 64)
}

// slotKind says how a slot is made.
type slotKind struct {
	temporary, failover bool
}

// outputPlugin is what the server decodes its log with.
const outputPlugin = "pgoutput"

// createSlot makes a slot for our plugin and returns where it begins. It waits for every
// transaction that is running. When ctx ends, the server is told to give up, and leaves nothing.
func (r *replication) createSlot(ctx context.Context, slot string, kind slotKind) (pglogrepl.LSN, error) {
	sql := "CREATE_REPLICATION_SLOT " + slotSQL(slot)
	if kind.temporary {
		sql += " TEMPORARY"
	}
	sql += " LOGICAL " + outputPlugin + " (SNAPSHOT 'nothing'"
	if kind.failover {
		sql += ", FAILOVER"
	}
	result, err := pglogrepl.ParseCreateReplicationSlot(r.conn.Exec(ctx, sql+")"))
	if err != nil {
		return 0, fmt.Errorf("creating replication slot %s: %w", slot, err)
	}
	return pglogrepl.ParseLSN(result.ConsistentPoint)
}

// letFailOver lets standbys copy a slot that was made without that.
func (r *replication) letFailOver(ctx context.Context, slot string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit) // it waits for whoever streams from the slot
	defer cancel()
	if err := r.conn.Exec(ctx, "ALTER_REPLICATION_SLOT "+slotSQL(slot)+" (FAILOVER)").Close(); err != nil {
		return fmt.Errorf("letting replication slot %s fail over: %w", slot, err)
	}
	return nil
}

// slotSQL quotes a slot's name. The replication commands know no other way to quote.
func slotSQL(slot string) string { return `"` + strings.ReplaceAll(slot, `"`, `""`) + `"` }

// startLimit bounds the start, which the server answers before it looks at its log.
const startLimit = 10 * time.Second

// start begins to receive the log of a publication. messages asks for logical messages too.
func (r *replication) start(ctx context.Context, slot, publication string, from pglogrepl.LSN, messages bool) error {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	args := []string{
		"proto_version '1'",
		"publication_names " + quote(slotSQL(publication)),
		"binary 'true'",
	}
	if messages {
		args = append(args, "messages 'true'")
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := pglogrepl.StartReplication(ctx, r.conn, slotSQL(slot), from, pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication, PluginArgs: args,
	})
	if err != nil {
		return fmt.Errorf("starting replication from slot %s: %w", slot, err)
	}
	return nil
}

// confirm tells the server what was received, and up to where it may forget its log, which is
// never 0. What was received must be told as it is: a server that sees it lag behind what it
// sent asks again at once, without end.
func (r *replication) confirm(received, done pglogrepl.LSN, answer bool) error {
	_ = r.network().SetWriteDeadline(time.Now().Add(r.silence))
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), r.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: max(received, done), WALFlushPosition: done, WALApplyPosition: done, ReplyRequested: answer,
	})
	if err != nil {
		return fmt.Errorf("confirming the log: %w", err)
	}
	return nil
}

// receive returns the next message, which is good until the next call. A deadline of the
// connection ends it.
func (r *replication) receive() ([]byte, error) {
	message, err := r.conn.ReceiveMessage(context.Background())
	if err != nil {
		return nil, fmt.Errorf("receiving the log: %w", err)
	}
	switch m := message.(type) {
	case *pgproto3.CopyData:
		return m.Data, nil
	case *pgproto3.ErrorResponse:
		return nil, fmt.Errorf("receiving the log: %w", pgconn.ErrorResponseToPgError(m))
	case *pgproto3.CopyDone:
		return nil, errors.New("receiving the log: the server ended it")
	}
	return nil, nil // a notice or a changed parameter
}

// network is the connection under the protocol.
func (r *replication) network() net.Conn { return r.conn.Conn() }

// closeLimit bounds how long the end of a connection is waited for.
const closeLimit = 2 * time.Second

// close ends the connection, and waits until the server has let go of the slot. A command that
// waits was cancelled with its context.
func (r *replication) close() {
	if !r.conn.IsClosed() {
		_ = r.network().SetDeadline(time.Now().Add(closeLimit))
		r.conn.Frontend().Send(&pgproto3.Terminate{})
		if r.conn.Frontend().Flush() == nil {
			_, _ = io.Copy(io.Discard, r.network()) // what was on its way, up to the end
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_ = r.conn.Close(ctx) // nothing is left to be lost
	select {
	case <-r.conn.CleanupDone():
	case <-ctx.Done():
	}
}
