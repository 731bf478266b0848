package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PostgresConfig says which PostgreSQL to start.
type PostgresConfig struct {
	// Bin is the folder that holds initdb and postgres. Empty: the newest of the machine's
	// own, else a fetched one.
	Bin string
	// Fetched takes the fetched one even where the machine has its own.
	Fetched bool
	// Settings are lines of postgresql.conf, as names and unquoted values. They win over
	// the defaults, among which is wal_level=logical; fsync is on unless it is set here.
	Settings map[string]string
	// Log gets a line when something is fetched. Nil is slog.Default().
	Log *slog.Logger
}

// Postgres is one PostgreSQL server with a data folder of its own. Its methods may be
// called from several goroutines.
type Postgres struct {
	folder  *folder
	account *account
	bin     string
	port    int
	child
}

const (
	postgresStartLimit = time.Minute
	postgresStopLimit  = time.Minute
)

func postgresChild() child { return child{what: "PostgreSQL", stopLimit: postgresStopLimit} }

// postgresDefaults fit a server for tests that is restarted and killed.
var postgresDefaults = map[string]string{
	"listen_addresses":        "127.0.0.1",
	"unix_socket_directories": "",
	"wal_level":               "logical",
	"max_connections":         "200",
	"max_wal_senders":         "20",
	"max_replication_slots":   "20",
	"max_wal_size":            "4GB",
	"shared_buffers":          "256MB",
}

// StartPostgres makes a new PostgreSQL server and starts it. The superuser is postgres,
// without a password, and reached over loopback only. ctx bounds fetching and starting,
// not the server's life, which Close ends.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	p, err := newPostgres(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("making a PostgreSQL server: %w", err)
	}
	if err := p.Start(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func newPostgres(ctx context.Context, cfg PostgresConfig) (_ *Postgres, err error) {
	user, err := unprivileged()
	if err != nil {
		return nil, err
	}
	bin, err := postgresBin(ctx, cfg)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder("postgres", user)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.remove())
		}
	}()
	p := &Postgres{folder: dir, account: user, bin: bin, port: port, child: postgresChild()}
	if err := p.bringWithin(); err != nil {
		return nil, err
	}
	initdb := p.command(ctx, "initdb", "-D", p.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if err := run(ctx, initdb); err != nil {
		return nil, err
	}
	return p, p.configure(cfg.Settings)
}

// bringWithin copies the programs into the server's folder where its user cannot reach
// them, as it is with a cache in root's home folder.
func (p *Postgres) bringWithin() error {
	if p.account.reaches(p.bin) {
		return nil
	}
	installation := filepath.Join(p.folder.path, "installation")
	if err := os.CopyFS(installation, os.DirFS(filepath.Dir(p.bin))); err != nil {
		return fmt.Errorf("copying PostgreSQL to where its user reaches it: %w", err)
	}
	p.bin = filepath.Join(installation, filepath.Base(p.bin))
	return nil
}

func (p *Postgres) configure(settings map[string]string) error {
	all := maps.Clone(postgresDefaults)
	maps.Copy(all, settings)
	all["port"] = strconv.Itoa(p.port)
	return p.append(all)
}

// append adds settings to postgresql.conf. The last of a name counts.
func (p *Postgres) append(all map[string]string) error {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, strings.ReplaceAll(all[name], "'", "''"))
	}
	conf, err := os.OpenFile(filepath.Join(p.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configuring PostgreSQL: %w", err)
	}
	_, err = conf.WriteString(text.String())
	if err = errors.Join(err, conf.Close()); err != nil {
		return fmt.Errorf("configuring PostgreSQL: %w", err)
	}
	return nil
}

// command returns a command that runs one of the installation's programs as the server's
// user, with nothing of the caller's PG variables or language in its environment.
func (p *Postgres) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, program), args...)
	cmd.Dir = p.folder.path
	cmd.Env = []string{"HOME=" + p.folder.path, "PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	p.account.apply(cmd)
	return cmd
}

func (p *Postgres) data() string { return filepath.Join(p.folder.path, "data") }

// LogPath returns the file that the server writes its log to.
func (p *Postgres) LogPath() string { return filepath.Join(p.folder.path, "log") }

// Start starts a server that was stopped or killed, on the same port and data, and returns
// when it accepts connections. It does nothing where the server runs.
func (p *Postgres) Start(ctx context.Context) error {
	return p.begin(func() (*process, error) { return p.start(ctx) })
}

func (p *Postgres) start(ctx context.Context) (*process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, postgresStartLimit, fmt.Errorf("not ready within %s", postgresStartLimit))
	defer cancel()
	if err := awaitFree(ctx, p.port); err != nil {
		return nil, err
	}
	// The server must outlive ctx, so it is no command of this context.
	cmd := p.command(context.WithoutCancel(ctx), "postgres", "-D", p.data())
	// SIGQUIT is PostgreSQL's immediate shutdown: it takes all backends along and leaves no
	// shared memory behind.
	return serve(ctx, cmd, p.LogPath(), syscall.SIGQUIT, func(proc *process, _ int64) func() bool {
		return func() bool { return p.accepts(proc.pid) }
	})
}

// accepts reads from postmaster.pid whether this very server accepts connections: the
// first line is its process id, the eighth its state.
func (p *Postgres) accepts(pid int) bool {
	text, err := os.ReadFile(filepath.Join(p.data(), "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	return len(lines) > 7 && lines[0] == strconv.Itoa(pid) && strings.TrimSpace(lines[7]) == "ready"
}

// Stop shuts the server down in order, without waiting for its clients (PostgreSQL's fast
// shutdown). It does nothing where the server does not run.
func (p *Postgres) Stop() error { return p.end("stopping", syscall.SIGINT) }

// Kill ends the server as a crash of the machine would: every process of it at once, by
// SIGKILL. It returns when all of them are gone.
func (p *Postgres) Kill() error { return p.alive("killing", killAll) }

func killAll(main *process) error {
	if err := freeze(main.pid); err != nil {
		return fmt.Errorf("stopping the main process from starting others: %w", err)
	}
	backends, err := childrenOf(main.pid)
	for _, pid := range append(backends, main.pid) {
		err = errors.Join(err, kill(pid))
	}
	<-main.done
	if err != nil {
		return err
	}
	deadline := time.Now().Add(postgresStopLimit)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !allEnded(backends) {
		if time.Now().After(deadline) {
			return fmt.Errorf("of its processes %v some did not end within %s", backends, postgresStopLimit)
		}
		<-tick.C
	}
	return nil
}

func allEnded(pids []int) bool {
	return !slices.ContainsFunc(pids, func(pid int) bool { return !ended(pid) })
}

// Close stops the server and removes its data.
func (p *Postgres) Close() error {
	err := p.Stop()
	return errors.Join(err, p.folder.remove())
}

// URL returns the connection URL of a database of the server, for its superuser.
func (p *Postgres) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", loopback(p.port), database)
}

// Bin returns the folder that holds the server's programs, and the client's programs too
// where the machine's own are used.
func (p *Postgres) Bin() string { return p.bin }

// openLog opens a log to append to, and tells where this run's part begins.
func openLog(path string) (*os.File, int64, error) {
	log, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, 0, fmt.Errorf("opening the server's log: %w", err)
	}
	info, err := log.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("opening the server's log: %w", err), log.Close())
	}
	return log, info.Size(), nil
}
