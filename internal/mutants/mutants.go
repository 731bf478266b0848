// Package mutants builds test binaries of a package with one rule left out, so that a test can
// show that another one notices. It is for tests only.
package mutants

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Text returns the file, of the package under test, with old replaced. The place must be there
// once: the code may have moved on.
func Text(t *testing.T, file, old, by string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), old); n != 1 {
		t.Fatalf("%s has %d places with\n%s", file, n, old)
	}
	return strings.Replace(string(text), old, by, 1)
}

// Build builds the test binary of the package in dir with another text in one of its files, and
// without the files that leaveOut names, and returns its path.
func Build(t *testing.T, dir, file, text string, leaveOut func(file string) bool) string {
	t.Helper()
	scratch := t.TempDir()
	mutant := filepath.Join(scratch, file)
	if err := os.WriteFile(mutant, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{filepath.Join(dir, file): mutant}
	const notThere = ""
	for _, file := range sources(t, dir) {
		if leaveOut(file) || describesMetrics(t, file) {
			replace[file] = notThere
		}
	}
	for _, file := range sources(t, filepath.Join(dir, "..", "tail")) { // which others import
		if describesMetrics(t, file) {
			replace[file] = notThere
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(scratch, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(scratch, "mutant.test")
	// Nothing that makes the binary better: it runs for a moment.
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-gcflags=-l", "-ldflags=-s -w", "-overlay", list, "-o", bin, ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOGC=off") // short runs, which this makes a sixth cheaper
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the mutant: %v\n%s", err, out)
	}
	return bin
}

// sources lists the Go files of a folder.
func sources(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// describesMetrics reports whether a file imports Prometheus, which is half of what would be linked. No
// mutant needs such a file.
func describesMetrics(t *testing.T, file string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(text, []byte("\"github.com/prometheus/client_golang/prometheus\""))
}
