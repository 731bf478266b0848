package demo

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

// runLimit bounds one demo of a test, the first of which may have to fetch PostgreSQL.
const runLimit = 5 * time.Minute

// runDemo runs a demo with the pipe as its forwarder. The environment is empty and the output
// no terminal.
func runDemo(t *testing.T, ctx context.Context, p *pipe, out *buffer, change func(*Config)) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	cfg := Config{Rate: 400, Init: p.init, Run: p.run, Out: out, Getenv: noEnvironment}
	change(&cfg)
	return Run(ctx, cfg)
}

func TestDemoOnEmbeddedServers(t *testing.T) {
	p, out := &pipe{}, newBuffer("")
	if err := runDemo(t, t.Context(), p, out, func(c *Config) { c.Duration = 3 * time.Second }); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := out.String()
	t.Log("\n" + text)
	if !p.stopped {
		t.Error("the forwarder was not stopped")
	}
	mustContain(t, text,
		"  starting PostgreSQL ...\n  ok PostgreSQL  postgres://postgres@127.0.0.1:",
		"  ok Kafka       127.0.0.1:", "topic forwarder-demo, 12 partitions",
		"  ok Outbox      table public.outbox",
		"  ok Forwarder   http://127.0.0.1:12345",
		"psql 'postgres://postgres@127.0.0.1:", "kcat -b 127.0.0.1:",
		"400/s of them", "level=WARN msg=\"a pipe is at work\"",
		"ok lost                     0", "ok out of order             0", "ok repeats                  0", "ok outbox               empty",
		"Clean:",
	)
	if strings.ContainsAny(text, "\r\x1b") {
		t.Error("control characters where there is no terminal")
	}
	if strings.Contains(text, "nobody needs to read this") {
		t.Error("the forwarder's chatter is on the screen")
	}
	if lines := strings.Count(text, "  in order  0 repeats\n"); lines < 2 {
		t.Errorf("%d lines of figures in three seconds", lines)
	}
	written, forwarded := figure(t, text, "written"), figure(t, text, "forwarded")
	if written != forwarded || written < 300 || written > 1600 {
		t.Errorf("written %d, forwarded %d in 3 s at 400/s", written, forwarded)
	}
}

// TestDemoFindsAForwarderThatBreaksPromises plants faults and demands the verdict.
func TestDemoFindsAForwarderThatBreaksPromises(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spoil      func([]row) []row
	}{
		{"a row that is deleted and not sent", "-- lost                     1", once(func(rows []row) ([]row, bool) {
			return rows[1:], true
		})},
		{"two events of a key in the wrong order", "-- out of order             1", once(func(rows []row) ([]row, bool) {
			for i := range rows {
				for j := range i {
					if bytes.Equal(rows[i].key, rows[j].key) {
						rows[i], rows[j] = rows[j], rows[i]
						return rows, true
					}
				}
			}
			return rows, false
		})},
		{"an altered repeat", "-- other faults             1", once(func(rows []row) ([]row, bool) {
			again := rows[0]
			again.id = -1
			return append([]row{rows[0], again}, rows[1:]...), true
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := newBuffer("")
			err := runDemo(t, t.Context(), &pipe{spoil: c.spoil}, out, func(cfg *Config) {
				cfg.SourceURL = serverstest.Database(t)
				cfg.Rate, cfg.Duration = 2000, time.Second
			})
			if !errors.Is(err, ErrBroken) {
				t.Errorf("got %v, want %v", err, ErrBroken)
			}
			mustContain(t, out.String(), c.want, "Not clean.")
		})
	}
}

