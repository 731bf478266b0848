package e2e

import (
	"slices"
	"testing"
)

// mode is a way in which new rows are seen. The promises are the same in all of them.
type mode struct {
	name     string
	settings []string // as environment variables
	// exclusive says that one replica has all lanes.
	exclusive bool
	// mongo says that the outbox is a collection in MongoDB.
	mongo bool
}

var (
	polled   = mode{name: "poll"}
	streamed = mode{name: "stream", settings: []string{"FORWARDER_SOURCE_POSTGRES_MODE=stream"}}
	durable  = mode{name: "durable slot", settings: append(slices.Clone(streamed.settings), "FORWARDER_SOURCE_POSTGRES_SLOT=durable"), exclusive: true}

	allModes = slices.Concat([]mode{polled, streamed, durable}, mongoModes)
)

// inModes runs a test in each of the modes.
func inModes(t *testing.T, test func(t *testing.T, m mode), modes ...mode) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { test(t, m) })
	}
}
