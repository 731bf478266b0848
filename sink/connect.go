package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A ConnectError is the outcome of a failed start-up check. Its text names what was tried and
// the likely mistake; it holds no secret.
type ConnectError struct {
	// Tried names the addresses, TLS and SASL.
	Tried string
	// Certain says that waiting will not help: the configuration or the user's rights must
	// change.
	Certain bool
	Cause   string
	Err     error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("connecting to kafka at %s: %v%s", e.Tried, e.Err, e.Cause)
}

// Unwrap returns what the client reported.
func (e *ConnectError) Unwrap() error { return e.Err }

// checkWithin bounds Check where the caller's context does not.
const checkWithin = 10 * time.Second

// Check reaches the brokers once, within ten seconds or what ctx allows, and makes sure that
// the user may produce. A failure is a *ConnectError.
func (p *Producer) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	l := p.links.current.Load()
	fail := func(err error) error {
		err = p.health.cause(err)
		cause, certain := p.cfg.explain(err)
		return &ConnectError{Tried: p.cfg.reached(), Certain: certain, Cause: cause, Err: err}
	}
	if err := l.client.Ping(ctx); err != nil {
		return fail(err)
	}
	if err := p.checkAdvertised(ctx, l.client); err != nil {
		return fail(err)
	}
	if _, _, err := l.client.ProducerID(ctx); err != nil {
		// A refusal stays with the client; the next Submit takes a new one.
		l.ruined.Store(true)
		return fail(err)
	}
	return nil
}

// checkAdvertised reaches the brokers under the addresses that the cluster gives out, which
// are the ones that records go to. One that answers is enough: the others may be restarting.
func (p *Producer) checkAdvertised(ctx context.Context, client *kgo.Client) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("asking for the cluster's brokers: %w", err)
	}
	var errs []error
	for _, b := range resp.Brokers {
		// The attempts share the time, so that one black hole does not use it up.
		left := checkWithin
		if end, ok := ctx.Deadline(); ok {
			left = time.Until(end)
		}
		attempt, cancel := context.WithTimeout(ctx, left/time.Duration(len(resp.Brokers)))
		_, err := client.Broker(int(b.NodeID)).Request(attempt, kmsg.NewPtrApiVersionsRequest())
		cancel()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("the cluster advertises broker %d as %s:%d: %w", b.NodeID, b.Host, b.Port, err))
	}
	return errors.Join(errs...)
}

// explain returns the likely mistake behind a failure to connect or to log in, worded to
// follow the error's own text, and whether it is certain to need a change by the operator.
func (c Config) explain(err error) (cause string, certain bool) {
	say := func(text string) string { return " (" + text + ")" }
	user := c.SASL.User
	var (
		eof      *kgo.ErrFirstReadEOF
		record   tls.RecordHeaderError
		unknown  x509.UnknownAuthorityError
		invalid  x509.CertificateInvalidError
		hostname x509.HostnameError
		dns      *net.DNSError
	)
	switch {
	case err == nil:
		return "", false
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return say(fmt.Sprintf("the brokers refuse the user name or password of user %q", user)), true
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return say(fmt.Sprintf("the brokers do not offer the mechanism %s on this port", c.SASL.Mechanism)), true
	case errors.Is(err, kerr.IllegalSaslState):
		return say("the port may not expect a log-in: is SASL meant for another port?"), true
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return say("the user may not write idempotently: grant Write on a topic, or IdempotentWrite on the cluster for brokers before Kafka 3.0"), true
	case errors.As(err, &unknown):
		return say("the broker's certificate is signed by an authority that is not trusted here: give its CA certificate"), true
	case errors.As(err, &hostname):
		return say("the broker's certificate is for another name: use that name as address, or set the server name"), true
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return say("the broker's certificate has expired or is not valid yet: renew it, or correct the clock"), true
	case errors.As(err, &record):
		return say("TLS is on, and the port does not speak TLS: switch TLS off or use the broker's TLS port"), true
	case errors.As(err, &eof), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		// Also what a broker in restart looks like, so never certain.
		return say(c.closedAtOnce()), false
	case errors.As(err, &dns):
		return say(fmt.Sprintf("the name %q cannot be resolved here: correct brokers, or the cluster's advertised.listeners", dns.Name)), false
	case errors.Is(err, syscall.ECONNREFUSED):
		return say("nothing listens there: is the broker running, and is this its port?"), false
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		text := "the address does not answer: a firewall, a wrong port, or a broker that hangs"
		if c.TLS != nil {
			text += "; or the port does not speak TLS, which is on"
		}
		return say(text), false
	default:
		return "", false
	}
}

// closedAtOnce words the likely mistakes behind a connection that the broker closes unasked.
func (c Config) closedAtOnce() string {
	var likely []string
	if c.TLS != nil {
		likely = append(likely, "TLS is on and the port may not speak TLS")
	} else {
		likely = append(likely, "TLS is off and the port may expect it")
	}
	if c.SASL.Mechanism == "" {
		likely = append(likely, "no SASL mechanism is set and the port may expect a log-in")
	} else {
		likely = append(likely, fmt.Sprintf("the broker may refuse the user name or password of user %q, or the mechanism", c.SASL.User))
	}
	return "the broker closed the connection: " + strings.Join(likely, ", or ") + "; or it is restarting"
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
