package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers every line with itself, until the test ends.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c) // ends with the connection
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// client is one connection through a proxy.
type client struct {
	net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{c, bufio.NewReader(c)}
}

// ask sends a line and returns what comes back within the time.
func (c *client) ask(t *testing.T, line string, within time.Duration) (string, error) {
	t.Helper()
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	return c.lines.ReadString('\n')
}

func closing(t *testing.T, p *Proxy) {
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestSilence(t *testing.T) {
	p, err := Start(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	closing(t, p)
	answers := func(c *client, line string) {
		t.Helper()
		if got, err := c.ask(t, line, 10*time.Second); err != nil || got != line+"\n" {
			t.Fatalf("asked %q, got %q, %v", line, got, err)
		}
	}
	mute := func(c *client) {
		t.Helper()
		_, err := c.ask(t, "lost", 100*time.Millisecond)
		if !os.IsTimeout(err) {
			t.Fatalf("a mute connection ended the wait with %v, want silence", err)
		}
	}
	old := dial(t, p)
	answers(old, "one")
	p.Mute()
	mute(old)
	young := dial(t, p)
	answers(young, "two") // connections made later are sound
	p.Silence(true)
	answers(young, "three")
	late := dial(t, p)
	mute(late)
	p.Silence(false)
	mute(late) // what was born mute stays so
	answers(dial(t, p), "four")
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	p, err := Start(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	closing(t, p)
	if _, err := dial(t, p).ask(t, "anybody?", 10*time.Second); err == nil || os.IsTimeout(err) {
		t.Errorf("the client saw %v, want a connection that ends", err)
	}
}

// TestAcksComeLate produces through the proxy: acknowledgements are late, other answers are
// not, and the delays of requests that are in flight together overlap.
func TestAcksComeLate(t *testing.T) {
	p, err := StartKafka()
	if err != nil {
		t.Fatal(err)
	}
	closing(t, p)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	target := cluster.ListenAddrs()[0]
	p.SetTarget(target)
	// Whoever asks the cluster for its brokers is sent to the proxy.
	through := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == target {
			addr = p.Addr()
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(p.Addr()), kgo.Dialer(through), kgo.DefaultProduceTopic("t"), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(100))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	produce := func() time.Duration {
		begun := time.Now()
		if err := c.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
			t.Fatal(err)
		}
		return time.Since(begun)
	}
	produce()
	const delay = 400 * time.Millisecond
	p.DelayAcks(delay)
	if took := produce(); took < delay {
		t.Errorf("acknowledged after %s, want at least %s", took, delay)
	}
	begun := time.Now()
	if err := c.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took >= delay {
		t.Errorf("another answer took %s", took)
	}
	// Three requests one after another, none waiting for the acknowledgement of the one before.
	begun = time.Now()
	acked := make(chan error, 3)
	for range cap(acked) {
		c.Produce(ctx, kgo.StringRecord("y"), func(_ *kgo.Record, err error) { acked <- err })
		timer := time.NewTimer(delay / 10)
		<-timer.C
	}
	for range cap(acked) {
		if err := <-acked; err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begun); took < delay || took > 2*delay+delay/2 {
		t.Errorf("three requests in flight together took %s, want little more than %s", took, delay)
	}
}
