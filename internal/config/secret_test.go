package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// urlForms are the ways in which a password reaches a connection string, right and wrong.
var urlForms = []string{
	"postgres://app:%s@db:5432/app",
	"postgresql://app:%s@db/app?sslmode=require",
	"postgres://app:%s@db1:5432,db2:5433/app?target_session_attrs=read-write",
	"postgres://app:%s@[::1]:5432/app",
	"postgres://:%s@db/app",
	"postgres://app@db/app?password=%s",
	"postgres://db/app?user=app&password=%s&sslmode=disable",
	"postgres://db/app?sslpassword=%s",
	"postgres://app:%s@/app?host=/var/run/postgresql",
	"postgres://app:%s@db:port/app",
	"postgres://app:%s@db/app?sslmode=sure",
	"postgres://app:%s",
	"postgres:app:%s@db/app",
	"postgres:/app:%s@db/app",
	"postgres://app:pre/%s@db/app",
	"postgres://app:pre?%s@db/app",
	"postgres://app:pre?x=%s@db/app",
	"postgres://app:1#%s@db/app",
	"postgres://app:1/%s@db/app",
	"postgres://app:p@ss/%s@db/app",
	"Postgres://app:%s@db/app",
	"mongodb://app:%s@db/app",
	"mongodb://app:%s@db1:27017,db2/app?replicaSet=r",
	"mongodb://db/app?authMechanismProperties=%s",
	"mongodb+srv://app:%s@db/app",
	"mysql://app:%s@db/app",
	"unknown://app:%s@db/app",
	"jdbc:postgresql://db/app?user=app&password=%s",
	"host=db user=app password=%s dbname=app",
	"host=db user=app password='%s' dbname=app",
	"host=db user=app password = '%s' dbname=app",
	"host=db user=app sslpassword=%s dbname=app",
	"host=db user=app password=pre %s dbname=app",
	"host=db user=app password=pre %s=x dbname=app",
	"host=db user=app password='%s dbname=app",
	"host=db dbname= password=%s",
	"host=db dbname= pass=%s user=app",
	"password=%s://x host=db",
	"%s",
}

