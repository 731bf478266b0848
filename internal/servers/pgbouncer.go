package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// PgBouncer is a pooler before a PostgreSQL server.
type PgBouncer struct {
	folder  *folder
	port    int
	process *process
}

// PgBouncerProgram is the pooler that StartPgBouncer runs.
var PgBouncerProgram = Tool{"PgBouncer", []string{"pgbouncer"}, inPath("pgbouncer")}

const (
	pgBouncerStartLimit = 30 * time.Second
	pgBouncerStopLimit  = 10 * time.Second
)

// StartPgBouncer starts a pooler of whole sessions before the server, and returns when it
// accepts connections.
func (p *Postgres) StartPgBouncer(ctx context.Context) (_ *PgBouncer, err error) {
	port, err := freePort()
	if err != nil {
		return nil, fmt.Errorf("making a pooler: %w", err)
	}
	dir, err := newFolder("pgbouncer", p.account)
	if err != nil {
		return nil, fmt.Errorf("making a pooler: %w", err)
	}
	b := &PgBouncer{folder: dir, port: port}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("starting a pooler: %w", err), b.Close())
		}
	}()
	settings, users := filepath.Join(dir.path, "pgbouncer.ini"), filepath.Join(dir.path, "users.txt")
	text := fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%d\nunix_socket_dir=\nauth_type=trust\nauth_file=%s\npool_mode=session\n",
		p.port, port, users)
	err = errors.Join(os.WriteFile(settings, []byte(text), 0o644), os.WriteFile(users, []byte(`"postgres" ""`+"\n"), 0o644))
	if err != nil {
		return nil, err
	}
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, settings)
	cmd.Dir = dir.path
	p.account.apply(cmd)
	log, from, err := openLog(b.logPath())
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	if b.process, err = launch(cmd, syscall.SIGKILL); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, pgBouncerStartLimit)
	defer cancel()
	err = b.process.awaitReady(ctx, func() bool {
		conn, err := net.Dial("tcp", loopback(port))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, tail(b.logPath(), from))
	}
	return b, nil
}

func (b *PgBouncer) logPath() string { return filepath.Join(b.folder.path, "log") }

// URL is Postgres.URL through the pooler.
func (b *PgBouncer) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", loopback(b.port), database)
}

// Close stops the pooler.
func (b *PgBouncer) Close() error {
	var err error
	if b.process != nil && b.process.alive() {
		err = b.process.end(syscall.SIGTERM, pgBouncerStopLimit)
	}
	return errors.Join(err, b.folder.remove())
}
