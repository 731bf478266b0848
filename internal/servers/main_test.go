package servers

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		os.Exit(helper())
	}
	goleak.VerifyTestMain(m)
}

// helperEnv makes the test binary a program that starts servers and waits to be killed.
const helperEnv = "FORWARDER_SERVERS_TEST_HELPER"

func helper() int {
	ctx := context.Background()
	p, err := StartPostgres(ctx, PostgresConfig{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	k, err := StartKafka(ctx, KafkaConfig{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(p.PID(), k.PID(), p.folder.path, k.folder.path)
	select {}
}

// within returns a context for a test that may have to fetch a server's programs.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// eventually fails the test when the condition does not come true within the limit.
func eventually(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("after %s it is still not so that %s", limit, what)
		}
		<-tick.C
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
