package mongo

import (
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// primary knows which server is the primary, as far as the client does. The cursor of a change
// stream lives on when its server steps down, on a member that may be behind for any time.
type primary struct{ addr atomic.Pointer[string] }

// watch lets a client tell.
func (p *primary) watch(opts *options.ClientOptions) {
	opts.SetServerMonitor(&event.ServerMonitor{TopologyDescriptionChanged: func(e *event.TopologyDescriptionChangedEvent) {
		for _, server := range e.NewDescription.Servers {
			if server.Kind == "RSPrimary" {
				addr := server.Addr.String()
				p.addr.Store(&addr)
				return
			}
		}
	}})
}

// last returns the address of the last known primary, "" before there was one.
func (p *primary) last() string {
	if addr := p.addr.Load(); addr != nil {
		return *addr
	}
	return ""
}
