package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// files is a file system for tests. A file whose content is unreadable cannot be opened.
type files map[string]string

const unreadable = "\x00unreadable"

func (f files) read(name string) ([]byte, error) {
	content, ok := f[name]
	switch {
	case !ok:
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
	case content == unreadable:
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EACCES}
	}
	return []byte(content), nil
}

// loadFile loads a file's content as the command run does.
func loadFile(content string, environ ...string) (Config, error) {
	return Load(Overrides{File: "f.yaml", FileGiven: true, Needs: Needs{Source: true, Kafka: true}}, environ, files{"f.yaml": content}.read)
}

// enough makes the required settings, for cases about others.
var enough = []string{"FORWARDER_SOURCE_POSTGRES_URL=postgres://u@h/db", "FORWARDER_KAFKA_BROKERS=k:9092"}

// wantProblems checks for exactly these lines.
func wantProblems(t *testing.T, err error, want ...string) {
	t.Helper()
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatalf("error is %v (%T), want Problems", err, err)
	}
	got := strings.Split(problems.Error(), "\n")
	if !slices.Equal(got, want) {
		t.Errorf("problems are\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	for _, e := range problems {
		if e.Field == "" || e.Problem == "" || e.Hint == "" {
			t.Errorf("problem %q lacks its field, its problem or its fix", e)
		}
	}
}

// testCertificate returns a self-signed certificate, twice, and its key, as PEM.
func testCertificate(t *testing.T) (ca, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return cert, cert, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}
