package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// program is one that is measured: the pipe, or the forwarder in one of its modes.
type program struct {
	name     string
	settings []string // of the forwarder, as NAME=value
}

// nobody is measured to know what the writers alone cost.
const nobody = "nobody"

var pipe = program{name: "pipe"}

// allModes are the names of all modes.
var allModes = []string{"poll", "stream", "durable"}

// modes are the forwarder's, by the database.
var modes = map[string][]program{
	"PostgreSQL": {
		{name: "poll"},
		{name: "stream", settings: []string{"FORWARDER_SOURCE_POSTGRES_MODE=stream"}},
		{name: "durable", settings: []string{"FORWARDER_SOURCE_POSTGRES_MODE=stream", "FORWARDER_SOURCE_POSTGRES_SLOT=durable"}},
	},
	"MongoDB": {
		{name: "poll"},
		{name: "stream", settings: []string{"FORWARDER_SOURCE_MONGO_MODE=stream"}},
	},
}

// chosen returns the modes of the option -modes, or those given where there is no such option.
func (s *stage) chosen(db outbox, names ...string) []program {
	if len(s.modes) > 0 {
		names = s.modes
	}
	var list []program
	for _, p := range modes[db.name()] {
		if slices.Contains(names, p.name) {
			list = append(list, p)
		}
	}
	return list
}

// replicas are the processes of a program on one outbox.
type replicas struct {
	*stage
	db      outbox
	program program
	procs   []*subject
}

// start starts n processes of a program. With settings the forwarder's defaults are not measured.
func (s *stage) start(db outbox, p program, n int, settings ...string) (*replicas, error) {
	p.settings = slices.Concat(p.settings, settings)
	r := &replicas{stage: s, db: db, program: p}
	for range n {
		if err := r.add(); err != nil {
			return nil, errors.Join(err, r.stop())
		}
	}
	return r, nil
}

func (r *replicas) add() error {
	p := &subject{}
	args := []string{"-source-url", r.db.url(), "-brokers", r.kafka.Addr()}
	path := r.pipe
	if r.program.name != pipe.name {
		admin, err := servers.FreeAddress()
		if err != nil {
			return err
		}
		p.admin = admin
		path = r.forwarder
		args = []string{"run", "--source-url", r.db.url(), "--brokers", r.kafka.Addr(), "--admin-listen", admin}
	}
	if err := p.start(path, args, r.program.settings); err != nil {
		return err
	}
	r.procs = append(r.procs, p)
	return nil
}

// each calls f for each process.
func (r *replicas) each(f func(*subject) error) error {
	var errs []error
	for _, p := range r.procs {
		errs = append(errs, f(p))
	}
	return errors.Join(errs...)
}

// stop ends all processes.
func (r *replicas) stop() error {
	err := r.each((*subject).stop)
	r.procs = nil
	return err
}

// cpu is the processor time of all processes so far.
func (r *replicas) cpu() (sum time.Duration, err error) {
	err = r.each(func(p *subject) error {
		used, err := cpuTime(p.cmd.Process.Pid, false)
		sum += used
		return err
	})
	return sum, err
}

// peak is the largest memory that a process has had so far.
func (r *replicas) peak() (most int64, err error) {
	err = r.each(func(p *subject) error {
		n, err := p.peakMemory()
		most = max(most, n)
		return err
	})
	return most, err
}

// ready returns when all forwarders do what their mode says. The pipe is ready when it runs.
func (r *replicas) ready(ctx context.Context) error {
	return r.each(func(p *subject) error {
		if p.admin == "" {
			return nil
		}
		return await(ctx, r, func(ctx context.Context) (bool, error) {
			m := p.metrics(ctx)
			if m["forwarder_lanes_owned"] == 0 {
				return false, nil
			}
			// A mode without a log has no such metrics.
			for _, name := range []string{"forwarder_stream_streaming", "forwarder_stream_complete"} {
				if v, ok := m[name]; ok && v == 0 {
					return false, nil
				}
			}
			return true, nil
		})
	})
}

// metrics asks a forwarder for its metrics without labels; there are none while it does not
// answer.
func (p *subject) metrics(ctx context.Context) map[string]float64 {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin+"/metrics", http.NoBody)
	if err != nil {
		return nil
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil
	}
	m := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil && !strings.HasPrefix(name, "#") {
			m[name] = v
		}
	}
	return m
}

// await polls until the condition holds or a process ends.
func await(ctx context.Context, r *replicas, condition func(context.Context) (bool, error)) error {
	for {
		if ok, err := condition(ctx); ok || err != nil {
			return err
		}
		if err := r.each((*subject).alive); err != nil {
			return err
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// usage is what was used since some moment.
type usage struct {
	took                     time.Duration
	subject, database, kafka time.Duration // processor time
	counts                   []int64       // see outbox.counters
}

// meter starts to count; the function that it returns gives the usage since then. r may be nil.
func (s *stage) meter(ctx context.Context, db outbox, r *replicas) (func() (usage, error), error) {
	counted, err := db.count(ctx)
	if err != nil {
		return nil, err
	}
	before, err := s.used(db, r)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	return func() (usage, error) {
		took := time.Since(begun)
		u, err := s.used(db, r)
		if err != nil {
			return u, err
		}
		u.took = took
		u.subject -= before.subject
		u.database -= before.database
		u.kafka -= before.kafka
		u.counts, err = counted(ctx)
		return u, err
	}, nil
}

func (s *stage) used(db outbox, r *replicas) (u usage, err error) {
	if r != nil {
		if u.subject, err = r.cpu(); err != nil {
			return u, err
		}
	}
	if u.database, err = db.cpu(); err != nil {
		return u, err
	}
	u.kafka, err = cpuTime(s.kafka.PID(), false)
	return u, err
}
