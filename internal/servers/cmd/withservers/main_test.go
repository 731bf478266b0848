package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheCommandFindsBothServersAndItsExitCodeIsPassedOn(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	t.Setenv("OUT", out)
	code, err := withServers([]string{"sh", "-c", `echo "$FORWARDER_TEST_POSTGRES $FORWARDER_TEST_KAFKA" >"$OUT"; exit 7`})
	if err != nil {
		t.Fatal(err)
	}
	if code != 7 {
		t.Errorf("exit code %d, want the command's 7", code)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	postgres, kafka, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if !strings.HasPrefix(postgres, "postgres://") || !strings.HasPrefix(kafka, "127.0.0.1:") {
		t.Errorf("the command saw PostgreSQL at %q and Kafka at %q", postgres, kafka)
	}
}

func TestNoCommandIsRefused(t *testing.T) {
	if code, err := withServers(nil); code != 2 || err == nil {
		t.Errorf("code %d, error %v", code, err)
	}
}
