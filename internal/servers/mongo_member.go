package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const (
	mongoStartLimit = time.Minute
	mongoStopLimit  = 30 * time.Second
)

// mongoDefaults fit a server for tests that is restarted and killed.
var mongoDefaults = map[string]string{
	"diagnosticDataCollectionEnabled": "false",
	"transactionLifetimeLimitSeconds": "60",
	// How long a server that is told to end lets its clients go.
	"shutdownTimeoutMillisForSignaledShutdown": "1000",
}

// MongoMember is one MongoDB server with a data folder of its own. Its methods may be called
// from several goroutines.
type MongoMember struct {
	folder *folder
	bin    string
	args   []string
	port   int
	child
}

func newMongoMember(bin string, cfg MongoConfig, secret string) (_ *MongoMember, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder("mongo", nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.remove())
		}
	}()
	m := &MongoMember{folder: dir, bin: bin, port: port, child: child{what: "MongoDB", stopLimit: mongoStopLimit}}
	m.args = []string{"--dbpath", filepath.Join(dir.path, "data"), "--port", strconv.Itoa(port), "--bind_ip", "127.0.0.1",
		"--nounixsocket", "--wiredTigerCacheSizeGB", "0.5"}
	if !cfg.Standalone {
		m.args = append(m.args, "--replSet", mongoSet, "--oplogSize", "990")
	}
	if cfg.Auth {
		key, err := keyFile(dir.path, secret)
		if err != nil {
			return nil, err
		}
		m.args = append(m.args, "--keyFile", key)
	}
	parameters := maps.Clone(mongoDefaults)
	maps.Copy(parameters, cfg.Parameters)
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		m.args = append(m.args, "--setParameter", name+"="+parameters[name])
	}
	return m, os.Mkdir(filepath.Join(dir.path, "data"), 0o700)
}

// Addr returns host and port.
func (m *MongoMember) Addr() string { return loopback(m.port) }

// LogPath returns the file that the server writes its log to.
func (m *MongoMember) LogPath() string { return filepath.Join(m.folder.path, "log") }

// Start starts a server that was stopped or killed, on the same port and data, and returns
// when it accepts connections. It does nothing where the server runs.
func (m *MongoMember) Start(ctx context.Context) error {
	return m.begin(func() (*process, error) { return m.start(ctx) })
}

func (m *MongoMember) start(ctx context.Context) (*process, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, mongoStartLimit, fmt.Errorf("not ready within %s", mongoStartLimit))
	defer cancel()
	if err := awaitFree(ctx, m.port); err != nil {
		return nil, err
	}
	// The server must outlive ctx, so it is no command of this context.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), m.bin, m.args...)
	cmd.Dir = m.folder.path
	return serve(ctx, cmd, m.LogPath(), syscall.SIGKILL, func(_ *process, from int64) func() bool {
		accepts := logWatch{path: m.LogPath(), at: from, line: `"msg":"Waiting for connections"`}
		return accepts.seen
	})
}

// Stop shuts the server down in order: a primary hands over first. It does nothing where the
// server does not run.
func (m *MongoMember) Stop() error { return m.end("stopping", syscall.SIGTERM) }

// Kill ends the server by SIGKILL, also one that is paused.
func (m *MongoMember) Kill() error { return m.end("killing", syscall.SIGKILL) }

// Pause stops the server without ending it: its connections stay open and nothing answers.
func (m *MongoMember) Pause() error { return m.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (m *MongoMember) Resume() error { return m.signal(syscall.SIGCONT) }

func (m *MongoMember) signal(sig syscall.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running() {
		return errors.New("signalling MongoDB: it does not run")
	}
	if err := m.process.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signalling MongoDB: %w", err)
	}
	return nil
}

func (m *MongoMember) close() error {
	err := m.Kill()
	return errors.Join(err, m.folder.remove())
}