// secretShapes have characters around the tell-tale word that parsers trip over.
var secretShapes = []string{
	"hunter2", "hunter2/", "/hunter2", "?hunter2", "#hunter2", "@hunter2", "hunter2@", ":hunter2", "hunter2:x",
	"%hunter2", "%zzhunter2", " hunter2", "hunter2 ", "'hunter2", `hunter2\`, `"hunter2"`, "=hunter2", "hunter2=",
	"&hunter2", "hunter2&x=", "[hunter2", "hunter2]", "héhunter2", "\thunter2", "hunter2\n", "$hunter2", "{hunter2}",
	"*hunter2", "!hunter2", "|hunter2", ">hunter2", "`hunter2`", "- hunter2", "hunter2: x", "hunter2 #", "1hunter2",
	"${hunter2", ",hunter2", "a,hunter2:1", "://hunter2", "hunter2://x",
}

const telltale = "hunter2"

// leaks returns the first of the texts that a secret shows in.
func leaks(texts ...string) (string, bool) {
	for _, text := range texts {
		if strings.Contains(text, telltale) {
			return text, true
		}
	}
	return "", false
}

// printed is every way in which a program prints a value.
func printed(t testing.TB, v any) []string {
	t.Helper()
	var texts []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
		texts = append(texts, fmt.Sprintf(verb, v))
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	slog.New(slog.NewTextHandler(&buf, nil)).Info("m", "v", v)
	slog.New(slog.NewJSONHandler(&buf, nil)).Info("m", "v", v)
	return append(texts, string(encoded), buf.String())
}

// everyWay gives a connection string by flag, variable and file, as text and by reference,
// and returns what came of it.
func everyWay(text string) (configs []Config, errs []error) {
	quoted := strings.ReplaceAll(text, "'", "''")
	for _, yaml := range []string{
		"source:\n  postgres:\n    url: " + text + "\n",
		"source:\n  postgres:\n    url: '" + quoted + "'\n",
		"source:\n  postgres:\n    ulr: '" + quoted + "'\n",
		"source:\n  postgres: '" + quoted + "'\n",
		"source:\n  postgres:\n    url: ['" + quoted + "']\n",
		"source:\n  postgres:\n    table: '" + quoted + "'\n",
		"source:\n  postgres:\n    replication_url: '" + quoted + "'\n",
		"source:\n  mongo:\n    url: '" + quoted + "'\n",
		"source:\n  mongo:\n    collection: '" + quoted + "'\n",
		"source:\n  postgres:\n    url: {a: '" + quoted + "'}\n",
		"kafka:\n  brokers: ['" + quoted + "']\n",
		"kafka:\n  sasl: {mechanism: PLAIN, username: u, password: '" + quoted + "'}\n",
		"kafka:\n  sasl:\n    mechanism: PLAIN\n    username: u\n    password: " + text + "\n",
	} {
		cfg, err := Load(Overrides{File: "f.yaml", FileGiven: true}, nil, files{"f.yaml": yaml}.read)
		configs, errs = append(configs, cfg), append(errs, err)
	}
	cfg, err := Load(Overrides{Flags: map[string]string{"source.postgres.url": text}}, nil, files{}.read)
	configs, errs = append(configs, cfg), append(errs, err)
	for _, line := range []string{"FORWARDER_SOURCE_POSTGRES_URL=" + text, "FORWARDER_SOURCE_POSTGRES_ULR=" + text, "FORWARDER_SOURCE_MONGO_URL=" + text} {
		cfg, err := Load(Overrides{}, []string{line}, files{}.read)
		configs, errs = append(configs, cfg), append(errs, err)
	}
	for _, reference := range []string{"file:/s", "${URL}"} {
		environ := []string{"URL=" + text, "FORWARDER_SOURCE_POSTGRES_URL=" + reference}
		cfg, err := Load(Overrides{}, environ, files{"/s": text + "\n"}.read)
		configs, errs = append(configs, cfg), append(errs, err)
	}
	return configs, errs
}

// TestSecretsAppearNowhere puts a password with every awkward shape into every form, in
// every way, and looks for it in everything that can be printed.
//
// Bare words are left out: alone, hunter2 is a table or a broker as good as any.
func TestSecretsAppearNowhere(t *testing.T) {
	tried := 0
	for _, form := range urlForms {
		for _, shape := range secretShapes {
			text := fmt.Sprintf(form, shape)
			if form == "%s" && !strings.Contains(shape, "://") {
				continue // a bare word is shown where it stands as a table or a broker
			}
			configs, errs := everyWay(text)
			for i := range configs {
				if strings.Contains(shape, " #") && (i == 0 || i == 12) {
					continue // to YAML the rest is a comment, and what is left is another URL
				}
				tried++
				var texts []string
				if err := errs[i]; err != nil {
					texts = []string{err.Error(), fmt.Sprintf("%+v %#v", err, err)}
				} else {
					texts = slices.Concat(printed(t, configs[i]), printed(t, configs[i].Source.Postgres.URL), printed(t, configs[i].Source.Mongo.URL))
				}
				if where, leaked := leaks(texts...); leaked {
					t.Errorf("%q, way %d: the password shows in %s", text, i, where)
				}
			}
		}
	}
	if tried < 10000 {
		t.Errorf("only %d combinations were tried", tried)
	}
}

// TestSecretsInBrokenFilesAppearNowhere: slips of a hand that make YAML read a password as
// something else.
func TestSecretsInBrokenFilesAppearNowhere(t *testing.T) {
	for _, content := range []string{
		"kafka: {sasl: {password: *hunter2}}",
		"kafka:\n  sasl:\n    password: *hunter2\n",
		"kafka:\n  sasl:\n    password:hunter2\n",
		"kafka:\n  sasl:\n    password:hunter2: x\n",
		"kafka:\n  sasl:\n    username: u\n    password:hunter2\n",
		"kafka:\n  sasl:\n    pasword: hunter2\n",
		"kafka:\n  sasl:\n    password: {hunter2: x}\n",
		"kafka:\n  sasl:\n    password: !hunter2 x\n",
		"kafka:\n  sasl:\n    ? [hunter2]\n    : x\n",
		"kafka:\n  brokers: [u:hunter2@k:9092]\n",
		"source:\n  postgres:\n    table: postgres:app:hunter2\n",
		"postgres://u:hunter2@h/db",
	} {
		_, err := loadFile(content)
		if err == nil {
			t.Errorf("%q is accepted", content)
		} else if where, leaked := leaks(err.Error()); leaked {
			t.Errorf("%q: the password shows in %s", content, where)
		}
	}
}

// TestGoodURLsAreShownWithoutTheirPassword: hiding everything would also pass the test above.
func TestGoodURLsAreShownWithoutTheirPassword(t *testing.T) {
	for text, want := range map[string]string{
		"postgres://app:hunter2@db:5432/app":                         "postgres://app:xxxxx@db:5432/app",
		"postgresql://app:hun%2Fter@db/app?sslmode=require":          "postgresql://app:xxxxx@db/app?sslmode=require",
		"postgres://app@db1:5432,db2/app?password=hunter2&user=u":    "postgres://app@db1:5432,db2/app?user=u",
		"host=db user=app password='hunter2 x' dbname=app":           "host=db user=app password=xxxxx dbname=app",
		`host='/var/run/my dir' password=hunter2 options=-csecret=1`: `host='/var/run/my dir' password=xxxxx`,
		"mongodb://app:hunter2@db/app":                               "mongodb://app:xxxxx@db/app",
		"mongodb+srv://app:hun%2Fter2@db/?replicaSet=r&x=hunter2":    "mongodb+srv://app:xxxxx@db/?replicaSet=r",
	} {
		if got := RedactURL(text); got != want {
			t.Errorf("RedactURL(%q) = %q, want %q", text, got, want)
		}
	}
	cfg, err := loadFile("kafka: {sasl: {mechanism: PLAIN, username: app, password: hunter2}}", enough...)
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Kafka.SASL.Password.Reveal(); got != "hunter2" {
		t.Errorf("the password is %q", got)
	}
	var buf bytes.Buffer
	slog.New(slog.NewTextHandler(&buf, nil)).Info("m", "config", cfg)
	for _, want := range []string{"config.kafka.sasl.password=(hidden)", "config.source.postgres.url=postgres://u@h/db", "config.shutdown.grace=20s", "config.memory.events=32MiB", "config.kafka.brokers=[k:9092]", "config.log.level=INFO"} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("the log line lacks %s: %s", want, buf.String())
		}
	}
}

// TestWhatIsAcceptedTheDriverReadsAlike compares with the driver's own parser: a connection
// string that passes here must not be refused there, and must mean the same.
func TestWhatIsAcceptedTheDriverReadsAlike(t *testing.T) {
	accepted := 0
	for _, form := range urlForms {
		for _, shape := range secretShapes {
			for _, secret := range []string{shape, url.PathEscape(shape), url.QueryEscape(shape)} {
				text := fmt.Sprintf(form, secret)
				if checkURL(text) != nil {
					continue
				}
				accepted++
				if _, err := pgconn.ParseConfig(text); err != nil {
					t.Errorf("%q passes, but the driver says: %v", text, err)
				}
			}
		}
	}
	if accepted < 500 {
		t.Errorf("only %d connection strings were accepted", accepted)
	}
}

// TestEveryPasswordWorksPercentEncoded: the fix that a problem names must be enough.
func TestEveryPasswordWorksPercentEncoded(t *testing.T) {
	for _, password := range secretShapes {
		text := "postgres://app:" + strings.ReplaceAll(url.QueryEscape(password), "+", "%20") + "@db:5432/app"
		if bad := checkURL(text); bad != nil {
			t.Errorf("%q is refused: %s", text, bad.problem)
			continue
		}
		parsed, err := pgconn.ParseConfig(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if parsed.Password != password || parsed.Host != "db" || parsed.Database != "app" {
			t.Errorf("%q: the driver reads password %q, host %q, database %q", text, parsed.Password, parsed.Host, parsed.Database)
		}
	}
}

func FuzzRedactURL(f *testing.F) {
	for _, form := range urlForms {
		prefix, suffix, _ := strings.Cut(form, "%s")
		f.Add(prefix, suffix, "/x")
	}
	f.Fuzz(func(t *testing.T, prefix, suffix, around string) {
		// Only texts that a driver would read the secret from as a password are judged: what
		// stands as a host or a database is meant to be shown.
		text := prefix + around + telltale + suffix
		parsed, err := pgconn.ParseConfig(text)
		if err != nil || !strings.Contains(parsed.Password, telltale) || strings.Count(text, telltale) != 1 {
			return
		}
		if shown := RedactURL(text); strings.Contains(shown, telltale) {
			t.Errorf("RedactURL(%q) = %q", text, shown)
		}
	})
}
