package serverstest

import (
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/servers"
)

// FreeAddress returns an address on the loopback interface on which nobody listens. The kernel
// gives its port to no outgoing connection, so that it is still free when it is used.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := servers.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
