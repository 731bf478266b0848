package config

import (
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLaterWaysWin(t *testing.T) {
	file := files{"f.yaml": `
source: {postgres: {url: postgres://file@h/db, table: s.file}}
kafka: {brokers: [file:1], client_id: file}
log: {format: json}
admin: {listen: 127.0.0.1:1}
`}
	args := Overrides{File: "f.yaml", FileGiven: true,
		Flags: map[string]string{"source.postgres.url": "postgres://flag@h/db", "kafka.brokers": "flag:1, flag:2"}}
	cfg, err := Load(args, []string{
		"FORWARDER_SOURCE_POSTGRES_URL=postgres://env@h/db", "FORWARDER_KAFKA_BROKERS=env:1",
		"FORWARDER_KAFKA_CLIENT_ID=env", "FORWARDER_SHUTDOWN_GRACE=1m", "FORWARDER_MEMORY_EVENTS=1GiB",
		"FORWARDER_LOG_LEVEL=debug", "FORWARDER_ADMIN_LISTEN=none", "FORWARDER_KAFKA_TLS_ENABLED=true",
	}, file.read)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Source.Postgres.URL = NewURL("postgres://flag@h/db")
	want.Source.Postgres.Table = Table{"s", "file"}
	want.Kafka.Brokers = []string{"flag:1", "flag:2"}
	want.Kafka.ClientID = "env"
	want.Kafka.TLS.Enabled = true
	want.Memory.Events = GiB
	want.Admin.Listen = ""
	want.Log = Log{Format: "json", Level: slog.LevelDebug}
	want.Shutdown.Grace = time.Minute
	if !reflect.DeepEqual(cfg, want) {
		t.Errorf("got\n%+v\nwant\n%+v", cfg, want)
	}
}

// TestOnlyTheWinnerIsJudged: a file for production may refer to a variable that a developer,
// who gives the URL by a flag, does not have.
func TestOnlyTheWinnerIsJudged(t *testing.T) {
	cfg, err := Load(
		Overrides{File: "f.yaml", FileGiven: true, Flags: map[string]string{"source.postgres.url": "postgres://flag@h/db"}},
		nil, files{"f.yaml": "source: {postgres: {url: '${NOT_HERE}'}}"}.read)
	if err != nil || cfg.Source.Postgres.URL.Reveal() != "postgres://flag@h/db" {
		t.Errorf("got %v, %v", cfg.Source.Postgres.URL, err)
	}
}

// TestTheURLChoosesTheDatabase: --source-url and --mode mean whichever database the URL is of.
func TestTheURLChoosesTheDatabase(t *testing.T) {
	for name, c := range map[string]struct {
		flags   map[string]string
		environ []string
		mongo   bool
		mode    Mode
		outbox  string
	}{
		"flag":         {flags: map[string]string{"source.postgres.url": "mongodb://u:p@h/app?replicaSet=r", "source.postgres.mode": "stream"}, mongo: true, mode: ModeStream, outbox: "app.outbox"},
		"flag to file": {flags: map[string]string{"source.postgres.url": "file:/url"}, mongo: true, mode: ModePoll, outbox: "db.outbox"},
		"reference":    {flags: map[string]string{"source.postgres.url": "${URL}"}, environ: []string{"URL=mongodb+srv://h/srv"}, mongo: true, mode: ModePoll, outbox: "srv.outbox"},
		"environment": {flags: map[string]string{"source.postgres.mode": "stream"}, environ: []string{"FORWARDER_SOURCE_MONGO_URL=mongodb://h", "FORWARDER_SOURCE_MONGO_DATABASE=d", "FORWARDER_SOURCE_MONGO_COLLECTION=c"},
			mongo: true, mode: ModeStream, outbox: "d.c"},
		"PostgreSQL": {flags: map[string]string{"source.postgres.url": "postgres://h/db", "source.postgres.mode": "stream"}, mode: ModeStream, outbox: "public.outbox"},
		"keywords":   {flags: map[string]string{"source.postgres.url": "host=h password='mongodb://'"}, mode: ModePoll, outbox: "public.outbox"},
	} {
		reads := 0
		cfg, err := Load(Overrides{Flags: c.flags, Needs: Needs{Source: true}}, c.environ, func(string) ([]byte, error) {
			reads++
			return []byte("mongodb://h/db\n"), nil
		})
		mode := cfg.Source.Postgres.Mode
		if c.mongo {
			mode = cfg.Source.Mongo.Mode
		}
		if err != nil || cfg.Source.IsMongo() != c.mongo || mode != c.mode || cfg.Source.Outbox() != c.outbox {
			t.Errorf("%s: got %+v, %v", name, cfg.Source, err)
		}
		if reads > 1 {
			t.Errorf("%s: the file was read %d times, and may have been a pipe", name, reads)
		}
	}
	_, err := Load(Overrides{Flags: map[string]string{"source.postgres.url": "mongodb://h/app"}, Needs: Needs{Source: true}}, enough, files{}.read)
	wantProblems(t, err, `source: names both postgres and mongo; keep one: a forwarder moves one outbox`)
	_, err = Load(Overrides{Needs: Needs{Source: true}}, []string{"FORWARDER_SOURCE_MONGO_URL=postgres://u:hunter2@h/db"}, files{}.read)
	wantProblems(t, err, `source.mongo.url = postgres://u:xxxxx@h/db (FORWARDER_SOURCE_MONGO_URL): names PostgreSQL; give it as source.postgres.url`)
	_, err = Load(Overrides{Needs: Needs{Source: true}}, []string{"FORWARDER_SOURCE_POSTGRES_URL=mongodb://u:hunter2@h/db"}, files{}.read)
	wantProblems(t, err, `source.postgres.url = mongodb://u:xxxxx@h/db (FORWARDER_SOURCE_POSTGRES_URL): names MongoDB; give it as source.mongo.url`)
	// Nothing names a server, as with init --print.
	cfg, err := Load(Overrides{}, []string{"FORWARDER_SOURCE_MONGO_COLLECTION=events"}, files{}.read)
	if err != nil || !cfg.Source.IsMongo() {
		t.Errorf("a collection without a URL: got %+v, %v", cfg.Source, err)
	}
}

func TestEmptyIsNotAbsent(t *testing.T) {
	args := Overrides{FileGiven: true, Flags: map[string]string{"source.postgres.url": "", "kafka.brokers": ""}, Needs: Needs{Source: true, Kafka: true}}
	_, err := Load(args, []string{"FORWARDER_KAFKA_CLIENT_ID=", "FORWARDER_LOG_FORMAT="}, files{}.read)
	wantProblems(t, err,
		`--config = "": is empty; name a YAML file, or leave it out`,
		`kafka.brokers = "" (--brokers): is empty; write at least one item`,
		`kafka.client_id = "" (FORWARDER_KAFKA_CLIENT_ID): is empty; give it a value, or leave it out`,
		`log.format = "" (FORWARDER_LOG_FORMAT): is empty; give it a value, or leave it out`,
		`source.postgres.url = "" (--source-url): is empty; give it a value, or leave it out`)
}

func TestNeeds(t *testing.T) {
	const url = `source.postgres.url: is not set; give --source-url, FORWARDER_SOURCE_POSTGRES_URL, or source.postgres.url in the file that --config names`
	const brokers = `kafka.brokers: is not set; give --brokers, FORWARDER_KAFKA_BROKERS, or kafka.brokers in the file that --config names`
	_, err := Load(Overrides{Needs: Needs{Source: true, Kafka: true}}, nil, files{}.read)
	wantProblems(t, err, brokers, url)
	_, err = Load(Overrides{Needs: Needs{Source: true}}, nil, files{}.read)
	wantProblems(t, err, url)
	_, err = Load(Overrides{Needs: Needs{Admin: true}}, []string{"FORWARDER_ADMIN_LISTEN=none"}, files{}.read)
	wantProblems(t, err, `admin.listen = "none" (FORWARDER_ADMIN_LISTEN): is none, and this command asks the running forwarder at that address; give the address with --admin-listen`)
	if _, err := Load(Overrides{Needs: Needs{Admin: true}}, nil, files{}.read); err != nil {
		t.Error(err)
	}
}

// TestAFileThatCannotBeReadIsOneProblem: what would have been in it is not reported missing,
// and what is wrong elsewhere still is.
func TestAFileThatCannotBeReadIsOneProblem(t *testing.T) {
	args := Overrides{File: "f.yaml", FileGiven: true, Needs: Needs{Source: true, Kafka: true}}
	_, err := Load(args, []string{"FORWARDER_LOG_FORMAT=xml"}, files{"f.yaml": unreadable}.read)
	wantProblems(t, err,
		`--config = "f.yaml": cannot be read: permission denied; name a YAML file that this user may read`,
		`log.format = "xml" (FORWARDER_LOG_FORMAT): is not an allowed value; write one of text, json`)
	_, err = Load(Overrides{}, []string{"FORWARDER_CONFIG=gone.yaml"}, files{}.read)
	wantProblems(t, err, `FORWARDER_CONFIG = "gone.yaml": cannot be read: no such file or directory; name a YAML file that this user may read`)
}

func TestExpansion(t *testing.T) {
	for text, want := range map[string]string{
		"${A}":          "alpha",
		"x${A}-${B}y":   "xalpha-${A}y", // what was put in is not expanded again
		"$${A}":         "${A}",
		"$$${A}":        "$${A}",
		"$A":            "$A",
		"a$":            "a$",
		"${A}$${B}${A}": "alpha${B}alpha",
	} {
		cfg, err := loadFile("kafka:\n  client_id: '"+text+"'", append([]string{"A=alpha", "B=${A}"}, enough...)...)
		if err != nil || cfg.Kafka.ClientID != want {
			t.Errorf("%s: got %q, %v; want %q", text, cfg.Kafka.ClientID, err, want)
		}
	}
	cfg, err := loadFile("kafka: {brokers: ['${LIST}', c:3], tls: {enabled: '${ON}'}}\nshutdown: {grace: '${N}s'}", "LIST=a:1,b:2", "ON=true", "N=5", enough[0])
	if err != nil || !slices.Equal(cfg.Kafka.Brokers, []string{"a:1", "b:2", "c:3"}) || !cfg.Kafka.TLS.Enabled || cfg.Shutdown.Grace != 5*time.Second {
		t.Errorf("got %+v, %v", cfg, err)
	}
}

func TestSecretsFromFiles(t *testing.T) {
	for content, want := range map[string]string{
		"s3cret":       "s3cret",
		"s3cret\n":     "s3cret",
		"s3cret\r\n":   "s3cret",
		" spaced \n":   " spaced ",
		"${NOT_HERE}":  "${NOT_HERE}", // a file's content is taken as it is
		"file:/other ": "file:/other ",
	} {
		cfg, err := Load(Overrides{}, []string{
			"FORWARDER_KAFKA_SASL_MECHANISM=PLAIN", "FORWARDER_KAFKA_SASL_USERNAME=u",
			"FORWARDER_KAFKA_SASL_PASSWORD=file:${DIR}/pw", "DIR=/run",
		}, files{"/run/pw": content}.read)
		if err != nil || cfg.Kafka.SASL.Password.Reveal() != want {
			t.Errorf("%q: got %q, %v", content, cfg.Kafka.SASL.Password.Reveal(), err)
		}
	}
	_, err := Load(Overrides{}, []string{"FORWARDER_SOURCE_POSTGRES_URL=file:/empty"}, files{"/empty": "\n"}.read)
	wantProblems(t, err, `source.postgres.url = "file:/empty" (FORWARDER_SOURCE_POSTGRES_URL): refers to the file "/empty", which is empty; put the secret into the file`)
	_, err = Load(Overrides{}, []string{"FORWARDER_SOURCE_POSTGRES_URL=file:/two"}, files{"/two": "postgres://u:hunter2@h/db\nhunter2\n"}.read)
	wantProblems(t, err, `source.postgres.url = "file:/two" (FORWARDER_SOURCE_POSTGRES_URL): holds a line break or a zero byte; write the connection string on one line`)
}

func TestVariablesThatAreNotForTheConfiguration(t *testing.T) {
	_, err := loadFile("kafka: {client_id: '${FORWARDER_POD}'}", append([]string{
		"FORWARDER_POD=pod-1", // used by the file
		"FORWARDER_CACHE=/tmp", "FORWARDER_TEST_POSTGRES=x",
		// Kubernetes sets these for services called forwarder and forwarder-admin.
		"FORWARDER_SERVICE_HOST=10.0.0.1", "FORWARDER_SERVICE_PORT=8470", "FORWARDER_SERVICE_PORT_HTTP=8470",
		"FORWARDER_PORT=tcp://10.0.0.1:8470", "FORWARDER_PORT_8470_TCP=tcp://10.0.0.1:8470",
		"FORWARDER_PORT_8470_TCP_PROTO=tcp", "FORWARDER_PORT_8470_TCP_PORT=8470", "FORWARDER_PORT_8470_TCP_ADDR=10.0.0.1",
		"FORWARDER_ADMIN_SERVICE_HOST=10.0.0.1", "FORWARDER_ADMIN_PORT=tcp://10.0.0.1:8470",
		"OTHER_FORWARDER_X=1", "=C:=x",
	}, enough...)...)
	if err != nil {
		t.Error(err)
	}
	_, err = loadFile("", append([]string{"FORWARDER_ADMIN_PORT=8470", "FORWARDER_BROKERS=k:1", "FORWARDER_SOURCE_URL=postgres://u:hunter2@h/db", "FORWARDER_SOURCE_MONGO_URL=mongodb://h"}, enough...)...)
	wantProblems(t, err,
		`FORWARDER_ADMIN_PORT: is not a setting's variable; remove it, or write FORWARDER_ and a setting's path in capitals, such as FORWARDER_SOURCE_POSTGRES_URL`,
		`FORWARDER_BROKERS: is not a setting's variable; did you mean FORWARDER_KAFKA_BROKERS?`,
		`FORWARDER_SOURCE_URL: is not a setting's variable; remove it, or write FORWARDER_ and a setting's path in capitals, such as FORWARDER_SOURCE_POSTGRES_URL`,
		`source: names both postgres and mongo; keep one: a forwarder moves one outbox`)
}

func TestNamesAreTakenExactly(t *testing.T) {
	for text, want := range map[string]Table{
		`public.outbox`:       {"public", "outbox"},
		`App.OutBox`:          {"App", "OutBox"},
		`"a.b"."c ""d"""`:     {"a.b", `c "d"`},
		`s."none"`:            {"s", "none"},
		`schéma.` + long("é"): {"schéma", long("é")},
	} {
		got, bad := parseTable(text)
		if bad != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, bad)
			continue
		}
		if again, bad := parseTable(got.String()); bad != nil || again != want {
			t.Errorf("%s is shown as %s, which reads as %+v, %v", text, got, again, bad)
		}
	}
	for _, text := range []string{`.a`, `a.`, `a..b`, `"a`, `"a"b.c`, `a b.c`, `a."`, `""."x"`, "s." + long("é") + "x", "s.a\x00b"} {
		if got, bad := parseTable(text); bad == nil {
			t.Errorf("%q is taken as %+v", text, got)
		}
	}
	cfg, err := loadFile(`source: {postgres: {columns: {id: ID, key: none, headers: none, created_at: '"none"'}}}`, enough...)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Columns{ID: "ID", Topic: "topic", Payload: "payload", CreatedAt: "none"}); cfg.Source.Postgres.Columns != want {
		t.Errorf("columns are %+v", cfg.Source.Postgres.Columns)
	}
}

