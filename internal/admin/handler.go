package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const index = `outbox forwarder

GET  /livez         the loop turns
GET  /readyz        events move, or every reason why not
GET  /metrics       Prometheus
GET  /parked        what waits, and why
POST /parked/retry  try everything that waits now
POST /retire        give up all lanes to other replicas
GET  /version
`

// handler answers requests. It holds no state of its own.
type handler struct {
	status  Status
	logger  *slog.Logger
	version string
	// local says that the listener is on loopback, see ownHost.
	local bool
}

func newHandler(cfg Config, local bool) http.Handler {
	h := &handler{status: cfg.Status, logger: cfg.Logger, version: cfg.Version, local: local}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { h.text(w, http.StatusOK, index) })
	mux.HandleFunc("GET /livez", h.livez)
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.HandleFunc("GET /version", h.showVersion)
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelError),
	}))
	mux.Handle("GET /parked", h.ownHost(http.HandlerFunc(h.parked)))
	mux.Handle("POST /parked/retry", h.ownHost(sameOrigin(http.HandlerFunc(h.retry))))
	mux.Handle("POST /retire", h.ownHost(sameOrigin(http.HandlerFunc(h.retire))))
	if cfg.Profiling {
		for path, serve := range map[string]http.HandlerFunc{
			"/debug/pprof/":        pprof.Index,
			"/debug/pprof/cmdline": pprof.Cmdline,
			"/debug/pprof/profile": pprof.Profile,
			"/debug/pprof/symbol":  pprof.Symbol,
			"/debug/pprof/trace":   pprof.Trace,
		} {
			mux.Handle(path, h.ownHost(serve))
		}
	}
	return mux
}

// sameOrigin refuses requests that a browser sends on behalf of another site. Requests
// from anything but a browser carry neither Origin nor Sec-Fetch-Site and pass.
func sameOrigin(next http.Handler) http.Handler {
	return http.NewCrossOriginProtection().Handler(next)
}

// ownHost refuses requests to a loopback listener under a foreign name. A hostile site can
// let its own name resolve to 127.0.0.1, and then its pages count as same-origin here; what
// they cannot do is to send an address or "localhost" as the Host.
func (h *handler) ownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.local && !isOwnHost(r.Host) {
			h.text(w, http.StatusForbidden, fmt.Sprintf(
				"this listener is on loopback and does not answer to the name %q: use localhost or an address\n", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isOwnHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil
}

func (h *handler) livez(w http.ResponseWriter, _ *http.Request) {
	if !h.status.Alive() {
		h.text(w, http.StatusServiceUnavailable, "the forwarder's loop does not turn\n")
		return
	}
	h.text(w, http.StatusOK, "alive\n")
}

// readiness is /readyz in JSON.
type readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

func (h *handler) readyz(w http.ResponseWriter, r *http.Request) {
	reasons := h.status.Unready()
	code := http.StatusOK
	if len(reasons) > 0 {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Vary", "Accept")
	if wantsJSON(r) {
		h.json(w, code, readiness{Ready: len(reasons) == 0, Reasons: append([]string{}, reasons...)})
		return
	}
	if len(reasons) == 0 {
		h.text(w, code, "ready\n")
		return
	}
	var body strings.Builder
	for _, reason := range reasons {
		// One reason is one line, whatever an error's text holds.
		body.WriteString(strings.Join(strings.Fields(reason), " "))
		body.WriteByte('\n')
	}
	h.text(w, code, body.String())
}

// build is /version.
type build struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (h *handler) showVersion(w http.ResponseWriter, _ *http.Request) {
	h.json(w, http.StatusOK, build{h.version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH})
}

// parkedList is /parked: an object, so that more can be told later.
type parkedList struct {
	Parked []Parked `json:"parked"`
}

func (h *handler) parked(w http.ResponseWriter, _ *http.Request) {
	h.json(w, http.StatusOK, parkedList{append([]Parked{}, h.status.Parked()...)})
}

// retried is the answer to /parked/retry.
type retried struct {
	Retried int `json:"retried"`
}

func (h *handler) retry(w http.ResponseWriter, r *http.Request) {
	n := h.status.RetryParked()
	h.logger.Info("retry of everything that waits was asked for", "count", n, "from", r.RemoteAddr)
	h.json(w, http.StatusOK, retried{n})
}

func (h *handler) retire(w http.ResponseWriter, _ *http.Request) {
	h.status.Retire()
	h.json(w, http.StatusOK, struct{}{})
}

func (h *handler) text(w http.ResponseWriter, code int, body string) {
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	h.write(w, code, []byte(body))
}

func (h *handler) json(w http.ResponseWriter, code int, value any) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		h.logger.Error("encoding an admin answer", "err", err)
		h.text(w, http.StatusInternalServerError, "encoding the answer: "+err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	h.write(w, code, body.Bytes())
}

// write sends a whole answer. An error means that the client went away, which is its own
// affair.
func (h *handler) write(w http.ResponseWriter, code int, body []byte) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = io.Copy(w, bytes.NewReader(body))
}

// wantsJSON says whether the request names JSON among what it accepts.
func wantsJSON(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			if kind, _, err := mime.ParseMediaType(part); err == nil && kind == "application/json" {
				return true
			}
		}
	}
	return false
}
