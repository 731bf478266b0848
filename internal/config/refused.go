package config

import "strings"

// refusals are names that people know from Kafka clients and other relays. They are no
// settings here, and the reason says more than "unknown". Names are compared by
// plainName, so that enable.idempotence and enable_idempotence are one.
var refusals = []struct {
	names  []string
	reason string
	hint   string
}{
	{[]string{"acks", "requiredacks", "requestrequiredacks"},
		"is not a setting: a row is deleted once its record is acknowledged, so every in-sync replica must have it",
		"remove it; records are always sent with acks=all"},
	{[]string{"idempotence", "enableidempotence", "idempotent", "disableidempotence", "disableidempotentwrite"},
		"is not a setting: without idempotence a retry doubles records and swaps those of one key",
		"remove it; the producer is always idempotent"},
	{[]string{"maxinflight", "maxinflightrequests", "maxinflightrequestsperconnection", "maxinflightrequestsperbroker"},
		"is not a setting: it cannot be raised without risking the order of a key",
		"remove it; what is in flight is bounded by the rules of order"},
	{[]string{"partitioner", "partitionerclass", "partitioning", "partition"},
		"is not a setting: the records of one key must share a partition, or they have no order",
		"remove it; the partition follows from the key as with Kafka's own clients (murmur2)"},
	{[]string{"retries", "maxretries", "recordretries", "deliverytimeout", "deliverytimeoutms", "recorddeliverytimeout", "requesttimeoutms"},
		"is not a setting: giving a record up would lose it or let later ones of its key pass",
		"remove it; a record is sent until the broker takes it or refuses it"},
	{[]string{"linger", "lingerms", "batchsize", "batchmaxbytes", "batchbytes", "concurrency", "workers", "pollinterval", "pollintervalms"},
		"is not a setting: it adapts by itself",
		"remove it"},
}

// plainName drops what spellings differ in.
func plainName(name string) string {
	return strings.ToLower(strings.NewReplacer(".", "", "_", "", "-", "").Replace(name))
}

// refusal returns why a name is not a setting, or nil when nothing is known about it.
func refusal(name string) *verdict {
	plain := plainName(name)
	for _, r := range refusals {
		for _, n := range r.names {
			if n == plain {
				return &verdict{r.reason, r.hint}
			}
		}
	}
	return nil
}
