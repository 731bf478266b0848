package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	clientTimeout = 15 * time.Second
	// maxAnswer bounds what the client takes from a server that may be another program.
	maxAnswer = 64 << 20
)

// Client talks to a running forwarder's admin server.
type Client struct {
	addr string
	http *http.Client
}

// NewClient makes a client for the listener address, as it is configured for the server: an
// address for every interface is reached over loopback.
func NewClient(listen string) (*Client, error) {
	addr, err := dialAddr(listen)
	if err != nil {
		return nil, err
	}
	return &Client{
		addr: addr,
		http: &http.Client{
			Timeout: clientTimeout,
			Transport: &http.Transport{
				// The listener is on this machine or in its network: a proxy from the
				// environment would look for it elsewhere.
				Proxy:             nil,
				DisableKeepAlives: true,
			},
			// The forwarder never redirects. Another program on the port might.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

func dialAddr(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("reading the admin address %q: %w", listen, err)
	}
	if port == "" || port == "0" {
		return "", fmt.Errorf("reading the admin address %q: the port must be the one that the forwarder listens on", listen)
	}
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}

// Parked lists what waits in the running forwarder.
func (c *Client) Parked(ctx context.Context) ([]Parked, error) {
	var answer parkedList
	if err := c.call(ctx, http.MethodGet, "/parked", &answer); err != nil {
		return nil, err
	}
	return answer.Parked, nil
}

// RetryParked asks for everything that waits to be tried now and returns how much that is.
func (c *Client) RetryParked(ctx context.Context) (int, error) {
	var answer retried
	if err := c.call(ctx, http.MethodPost, "/parked/retry", &answer); err != nil {
		return 0, err
	}
	return answer.Retried, nil
}

// Retire asks the forwarder to give up its lanes.
func (c *Client) Retire(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/retire", &struct{}{})
}

// ErrUnreachable says that nothing answered at the admin address.
var ErrUnreachable = errors.New("no forwarder answers: is it running, and does it listen there (admin.listen)?")

func (c *Client) call(ctx context.Context, method, path string, answer any) error {
	target := url.URL{Scheme: "http", Host: c.addr, Path: path}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), nil)
	if err != nil {
		return fmt.Errorf("asking the forwarder: %w", err)
	}
	request.Header.Set("Accept", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
			return fmt.Errorf("asking the forwarder at %s: %w (%w)", c.addr, ErrUnreachable, dial.Err)
		}
		return fmt.Errorf("asking the forwarder at %s: %w", c.addr, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.addr, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s at %s: %s: %s", method, path, c.addr, response.Status, firstLine(body))
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("reading the answer of %s, is that a forwarder? %w", c.addr, err)
	}
	return nil
}

func firstLine(body []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return printable(line)
}
