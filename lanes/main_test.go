package lanes

import (
	"testing"

	"github.com/outbox-forwarder/forwarder/internal/servers/serverstest"
)

func TestMain(m *testing.M) { serverstest.Main(m) }
