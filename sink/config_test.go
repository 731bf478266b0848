package sink

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestConfigReportsAllProblemsAtOnce(t *testing.T) {
	const secret = "very-secret-word"
	bad := Config{
		Brokers:       []string{"kafka", ":9092", "kafka:0", "kafka:9092"},
		Compression:   "brotli",
		SASL:          SASL{Mechanism: "GSSAPI", User: "alice", Password: secret},
		MaxBatchBytes: 10,
		MaxInFlight:   -1,
		Linger:        2 * time.Second,
		TopicMaxAge:   time.Millisecond,
		AskTimeout:    time.Millisecond,
	}
	_, err := New(bad)
	if err == nil {
		t.Fatal("a bad configuration is accepted")
	}
	for _, want := range []string{`"kafka"`, `":9092"`, `"kafka:0"`, "brotli", "zstd", "GSSAPI", "SCRAM-SHA-256", "max batch bytes", "max in flight", "linger", "topic max age", "ask timeout"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the problems do not name %q:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), `"kafka:9092"`) {
		t.Errorf("a good address is a problem:\n%v", err)
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("the problems hold the password:\n%v", err)
	}
	for _, c := range []Config{{}, {Brokers: []string{"k:1"}, SASL: SASL{User: "alice"}}, {Brokers: []string{"k:1"}, SASL: SASL{Mechanism: "PLAIN"}}} {
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if err := (Config{Brokers: []string{"kafka:9092", "[::1]:9092"}}).Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
}

func TestPasswordIsNeverPrinted(t *testing.T) {
	const secret = "very-secret-word"
	s := SASL{Mechanism: "PLAIN", User: "alice", Password: secret}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "sasl", s, "config", Config{SASL: s})
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), fmt.Sprintf("%+v", Config{SASL: s}), log.String()} {
		if strings.Contains(text, secret) {
			t.Errorf("%q holds the password", text)
		}
		if !strings.Contains(text, "alice") {
			t.Errorf("%q does not name the user", text)
		}
	}
}