// TestDemoOnGivenServers runs on a database and a broker that hold something of a user's, and
// is ended as by Ctrl-C.
func TestDemoOnGivenServers(t *testing.T) {
	database := serverstest.Database(t)
	execute(t, database,
		"CREATE TABLE public.outbox (id bigint PRIMARY KEY, precious text)",
		"INSERT INTO public.outbox VALUES (1, 'do not touch')",
	)
	withPassword, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	withPassword.User = url.UserPassword(withPassword.User.Username(), "s3cret-word")
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "precious"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()

	out := newBuffer("  in order  0 repeats\n")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	demoSchema := make(chan bool, 1)
	go func() {
		select {
		case <-out.seen:
		case <-ctx.Done():
		}
		interrupt()
	}()
	p := &pipe{}
	err = runDemo(t, ctx, p, out, func(c *Config) {
		c.SourceURL, c.Brokers = withPassword.String(), cluster.ListenAddrs()
		c.Run = func(ctx context.Context, target Target) error {
			demoSchema <- schemaExists(t, database)
			return p.run(ctx, target)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := out.String()
	mustContain(t, text, "schema forwarder_demo made for this demo, removed at its end", "forwarder_demo.outbox", "Clean:")
	if strings.Contains(text, "s3cret") {
		t.Errorf("the password is on the screen:\n%s", text)
	}
	if !<-demoSchema {
		t.Error("the demo did not work in its own schema")
	}
	if schemaExists(t, database) {
		t.Error("the demo left its schema behind")
	}
	if got := query[string](t, database, "SELECT string_agg(id || ' ' || precious, ',') FROM public.outbox"); got != "1 do not touch" {
		t.Errorf("the user's table holds %q", got)
	}
	if got := query[int](t, database, "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"); got != 1 {
		t.Errorf("%d tables after the demo, want the user's one", got)
	}
	topic := topicOnScreen(t, text)
	if cluster.TopicInfo(topic) != nil {
		t.Errorf("the demo left its topic %s behind", topic)
	}
	if cluster.TopicInfo("precious") == nil || cluster.TopicInfo(topicName) != nil {
		t.Error("the demo touched topics that are not its own")
	}
}

func topicOnScreen(t *testing.T, text string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, " topic ")
	name, _, comma := strings.Cut(rest, ",")
	if !found || !comma || !strings.HasPrefix(name, topicName+"-") {
		t.Fatalf("no topic of its own in\n%s", text)
	}
	return name
}

func TestDemoInterruptedBeforeItBegan(t *testing.T) {
	database := serverstest.Database(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out := newBuffer("")
	err := runDemo(t, ctx, &pipe{}, out, func(c *Config) {
		c.SourceURL = database
		c.Init = func(ctx context.Context, _ Target) error {
			interrupt()
			<-ctx.Done()
			return ctx.Err()
		}
	})
	if err != nil {
		t.Errorf("got %v", err)
	}
	mustContain(t, out.String(), "Stopped before it began.")
	if strings.Contains(out.String(), "lean") {
		t.Errorf("a verdict without a demo:\n%s", out)
	}
	if schemaExists(t, database) {
		t.Error("the demo left its schema behind")
	}
}

func TestDemoReportsAForwarderThatEnds(t *testing.T) {
	boom := errors.New("the slot is gone")
	for _, c := range []struct {
		name string
		run  func(context.Context, Target) error
	}{
		{"before it listens", func(context.Context, Target) error { return boom }},
		{"later", (&pipe{fails: boom}).run},
	} {
		out := newBuffer("")
		err := runDemo(t, t.Context(), &pipe{}, out, func(cfg *Config) {
			cfg.SourceURL, cfg.Run = serverstest.Database(t), c.run
		})
		if !errors.Is(err, boom) || !errors.Is(err, errEnded) {
			t.Errorf("%s: got %v\n%s", c.name, err, out)
		}
	}
}

func TestDemoEndsWhenTheScreenIsGone(t *testing.T) {
	p := &pipe{}
	err := runDemo(t, t.Context(), p, nil, func(c *Config) {
		c.SourceURL, c.Out = serverstest.Database(t), &closedPipe{}
	})
	if !errors.Is(err, errClosedPipe) {
		t.Errorf("got %v", err)
	}
	if !p.stopped {
		t.Error("the forwarder was not stopped")
	}
}

func TestDemoCannotReachGivenServers(t *testing.T) {
	// Nothing listens on a port that was just given back.
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	free := cluster.ListenAddrs()[0]
	cluster.Close()
	out := newBuffer("")
	err = runDemo(t, t.Context(), &pipe{}, out, func(c *Config) {
		c.SourceURL = "postgres://someone:s3cret-word@" + free + "/nowhere"
	})
	if err == nil || !strings.Contains(err.Error(), "preparing PostgreSQL") {
		t.Errorf("got %v", err)
	}
	if strings.Contains(out.String()+err.Error(), "s3cret") {
		t.Errorf("the password is shown: %v\n%s", err, out)
	}
}

func TestConfigListsEveryProblem(t *testing.T) {
	err := Run(t.Context(), Config{Rate: -1, Duration: -time.Second})
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{"Init, Run and Out", "rate -1", "duration -1s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}
