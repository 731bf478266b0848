package servers

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestServersDieWithAProcessThatIsKilled(t *testing.T) {
	ctx := within(t, 15*time.Minute)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	var postgres, kafka int
	var folders [2]string
	_, err = fmt.Fscan(bufio.NewReader(out), &postgres, &kafka, &folders[0], &folders[1])
	if err != nil {
		_ = cmd.Process.Kill()
		t.Fatalf("the helper started no servers: %v", err)
	}
	if ended(postgres) || ended(kafka) {
		t.Fatal("the helper's servers do not run")
	}
	backends, err := childrenOf(postgres)
	check(t, err)
	if len(backends) == 0 {
		t.Fatal("PostgreSQL has no processes but its main one")
	}

	check(t, cmd.Process.Kill())
	_ = cmd.Wait()
	eventually(t, 10*time.Second, "PostgreSQL and Kafka have ended", func() bool {
		return ended(postgres) && ended(kafka) && allEnded(backends)
	})

	// The next server to start removes what they left.
	f, err := newFolder("next", nil)
	check(t, err)
	defer func() { check(t, f.remove()) }()
	for _, path := range folders {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if _, err := os.Stat(f.path); err != nil {
		t.Errorf("a folder in use is gone: %v", err)
	}
}
