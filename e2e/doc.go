// Package e2e tests the built forwarder from outside, on a real PostgreSQL, MongoDB and Kafka:
// what it is told on its command line, what it leaves in the outbox, and what a consumer
// reads. Package oracle writes the events and judges the topics. It holds tests only.
//
// Tests that stop a server start one of their own; the others share a pair. Each has its own
// database and topic. A test is named after the case or the promise that it shows.
package e2e
