package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

// TestPasswordsInArgumentsAreNotRepeated puts a URL with a password wherever a hand may put
// it. Usage errors must not repeat it.
func TestPasswordsInArgumentsAreNotRepeated(t *testing.T) {
	for _, url := range []string{
		"postgres://app:hunter2@db/app", "postgres://app:x/hunter2@db/app", "mongodb://app:hunter2@db/app",
		"host=db password=hunter2", "host=db password=my hunter2",
	} {
		for _, args := range [][]string{
			{url}, {"help", url}, {"run", url}, {"run", "--", url}, {"run", "--" + url}, {"run", "-" + url},
			{"run", "-source-url=" + url}, {"run", "-s", url}, {"run", "--source-ulr=" + url}, {"run", "--source-ulr", url},
			{"run", "--source-url=" + url}, {"run", "--source-url", url}, {"run", "--source-url", url, "--source-url", url},
			{"run", "--brokers", url}, {"run", "--admin-listen", url}, {"run", "--config", url}, {"run", "--=" + url}, {"run", "---" + url},
			{"init", "--print=" + url}, {"init", "--source-url", url, "--admin-listen", "x"}, {"parked", "--retry=" + url}, {"parked", "--admin-listen", url},
			{"demo", "--rate", url}, {"demo", "--duration", url}, {"demo", "--brokers", url}, {"version", url}, {"--source-url", url, "run"}, {"--source-url=" + url},
		} {
			var stdout, stderr bytes.Buffer
			code := newProgram(t, &stdout, &stderr).main(args)
			if code != exitConfig || stderr.Len() == 0 || stdout.Len() != 0 {
				t.Errorf("%q: exit %d, stdout %q, stderr %q", args, code, stdout.String(), stderr.String())
			}
			if strings.Contains(stderr.String(), "hunter2") {
				t.Errorf("%q: the password shows in %q", args, stderr.String())
			}
		}
	}
}

func TestFlagsReachTheConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte("log: {format: json, level: debug}\nadmin: {listen: none}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	p := newProgram(t, &stdout, &stderr, "FORWARDER_KAFKA_CLIENT_ID=env", "FORWARDER_CONFIG="+file)
	var got config.Config
	p.actions.run = func(_ context.Context, cfg config.Config, logger *slog.Logger) error {
		got = cfg
		logger.Info("hello")
		return nil
	}
	code := p.main([]string{"run", "--source-url", "postgres://u:hunter2@h/db", "--brokers", "a:1,b:2", "--brokers", "c:3", "--admin-listen", "127.0.0.1:0", "--mode", "stream"})
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	if got.Source.Postgres.URL.Reveal() != "postgres://u:hunter2@h/db" || !slices.Equal(got.Kafka.Brokers, []string{"a:1", "b:2", "c:3"}) ||
		got.Source.Postgres.Mode != config.ModeStream || got.Kafka.ClientID != "env" || got.Admin.Listen != "127.0.0.1:0" || got.Log.Format != "json" {
		t.Errorf("got %+v", got)
	}
	// The file's level makes run log the whole configuration.
	log := stderr.String()
	if !strings.Contains(log, `"source.postgres.url":"postgres://u:xxxxx@h/db"`) || !strings.Contains(log, `"msg":"hello"`) || strings.Contains(log, "hunter2") {
		t.Errorf("the log is %s", log)
	}
}

func TestDemoListensToItsFlagsOnly(t *testing.T) {
	var stdout, stderr bytes.Buffer
	p := newProgram(t, &stdout, &stderr, "FORWARDER_SOURCE_POSTGRES_URL=postgres://production/db", "FORWARDER_NO_SETTING=1")
	for args, want := range map[string]demoOptions{
		"demo":                            {Rate: 1000},
		"demo --rate 2.5 --duration 1m":   {Rate: 2.5, Duration: time.Minute},
		"demo --rate max --duration 10ms": {Duration: 10 * time.Millisecond},
	} {
		var got demoOptions
		p.actions.demo = func(_ context.Context, cfg config.Config, o demoOptions, _ io.Writer) error {
			got = o
			if !cfg.Source.Postgres.URL.IsZero() || cfg.Kafka.Brokers != nil {
				t.Errorf("%s: the demo would work on %v, %v", args, cfg.Source.Postgres.URL, cfg.Kafka.Brokers)
			}
			return nil
		}
		if code := p.main(strings.Fields(args)); code != exitOK || got != want {
			t.Errorf("%s: exit %d, got %+v, want %+v; %s", args, code, got, want, stderr.String())
		}
	}
	for _, args := range []string{"--rate 0", "--rate -1", "--rate NaN", "--rate Inf", "--rate fast", "--rate ", "--duration 0s", "--duration -1s", "--duration 5"} {
		name, text, _ := strings.Cut(args, " ")
		if code := newProgram(t, &stdout, &stderr).main([]string{"demo", name, text}); code != exitConfig {
			t.Errorf("demo %s: exit %d", args, code)
		}
	}
}

func TestInitAndParkedGetTheirFlags(t *testing.T) {
	var stdout, stderr bytes.Buffer
	p := newProgram(t, &stdout, &stderr, "FORWARDER_SOURCE_POSTGRES_TABLE=app.events")
	var calls []string
	p.actions.initStore = func(_ context.Context, cfg config.Config, print bool, _ *slog.Logger, out io.Writer) error {
		calls = append(calls, "init "+cfg.Source.Postgres.Table.String())
		if print {
			_, err := io.WriteString(out, "SQL\n")
			return err
		}
		return nil
	}
	p.actions.parked = func(_ context.Context, cfg config.Config, retry bool, out io.Writer) error {
		calls = append(calls, "parked "+cfg.Admin.Listen)
		if retry {
			_, err := io.WriteString(out, "tried\n")
			return err
		}
		return nil
	}
	for _, args := range []string{"init --print", "init --source-url postgres://u@h/db", "parked --admin-listen :9", "parked --retry"} {
		if code := p.main(strings.Fields(args)); code != exitOK {
			t.Errorf("%s: exit %d, %s", args, code, stderr.String())
		}
	}
	if want := []string{"init app.events", "init app.events", "parked :9", "parked 127.0.0.1:8470"}; !slices.Equal(calls, want) {
		t.Errorf("calls are %q, want %q", calls, want)
	}
	if stdout.String() != "SQL\ntried\n" {
		t.Errorf("standard output is %q", stdout.String())
	}
}
