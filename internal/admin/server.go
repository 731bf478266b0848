package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Time limits of the server. A client that is slower than these is broken or hostile;
// profiles extend their own write limit.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 64 << 10
)

// Config says what a Server shows and where.
type Config struct {
	// Listen is host:port; port 0 takes a free one.
	Listen string
	// Status is the forwarder. Required.
	Status Status
	// Metrics is what /metrics shows. Required.
	Metrics prometheus.Gatherer
	// Version is the build's version, as /version shows it.
	Version string
	// Profiling adds /debug/pprof/.
	Profiling bool
	// Logger takes the server's own failures; slog.Default() where nil.
	Logger *slog.Logger
}

// Server is the admin server. It is started once and stopped once; further calls of
// either do nothing.
type Server struct {
	cfg  Config
	http *http.Server
	done chan struct{} // closed when the serving goroutine has ended

	mu       sync.Mutex
	listener net.Listener // set by Start
	started  bool
	stopped  bool
}

// New makes a server that does not listen yet.
func New(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Server{cfg: cfg, done: make(chan struct{})}
}

// ErrStopped is returned by Start after Stop.
var ErrStopped = errors.New("admin server has been stopped")

// Start listens and serves in a goroutine that Stop awaits. Whatever is wrong with the
// address is returned here.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	if s.started {
		return nil
	}
	listener, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("opening the admin listener on %s: %w", s.cfg.Listen, err)
	}
	s.listener = listener
	s.started = true
	s.http = &http.Server{
		Handler:           newHandler(s.cfg, isLoopback(listener.Addr())),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelWarn),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.cfg.Logger.Error("admin server ended", "addr", listener.Addr().String(), "err", err)
		}
	}()
	return nil
}

// Addr is the address that the server listens on, with the real port; empty before Start.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Stop closes the listener, waits for the requests under way until ctx is done, and then
// cuts them off. It returns when the server's goroutine is gone; the error says that
// requests were cut off.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	first := !s.stopped
	s.stopped = true
	started := s.started
	s.mu.Unlock()
	if !started {
		return nil
	}
	var err error
	if first {
		if err = s.http.Shutdown(ctx); err != nil {
			err = fmt.Errorf("stopping the admin server: %w", errors.Join(err, s.http.Close()))
		}
	}
	<-s.done
	return err
}

// isLoopback says whether only this machine can reach the address.
func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
