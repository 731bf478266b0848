package config

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const exampleFile = "../../forwarder.example.yaml"

// commentedSetting is a setting without a default in the example: "#url: ...". Prose has a
// space behind its "#".
var commentedSetting = regexp.MustCompile(`(?m)^( *)#([a-z_]+:)`)

func readExample(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTheExampleShowsTheDefaults(t *testing.T) {
	cfg, err := Load(Overrides{File: "x.yaml", FileGiven: true}, nil, files{"x.yaml": readExample(t)}.read)
	if err != nil {
		t.Fatal(err)
	}
	if want := defaults(); !reflect.DeepEqual(cfg, want) {
		t.Errorf("the example differs from the defaults:\n%+v\nwant\n%+v", cfg, want)
	}
}

func TestTheExampleHasEverySettingAndNoOther(t *testing.T) {
	full := commentedSetting.ReplaceAllString(readExample(t), "$1$2")
	full = strings.Replace(full, "enabled: false", "enabled: true", 1)
	ca, cert, key := testCertificate(t)
	files := files{
		"/etc/forwarder/ca.pem": ca, "/etc/forwarder/client.pem": cert, "/etc/forwarder/client.key": key,
		"/run/secrets/kafka-password": "secret\n",
	}
	shown := map[string]bool{}
	// The outbox is in one database; what has no default in the section of the other is
	// taken out, and a durable slot brings the settings of a slot into effect.
	postgres := regexp.MustCompile(`(?m)^    ((replication_)?url: postgres:|publication:|slot_name:).*$`)
	mongo := regexp.MustCompile(`(?m)^    (url: mongodb:|database:).*$`)
	durable := strings.NewReplacer("mode: poll\n\n    # Where the log", "mode: stream\n\n    # Where the log", "slot: temporary", "slot: durable")
	for _, text := range []string{postgres.ReplaceAllString(full, ""), durable.Replace(mongo.ReplaceAllString(full, ""))} {
		files["x.yaml"] = text
		l := newLoader([]string{"PGPASSWORD=x"}, files.read)
		if _, err := l.load(Overrides{File: "x.yaml", FileGiven: true, Needs: Needs{Source: true, Kafka: true, Admin: true}}); err != nil {
			t.Fatal(err)
		}
		for path := range l.given {
			shown[path] = true
		}
	}
	for _, s := range settings {
		if !shown[s.path] {
			t.Errorf("%s is not in the example", s.path)
		}
	}
}

// TestEveryFieldIsASetting holds the struct and the list of settings together: each leaf of
// Config is set by exactly one setting.
func TestEveryFieldIsASetting(t *testing.T) {
	leaves := countLeaves(reflect.TypeFor[Config]())
	if leaves != len(settings) {
		t.Errorf("Config has %d fields and there are %d settings", leaves, len(settings))
	}
	var paths, variables []string
	for _, s := range settings {
		paths = append(paths, s.path)
		variables = append(variables, Variable(s.path))
	}
	for _, names := range [][]string{paths, variables} {
		slices.Sort(names)
		if distinct := len(slices.Compact(slices.Clone(names))); distinct != len(names) {
			t.Errorf("two settings share a name: %v", names)
		}
	}
}

func countLeaves(t reflect.Type) int {
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[Secret]() || t == reflect.TypeFor[Table]() {
		return 1
	}
	n := 0
	for f := range t.Fields() {
		n += countLeaves(f.Type)
	}
	return n
}
