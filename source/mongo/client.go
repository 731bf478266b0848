package mongo

import (
	"context"
	"fmt"
	"time"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/outbox-forwarder/forwarder/source"
)

// applicationName is what the server's log and currentOp show.
const applicationName = "outbox-forwarder"

// The largest number of connections for the source, with its reader, two deleters, a change
// stream and what looks at the outbox now and then, and for the leases.
const (
	sourceConns = 6
	leaseConns  = 2
)

// A primary that is silent, without closing its connections, is noticed after both of these
// together: well within a lease, so that replicas keep their lanes over a change of primary.
const (
	connectTimeout = 3 * time.Second
	heartbeat      = time.Second
)

// durable is what every write waits for.
func durable() *writeconcern.WriteConcern {
	yes := true
	return &writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &yes}
}

// newClient returns a client, which connects when it is first used. What reads and writes rely
// on is set whatever the URL says.
func newClient(cfg Config, conns uint64, tune ...func(*options.ClientOptions)) (*driver.Client, error) {
	opts := options.Client().ApplyURI(cfg.URL)
	if err := opts.Validate(); err != nil {
		if unresolved(err) {
			return nil, fmt.Errorf("looking up the servers of source.mongo.url: %w", err)
		}
		return nil, &source.SetupError{Problems: []string{"source.mongo.url: " + urlProblem(err)}}
	}
	if opts.AppName == nil {
		opts.SetAppName(applicationName)
	}
	if opts.ConnectTimeout == nil {
		opts.SetConnectTimeout(connectTimeout)
	}
	if opts.HeartbeatInterval == nil {
		opts.SetHeartbeatInterval(heartbeat)
	}
	opts.SetMaxPoolSize(conns).SetMinPoolSize(0).
		SetServerSelectionTimeout(cfg.Timeout).
		SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Majority()).
		SetWriteConcern(durable()).
		SetRetryReads(true).SetRetryWrites(true)
	for _, t := range tune {
		t(opts)
	}
	client, err := driver.Connect(opts)
	if err != nil {
		return nil, fmt.Errorf("connecting to MongoDB: %w", err)
	}
	return client, nil
}

// disconnect closes a client's connections. Nothing is left to be lost.
func disconnect(client *driver.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = client.Disconnect(ctx)
}
