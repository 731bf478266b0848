// Package proxy stands between a client and a server on loopback, and spoils the connection
// for the benefit of tests and measurements: connections that fall silent without being
// closed, as behind a firewall that has forgotten them, and acknowledgements of Kafka that
// come late.
//
// It owns its listener, its connections and their goroutines; Close ends all of them. It never
// reorders, changes or invents bytes.
//
// It does not speak TLS or SASL, and of Kafka's protocol it reads no more than the frames'
// headers.
package proxy
