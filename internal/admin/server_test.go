package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-forwarder/forwarder/internal/admin"
)

// status is a forwarder whose state the test sets.
type status struct {
	mu          sync.Mutex
	dead        bool
	unready     []string
	parked      []admin.Parked
	retries     int
	retirements int
	// block, where set, makes Parked wait: it closes entered and then waits for block.
	entered, block chan struct{}
}

func (s *status) Alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.dead
}

func (s *status) Unready() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unready
}

func (s *status) Parked() []admin.Parked {
	if s.block != nil {
		close(s.entered)
		<-s.block
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parked
}

func (s *status) RetryParked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retries++
	return len(s.parked)
}

func (s *status) Retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retirements++
}

func (s *status) retired() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retirements
}

func (s *status) retried() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retries
}

// start runs a server on a free loopback port until the test ends.
func start(t *testing.T, st *status, change func(*admin.Config)) *admin.Server {
	t.Helper()
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "events_total", Help: "Events."})
	registry.MustRegister(counter)
	counter.Add(42)
	cfg := admin.Config{
		Listen:  "127.0.0.1:0",
		Status:  st,
		Metrics: registry,
		Version: "v1.2.3",
		Logger:  slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	server := admin.New(cfg)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return server
}

type answer struct {
	code   int
	body   string
	header http.Header
}

// ask sends one request on a connection of its own.
func ask(t *testing.T, method, url string, headers ...string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			request.Host = headers[i+1]
			continue
		}
		request.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, string(body), response.Header}
}

func TestLivezFollowsTheLoop(t *testing.T) {
	st := &status{}
	url := "http://" + start(t, st, nil).Addr() + "/livez"
	if got := ask(t, "GET", url); got.code != 200 || got.body != "alive\n" {
		t.Errorf("alive: got %d %q", got.code, got.body)
	}
	st.mu.Lock()
	st.dead = true
	st.mu.Unlock()
	if got := ask(t, "GET", url); got.code != 503 || !strings.Contains(got.body, "loop") {
		t.Errorf("dead: got %d %q", got.code, got.body)
	}
}

func TestReadyzNamesEveryReasonOnItsLine(t *testing.T) {
	st := &status{}
	url := "http://" + start(t, st, nil).Addr() + "/readyz"
	if got := ask(t, "GET", url); got.code != 200 || got.body != "ready\n" {
		t.Errorf("ready: got %d %q", got.code, got.body)
	}
	if got := ask(t, "GET", url, "Accept", "application/json"); got.code != 200 || compact(t, got.body) != `{"ready":true,"reasons":[]}` {
		t.Errorf("ready as JSON: got %d %q", got.code, got.body)
	}

	st.mu.Lock()
	st.unready = []string{"no broker answers", "reading the outbox:\n\tconnection refused"}
	st.mu.Unlock()
	got := ask(t, "GET", url)
	if want := "no broker answers\nreading the outbox: connection refused\n"; got.code != 503 || got.body != want {
		t.Errorf("unready: got %d %q, want 503 %q", got.code, got.body, want)
	}
	got = ask(t, "GET", url, "Accept", "text/html;q=0.5, application/json; charset=utf-8")
	want := `{"ready":false,"reasons":["no broker answers","reading the outbox:\n\tconnection refused"]}`
	if got.code != 503 || compact(t, got.body) != want {
		t.Errorf("unready as JSON: got %d %s, want 503 %s", got.code, got.body, want)
	}
	if kind := got.header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("content type %q", kind)
	}
}

func TestMetricsShowTheRegistry(t *testing.T) {
	got := ask(t, "GET", "http://"+start(t, &status{}, nil).Addr()+"/metrics")
	if got.code != 200 || !strings.Contains(got.body, "\nevents_total 42\n") {
		t.Errorf("got %d %q", got.code, got.body)
	}
}

func TestVersionAndIndex(t *testing.T) {
	base := "http://" + start(t, &status{}, nil).Addr()
	var version struct{ Version, Go, Platform string }
	got := ask(t, "GET", base+"/version")
	if err := json.Unmarshal([]byte(got.body), &version); err != nil {
		t.Fatal(err)
	}
	if version.Version != "v1.2.3" || !strings.HasPrefix(version.Go, "go") || !strings.Contains(version.Platform, "/") {
		t.Errorf("got %+v", version)
	}
	if got := ask(t, "GET", base+"/"); got.code != 200 || !strings.Contains(got.body, "/parked/retry") {
		t.Errorf("index: got %d %q", got.code, got.body)
	}
	if got := ask(t, "GET", base+"/nowhere"); got.code != 404 {
		t.Errorf("unknown path: got %d", got.code)
	}
	if got := ask(t, "POST", base+"/readyz"); got.code != 405 {
		t.Errorf("wrong method: got %d", got.code)
	}
}

