package sink

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
	"github.com/outbox-forwarder/forwarder/source"
)

// certificate makes a self-signed certificate for a host that ends at the given time.
func certificate(t *testing.T, host string, until time.Time) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestC83CheckNamesTheMistake(t *testing.T) {
	tomorrow := time.Now().Add(24 * time.Hour)
	good, goodPool := certificate(t, "127.0.0.1", tomorrow)
	other, otherPool := certificate(t, "kafka.example", tomorrow)
	expired, expiredPool := certificate(t, "127.0.0.1", time.Now().Add(-time.Hour))
	withTLS := func(cert tls.Certificate) kfake.Opt {
		return kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}})
	}
	trust := func(pool *x509.CertPool) *tls.Config { return &tls.Config{RootCAs: pool} }
	const secret = "very-secret-word"
	login := func(mechanism, user string) SASL { return SASL{Mechanism: mechanism, User: user, Password: secret} }
	accounts := []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "the right one"), kfake.Superuser("PLAIN", "bob", secret)}

	cases := []struct {
		name    string
		cluster []kfake.Opt
		change  func(*Config)
		certain bool
		text    []string
	}{
		{"TLS to a plain port", nil, func(c *Config) { c.TLS = trust(goodPool) }, false, []string{"TLS on", "TLS"}},
		{"plain to a TLS port", []kfake.Opt{withTLS(good)}, nil, false, []string{"TLS off", "TLS"}},
		{"unknown authority", []kfake.Opt{withTLS(good)}, func(c *Config) { c.TLS = trust(otherPool) }, true, []string{"authority", "CA certificate"}},
		{"certificate for another name", []kfake.Opt{withTLS(other)}, func(c *Config) { c.TLS = trust(otherPool) }, true, []string{"another name"}},
		{"expired certificate", []kfake.Opt{withTLS(expired)}, func(c *Config) { c.TLS = trust(expiredPool) }, true, []string{"expired"}},
		{"log-in cut short", accounts, func(c *Config) { c.SASL = login("PLAIN", "alice") }, false, []string{"password", "alice", "PLAIN"}},
		{"no log-in", accounts, nil, false, []string{"no SASL", "log-in"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := fakeCluster(t, tc.cluster...)
			p, _ := newProducer(t, c.ListenAddrs(), tc.change)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			err := p.Check(ctx)
			var ce *ConnectError
			if !errors.As(err, &ce) {
				t.Fatalf("the check says %v", err)
			}
			t.Log(err)
			if ce.Certain != tc.certain {
				t.Errorf("certain is %v, want %v: %v", ce.Certain, tc.certain, err)
			}
			for _, want := range append(tc.text, c.ListenAddrs()[0]) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the text %q does not name %q", err, want)
				}
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the text holds the password: %v", err)
			}
		})
	}

	// A broker of Apache Kafka answers these two, where kfake hangs up.
	refusals := []struct {
		name string
		key  kmsg.Key
		code *kerr.Error
		sasl SASL
		text []string
	}{
		{"wrong password", kmsg.SASLAuthenticate, kerr.SaslAuthenticationFailed, login("PLAIN", "alice"), []string{"password", "alice", "PLAIN"}},
		{"wrong mechanism", kmsg.SASLHandshake, kerr.UnsupportedSaslMechanism, login("SCRAM-SHA-512", "alice"), []string{"SCRAM-SHA-512"}},
	}
	for _, tc := range refusals {
		t.Run(tc.name, func(t *testing.T) {
			c := fakeCluster(t, accounts...)
			c.ControlKey(int16(tc.key), func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				switch resp := req.ResponseKind().(type) {
				case *kmsg.SASLAuthenticateResponse:
					resp.ErrorCode = tc.code.Code
					return resp, nil, true
				case *kmsg.SASLHandshakeResponse:
					resp.ErrorCode = tc.code.Code
					return resp, nil, true
				}
				return nil, nil, false
			})
			p, _ := newProducer(t, c.ListenAddrs(), func(c *Config) { c.SASL = tc.sasl })
			err := p.Check(t.Context())
			var ce *ConnectError
			if !errors.As(err, &ce) || !ce.Certain {
				t.Fatalf("the check says %v, want a certain failure", err)
			}
			for _, want := range append(tc.text, c.ListenAddrs()[0]) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the text %q does not name %q", err, want)
				}
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the text holds the password: %v", err)
			}
		})
	}
	t.Run("nothing listens", func(t *testing.T) {
		addr := serverstest.FreeAddress(t)
		p, _ := newProducer(t, []string{addr}, nil)
		err := p.Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "nothing listens") {
			t.Errorf("the check says %v", err)
		}
	})
	t.Run("advertised name does not resolve", func(t *testing.T) {
		c := fakeCluster(t)
		advertise(c, "no-such-host.invalid")
		p, _ := newProducer(t, c.ListenAddrs(), nil)
		err := p.Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), "no-such-host.invalid") || !strings.Contains(err.Error(), "advertise") {
			t.Errorf("the check says %v", err)
		}
	})
	t.Run("all is well", func(t *testing.T) {
		c := fakeCluster(t, append(accounts, withTLS(good))...)
		p, _ := newProducer(t, c.ListenAddrs(), func(c *Config) { c.TLS, c.SASL = trust(goodPool), login("PLAIN", "bob") })
		if err := p.Check(t.Context()); err != nil {
			t.Errorf("the check says %v", err)
		}
	})
}

// advertise makes the cluster give out another host name for its brokers.
func advertise(c *kfake.Cluster, host string) {
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = 0, host, 9092
		resp.Brokers = append(resp.Brokers, b)
		return resp, nil, true
	})
}

func TestClassify(t *testing.T) {
	want := map[source.Class][]error{
		source.Topic: {kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.TopicAuthorizationFailed, kerr.InvalidTopicException},
		source.Suspect: {
			kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidTimestamp, kerr.InvalidRecord, kerr.CorruptMessage, kerr.PolicyViolation,
		},
		source.Broker: {
			kerr.NotEnoughReplicas, kerr.RequestTimedOut, kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed,
			kerr.UnknownServerError, kerr.OutOfOrderSequenceNumber, kerr.InvalidProducerEpoch, kerr.UnsupportedCompressionType,
			errors.New("something new"), net.ErrClosed,
		},
	}
	for class, errs := range want {
		for _, err := range errs {
			if got := classify(err); got != class {
				t.Errorf("%v is classified as %v, want %v", err, got, class)
			}
			if got := classify(errors.Join(errors.New("wrapped"), err)); got != class {
				t.Errorf("%v is classified as %v when wrapped, want %v", err, got, class)
			}
		}
	}
}
