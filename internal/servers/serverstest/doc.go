// Package serverstest gives tests a real PostgreSQL, MongoDB and Kafka to share: a
// database and a topic for each test, removed when the test ends.
//
// It owns one server of each kind for each test process, started by the first test that
// asks and stopped by Main. Where FORWARDER_TEST_POSTGRES (a superuser's connection URL),
// FORWARDER_TEST_MONGO (a connection string of a replica set) or FORWARDER_TEST_KAFKA
// (host:port) is set, that server is used instead and left running: the command withservers
// sets them, so that a run of many packages starts servers once.
//
// It never skips a test: a server that cannot be had fails it. The shared servers may not
// be stopped or reconfigured by a test; one that needs that starts its own with package
// servers.
package serverstest

// The variables that name servers to use instead of starting some.
const (
	PostgresEnv = "FORWARDER_TEST_POSTGRES"
	MongoEnv    = "FORWARDER_TEST_MONGO"
	KafkaEnv    = "FORWARDER_TEST_KAFKA"
)
