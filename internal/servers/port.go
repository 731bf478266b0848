package servers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// The range that ports are drawn from, when the kernel's range for outgoing connections
// leaves it alone, as it does by default.
const (
	firstPort = 12000
	lastPort  = 32000
)

// givenOut holds the ports that this process drew, so that it draws none twice.
var givenOut struct {
	sync.Mutex
	ports map[int]bool
}

// FreeAddress returns an address on the loopback interface on which nobody listens and from
// which no outgoing connection is made, for a server that is told where to listen.
func FreeAddress() (string, error) {
	port, err := freePort()
	return loopback(port), err
}

// freePort draws a port at random on which nobody listens and from which no outgoing
// connection is made.
func freePort() (int, error) {
	givenOut.Lock()
	defer givenOut.Unlock()
	if givenOut.ports == nil {
		givenOut.ports = make(map[int]bool)
	}
	low, high := ephemeralPorts()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if givenOut.ports[port] || (low <= port && port <= high) || !isFree(port) {
			continue
		}
		givenOut.ports[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("finding a free port: a thousand tries between %d and %d found none", firstPort, lastPort)
}

// ephemeralPorts returns the first and the last port that the kernel takes for outgoing
// connections. Where it does not say, the range is that of the standard (RFC 6335), which
// lies outside of ours.
func ephemeralPorts() (low, high int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		if n, _ := fmt.Sscan(string(text), &low, &high); n == 2 {
			return low, high
		}
	}
	return 49152, 65535
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// awaitFree waits until nobody listens on the port: a killed server keeps its port for the
// moment that its exit takes.
func awaitFree(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("somebody else listens on it"))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !isFree(port) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for port %d: %w", port, context.Cause(ctx))
		case <-tick.C:
		}
	}
	return nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
