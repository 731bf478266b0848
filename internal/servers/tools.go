package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Tool is a program of the machine that comes from its package manager.
type Tool struct {
	name string
	// packages are alternatives, best first: what one release has another lacks.
	packages []string
	present  func() bool
}

// The tools that servers and the tests with them need.
var (
	Java       = Tool{"Java 17 or newer", []string{"openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless"}, hasJava}
	Maven      = Tool{"Maven", []string{"maven"}, inPath("mvn")}
	PostgreSQL = Tool{"PostgreSQL", []string{"postgresql"}, func() bool { return installedPostgres() != "" }}
	Kcat       = Tool{"kcat", []string{"kcat", "kafkacat"}, inPath("kcat")}
	Pip        = Tool{"pip", []string{"python3-pip"}, hasPip}
	// MongoLibraries are what the fetched MongoDB is linked to.
	MongoLibraries = Tool{"libcurl4 and libssl3", []string{"libcurl4", "libcurl4t64"}, hasMongoLibraries}
	// CCompiler is for Go's race detector.
	CCompiler = Tool{"a C compiler", []string{"build-essential"}, inPath("gcc")}
)

func inPath(program string) func() bool {
	return func() bool {
		_, err := exec.LookPath(program)
		return err == nil
	}
}

func hasPip() bool { return exec.Command("python3", "-m", "pip", "--version").Run() == nil }

// hasMongoLibraries looks for both libraries: the package of the first brings the second.
func hasMongoLibraries() bool {
	for _, name := range []string{"libcurl.so.4", "libssl.so.3"} {
		found := false
		for _, dir := range []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64"} {
			for _, pattern := range []string{name, "*-linux-gnu/" + name} {
				paths, _ := filepath.Glob(filepath.Join(dir, pattern))
				found = found || len(paths) > 0
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// Install sees to it that the tools are there. What is missing is installed with apt-get,
// as root or by sudo; where that is not possible the error names the command.
func Install(ctx context.Context, log *slog.Logger, tools ...Tool) error {
	missing := absent(tools)
	if len(missing) == 0 {
		return nil
	}
	var names, packages []string
	for _, t := range missing {
		names = append(names, t.name)
		packages = append(packages, t.packages[0])
	}
	what := strings.Join(names, ", ")
	prefix, ok := aptPrefix(ctx)
	if !ok {
		return fmt.Errorf("missing: %s; install with: sudo apt-get install %s", what, strings.Join(packages, " "))
	}
	log.Info("installing with apt-get, once", "missing", what)
	if err := aptInstall(ctx, prefix, missing); err != nil {
		return fmt.Errorf("installing %s: %w", what, err)
	}
	if still := absent(missing); len(still) > 0 {
		return fmt.Errorf("installing %s: apt-get ended well, but %s is still not found", what, still[0].name)
	}
	return nil
}

func absent(tools []Tool) []Tool {
	return slices.DeleteFunc(slices.Clone(tools), func(t Tool) bool { return t.present() })
}

// aptPrefix returns what to put before apt-get: nothing as root, sudo where it asks for
// no password or there is somebody at a terminal to give it.
func aptPrefix(ctx context.Context) (prefix []string, ok bool) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, false
	}
	if os.Geteuid() == 0 {
		return nil, true
	}
	if _, err := exec.LookPath("sudo"); err != nil {
		return nil, false
	}
	info, err := os.Stdin.Stat()
	atTerminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("CI") == ""
	if !atTerminal && exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
		return nil, false
	}
	return []string{"sudo"}, true
}

func aptInstall(ctx context.Context, prefix []string, missing []Tool) error {
	if err := apt(ctx, prefix, "update"); err != nil {
		return err
	}
	args := []string{"install", "-y", "--no-install-recommends"}
	for _, t := range missing {
		i := slices.IndexFunc(t.packages, func(name string) bool { return available(ctx, name) })
		if i < 0 {
			return fmt.Errorf("none of the packages %q is to be had", t.packages)
		}
		args = append(args, t.packages[i])
	}
	return apt(ctx, prefix, args...)
}

// apt runs apt-get without questions. It is not tied to this process's life: a package
// manager that is killed half-way leaves a machine to repair.
func apt(ctx context.Context, prefix []string, args ...string) error {
	line := append(slices.Clone(prefix), "env", "DEBIAN_FRONTEND=noninteractive",
		"apt-get", "-q", "-o", "DPkg::Lock::Timeout=300")
	line = append(line, args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Stdin = os.Stdin
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("running apt-get %s: %w\n%s", args[0], err, out[max(0, len(out)-tailBytes):])
	}
	return nil
}

// available says that the package lists offer the package for installation.
func available(ctx context.Context, name string) bool {
	cmd := exec.CommandContext(ctx, "apt-cache", "policy", name)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	return err == nil && strings.Contains(string(out), "Candidate: ") && !strings.Contains(string(out), "Candidate: (none)")
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// oldestJava is what Kafka's brokers ask for.
const oldestJava = 17

func hasJava() bool {
	_, err := javaProgram()
	return err == nil
}

// javaProgram returns a java that can run a broker: JAVA_HOME's, else the one in PATH.
func javaProgram() (string, error) {
	programs := []string{"java"}
	if home := os.Getenv("JAVA_HOME"); home != "" {
		programs = []string{filepath.Join(home, "bin", "java"), "java"}
	}
	var problems []error
	for _, program := range programs {
		path, err := exec.LookPath(program)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		out, err := exec.Command(path, "-version").CombinedOutput()
		if err != nil {
			problems = append(problems, fmt.Errorf("asking %s for its version: %w", path, err))
			continue
		}
		found := javaVersion.FindSubmatch(out)
		if found == nil {
			problems = append(problems, fmt.Errorf("asking %s for its version: it said %q", path, out))
			continue
		}
		if major, _ := strconv.Atoi(string(found[1])); major < oldestJava {
			problems = append(problems, fmt.Errorf("%s is Java %d, older than %d", path, major, oldestJava))
			continue
		}
		return path, nil
	}
	return "", fmt.Errorf("finding Java: %w", errors.Join(problems...))
}
