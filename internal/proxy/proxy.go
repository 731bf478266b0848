package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// dialLimit bounds the connection to the target.
const dialLimit = 5 * time.Second

// Proxy passes connections on to a target.
type Proxy struct {
	listener net.Listener
	kafka    bool
	delay    atomic.Int64 // of acknowledgements, as a time.Duration

	mu      sync.Mutex
	target  string
	silent  bool // new connections are born mute
	closed  bool
	links   map[*link]struct{}
	workers sync.WaitGroup
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	mute           atomic.Bool // for good: bytes are taken and go nowhere
}

// Start listens on a loopback port. Connections are passed on to target, host:port.
func Start(target string) (*Proxy, error) { return start(target, false) }

// StartKafka is Start for a target that speaks Kafka's protocol in plain text. The target may
// be set later, since a broker has to be told its proxy's address when it starts.
func StartKafka() (*Proxy, error) { return start("", true) }

func start(target string, kafka bool) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	p := &Proxy{listener: l, kafka: kafka, target: target, links: map[*link]struct{}{}}
	p.workers.Go(p.accept)
	return p, nil
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetTarget is where new connections go from now on.
func (p *Proxy) SetTarget(addr string) {
	p.mu.Lock()
	p.target = addr
	p.mu.Unlock()
}

// DelayAcks holds each answer to a produce request back for d, and no other answer. Answers of
// one connection stay in order, and their delays overlap.
func (p *Proxy) DelayAcks(d time.Duration) { p.delay.Store(int64(d)) }

// Mute makes the connections that exist pass nothing more. They stay open.
func (p *Proxy) Mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.mute.Store(true)
	}
}

// Silence makes new connections mute from their start, or ends that for those still to come.
func (p *Proxy) Silence(on bool) {
	p.mu.Lock()
	p.silent = on
	p.mu.Unlock()
}

// Close ends every connection, and returns when all of the proxy's goroutines have ended.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	err := p.listener.Close()
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.workers.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // a client that went away at once
		}
		p.workers.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, dialLimit)
	if err != nil {
		_ = client.Close() // as if the server itself had refused
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		l.close()
		return
	}
	l.mute.Store(p.silent)
	p.links[l] = struct{}{}
	p.mu.Unlock()

	var pumps sync.WaitGroup
	up, down := l.copy, l.copy
	if p.kafka {
		acks := &acks{}
		up = func(to, from net.Conn) { l.requests(to, from, acks) }
		down = func(to, from net.Conn) { l.answers(to, from, acks, &p.delay) }
	}
	pumps.Go(func() { up(server, client) })
	pumps.Go(func() { down(client, server) })
	pumps.Wait()

	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// close ends both halves, which ends the pumps. The errors say that they have ended.
func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// copy passes bytes on until either side ends.
func (l *link) copy(to, from net.Conn) {
	defer l.close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !l.pass(to, buffer[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}

// pass writes bytes where the link is not mute. It reports whether the link lives.
func (l *link) pass(to io.Writer, b []byte) bool {
	if l.mute.Load() {
		return true
	}
	_, err := to.Write(b)
	return err == nil
}