// long makes the longest name that PostgreSQL keeps.
func long(r string) string {
	return strings.Repeat(r, maxIdentifier/len(r)) + "x"[:maxIdentifier%len(r)]
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{"1B": 1, "3KiB": 3072, "32MiB": 32 << 20, "2 GiB": 2 << 30, "0B": 0} {
		got, bad := parseSize(text)
		if bad != nil || got != want {
			t.Errorf("%s: got %d, %v", text, got, bad)
		}
		if again, bad := parseSize(got.String()); bad != nil || again != want {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
}

func TestTLSFiles(t *testing.T) {
	ca, cert, key := testCertificate(t)
	_, _, otherKey := testCertificate(t)
	fs := files{"ca": ca, "cert": cert, "key": key, "other": otherKey, "no": unreadable}
	c, problems := TLS{Enabled: true, CAFile: "ca", CertFile: "cert", KeyFile: "key", ServerName: "k"}.Client(fs.read)
	if problems != nil || c.RootCAs == nil || len(c.Certificates) != 1 || c.ServerName != "k" {
		t.Errorf("got %+v, %v", c, problems)
	}
	if c, problems := (TLS{CAFile: "gone"}).Client(fs.read); c != nil || problems != nil {
		t.Errorf("TLS that is off: got %v, %v", c, problems)
	}
	_, problems = TLS{Enabled: true, CertFile: "cert", KeyFile: "other"}.Client(fs.read)
	if len(problems) != 1 || !strings.Contains(problems[0].Problem, "does not go with kafka.tls.key_file") {
		t.Errorf("another certificate's key: %v", problems)
	}
	_, err := Load(Overrides{}, []string{"FORWARDER_KAFKA_TLS_ENABLED=true", "FORWARDER_KAFKA_TLS_CA_FILE=gone", "FORWARDER_KAFKA_TLS_CERT_FILE=cert", "FORWARDER_KAFKA_TLS_KEY_FILE=no"}, fs.read)
	wantProblems(t, err,
		`kafka.tls.ca_file = "gone" (FORWARDER_KAFKA_TLS_CA_FILE): cannot be read: no such file or directory; name a PEM file that this user may read`,
		`kafka.tls.key_file = "no" (FORWARDER_KAFKA_TLS_KEY_FILE): cannot be read: permission denied; name a PEM file that this user may read`)
}

// FuzzFile: whatever is in the file, Load answers with a value or with problems that say
// everything they should.
func FuzzFile(f *testing.F) {
	f.Add("log: {level: info}")
	f.Add("a: &a {b: *a}")
	f.Add("kafka: &a\n  sasl: *a\n  tls: *a")
	f.Add("source: [*x, ~]\n? [k]\n: v")
	f.Fuzz(func(t *testing.T, content string) {
		_, err := loadFile(content, enough...)
		if err == nil {
			return
		}
		var problems Problems
		if !errors.As(err, &problems) || len(problems) == 0 {
			t.Fatalf("error is %T", err)
		}
		for _, e := range problems {
			if e.Field == "" || e.Problem == "" || e.Hint == "" || strings.ContainsAny(e.Error(), "\n\r") {
				t.Errorf("problem is %q", e.Error())
			}
		}
	})
}