func TestProfilesOnlyWhereAskedFor(t *testing.T) {
	for _, profiling := range []bool{false, true} {
		server := start(t, &status{}, func(c *admin.Config) { c.Profiling = profiling })
		want := http.StatusNotFound
		if profiling {
			want = http.StatusOK
		}
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine"} {
			if got := ask(t, "GET", "http://"+server.Addr()+path); got.code != want {
				t.Errorf("profiling %v: %s answers %d, want %d", profiling, path, got.code, want)
			}
		}
	}
}

func TestOrdersRefuseOtherSites(t *testing.T) {
	st := &status{parked: make([]admin.Parked, 3)}
	addr := start(t, st, nil).Addr()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		method  string
		headers []string
		want    int
	}{
		{"curl", "POST", nil, 200},
		{"page of this server", "POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://" + addr}, 200},
		{"localhost by name", "POST", []string{"Host", "localhost:" + port}, 200},
		{"another site", "POST", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, 403},
		{"another site, old browser", "POST", []string{"Origin", "https://evil.example"}, 403},
		{"opaque origin", "POST", []string{"Origin", "null"}, 403},
		{"another port of this machine", "POST", []string{"Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:1"}, 403},
		{"a name rebound to loopback", "POST", []string{"Host", "evil.example:" + port, "Sec-Fetch-Site", "same-origin", "Origin", "http://evil.example:" + port}, 403},
		{"a link", "GET", nil, 405},
	} {
		if got := ask(t, c.method, "http://"+addr+"/retire", c.headers...); got.code != c.want {
			t.Errorf("retire, %s: got %d %q, want %d", c.name, got.code, got.body, c.want)
		}
		before := st.retried()
		got := ask(t, c.method, "http://"+addr+"/parked/retry", c.headers...)
		if got.code != c.want {
			t.Errorf("%s: got %d %q, want %d", c.name, got.code, got.body, c.want)
		}
		if done, want := st.retried() == before+1, c.want == 200; done != want {
			t.Errorf("%s: retried is %v, want %v", c.name, done, want)
		}
	}
	if got := ask(t, "GET", "http://"+addr+"/parked", "Host", "evil.example"); got.code != 403 {
		t.Errorf("parked rows under a rebound name: got %d", got.code)
	}
	if got := ask(t, "GET", "http://"+addr+"/livez", "Host", "evil.example"); got.code != 200 {
		t.Errorf("health under another name: got %d", got.code)
	}
	if got := st.retired(); got != 3 {
		t.Errorf("retired %d times, want 3", got)
	}
}

func TestListenErrorsComeFromStart(t *testing.T) {
	first := start(t, &status{}, nil)
	second := admin.New(admin.Config{Listen: first.Addr(), Status: &status{}, Metrics: prometheus.NewRegistry()})
	err := second.Start()
	if err == nil || !strings.Contains(err.Error(), first.Addr()) {
		t.Fatalf("got %v, want an error that names %s", err, first.Addr())
	}
	if second.Addr() != "" {
		t.Errorf("a server that does not listen has the address %q", second.Addr())
	}
	if err := second.Stop(context.Background()); err != nil {
		t.Errorf("stopping a server that never started: %v", err)
	}
	if err := second.Start(); !errors.Is(err, admin.ErrStopped) {
		t.Errorf("start after stop: got %v", err)
	}
}

func TestStartAndStopAreSafeTwice(t *testing.T) {
	server := start(t, &status{}, nil)
	addr := server.Addr()
	if err := server.Start(); err != nil || server.Addr() != addr {
		t.Errorf("second start: %v, address %s, was %s", err, server.Addr(), addr)
	}
	var stops sync.WaitGroup
	for range 3 {
		stops.Go(func() {
			if err := server.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	stops.Wait()
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Error("the listener is still open after Stop")
	}
}

func TestStopWaitsForRequestsAndThenCutsThem(t *testing.T) {
	for _, patient := range []bool{true, false} {
		st := &status{entered: make(chan struct{}), block: make(chan struct{})}
		server := start(t, st, nil)
		client, err := admin.NewClient(server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan error, 1)
		go func() {
			_, err := client.Parked(context.Background())
			asked <- err
		}()
		<-st.entered

		ctx, cancel := context.WithCancel(context.Background())
		if patient {
			close(st.block)
		} else {
			cancel()
		}
		stopErr, askErr := server.Stop(ctx), <-asked
		cancel()
		if !patient {
			close(st.block)
		}
		if patient && (stopErr != nil || askErr != nil) {
			t.Errorf("patient stop: stop %v, request %v", stopErr, askErr)
		}
		if !patient && (!errors.Is(stopErr, context.Canceled) || askErr == nil) {
			t.Errorf("impatient stop: stop %v, request %v", stopErr, askErr)
		}
	}
}

// compact removes JSON's white space outside strings.
func compact(t *testing.T, text string) string {
	t.Helper()
	var raw json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		t.Fatalf("not JSON: %v in %q", err, text)
	}
	out, err := json.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// foreign is another program on the admin port.
func foreign(t *testing.T, serve http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

var moment = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
