package config

import (
	"crypto/tls"
	"crypto/x509"
)

// TLS says how to speak TLS to the brokers. Empty names: the system's authorities, no client
// certificate, the name from the broker's address.
type TLS struct {
	Enabled    bool
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
}

// Client returns the client's TLS configuration, nil where TLS is off. Load has called it
// once, so that a file that is missing or broken is a problem of the configuration.
func (t TLS) Client(readFile func(string) ([]byte, error)) (*tls.Config, Problems) {
	if !t.Enabled {
		return nil, nil
	}
	var problems Problems
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	read := func(path, name string) (data []byte, ok bool) {
		data, err := readFile(name)
		if err != nil {
			problems = append(problems, &FieldError{Field: path, Value: Show(name),
				Problem: "cannot be read: " + cause(err), Hint: "name a PEM file that this user may read"})
		}
		return data, err == nil
	}
	if t.CAFile != "" {
		pool := x509.NewCertPool()
		if pem, ok := read("kafka.tls.ca_file", t.CAFile); ok && !pool.AppendCertsFromPEM(pem) {
			problems = append(problems, &FieldError{Field: "kafka.tls.ca_file", Value: Show(t.CAFile),
				Problem: "holds no certificate", Hint: "name a PEM file with the authority's certificate"})
		}
		c.RootCAs = pool
	}
	switch {
	case t.CertFile == "" && t.KeyFile == "":
		return c, problems
	case t.KeyFile == "":
		return c, append(problems, &FieldError{Field: "kafka.tls.key_file", Problem: "is not set, and kafka.tls.cert_file needs it", Hint: "name the PEM file with the certificate's private key"})
	case t.CertFile == "":
		return c, append(problems, &FieldError{Field: "kafka.tls.cert_file", Problem: "is not set, and kafka.tls.key_file needs it", Hint: "name the PEM file with the key's certificate"})
	}
	cert, certRead := read("kafka.tls.cert_file", t.CertFile)
	key, keyRead := read("kafka.tls.key_file", t.KeyFile)
	if !certRead || !keyRead {
		return c, problems
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return c, append(problems, &FieldError{Field: "kafka.tls.cert_file", Value: Show(t.CertFile),
			Problem: "does not go with kafka.tls.key_file: " + err.Error(), Hint: "name a PEM certificate and its own unencrypted PEM key"})
	}
	c.Certificates = []tls.Certificate{pair}
	return c, problems
}
