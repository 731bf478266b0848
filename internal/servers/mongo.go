package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// MongoConfig says which MongoDB to start.
type MongoConfig struct {
	// Members is the number of members of the replica set. Default 1.
	Members int
	// Standalone is one server without a replica set.
	Standalone bool
	// Auth asks clients for a login. The user root with the password root may do everything.
	Auth bool
	// Parameters are the server's (--setParameter).
	Parameters map[string]string
	// Log gets a line when something is fetched or installed. Nil is slog.Default().
	Log *slog.Logger
}

// Mongo is a replica set of MongoDB servers, or one without a replica set.
type Mongo struct {
	cfg     MongoConfig
	members []*MongoMember
}

const (
	mongoSet  = "rs0"
	mongoRoot = "root"
	// mongoElection is how long members wait for a primary that is silent.
	mongoElection = time.Second
)

// StartMongo makes new servers and starts them. ctx bounds fetching and starting, not the
// servers' life, which Close ends.
func StartMongo(ctx context.Context, cfg MongoConfig) (*Mongo, error) {
	cfg.Members = max(cfg.Members, 1)
	cfg.Log = orDefault(cfg.Log)
	bin, err := mongoBin(ctx, cfg.Log)
	if err != nil {
		return nil, err
	}
	m := &Mongo{cfg: cfg}
	if err := m.start(ctx, bin); err != nil {
		return nil, errors.Join(fmt.Errorf("starting MongoDB: %w", err), m.Close())
	}
	return m, nil
}

func (m *Mongo) start(ctx context.Context, bin string) error {
	secret := rand.Text()
	for range m.cfg.Members {
		member, err := newMongoMember(bin, m.cfg, secret)
		if err != nil {
			return err
		}
		m.members = append(m.members, member)
		if err := member.Start(ctx); err != nil {
			return err
		}
	}
	if !m.cfg.Standalone {
		if err := m.initiate(ctx); err != nil {
			return fmt.Errorf("initiating the replica set: %w", err)
		}
		if _, err := m.Primary(ctx); err != nil {
			return err
		}
	}
	if !m.cfg.Auth {
		return nil
	}
	// The first user may be created without a login, from the same machine.
	primary, err := m.Primary(ctx)
	if err != nil {
		return err
	}
	return primary.command(ctx, "", bson.D{{Key: "createUser", Value: mongoRoot}, {Key: "pwd", Value: mongoRoot}, {Key: "roles", Value: bson.A{"root"}}}, nil)
}

func (m *Mongo) initiate(ctx context.Context) error {
	var members bson.A
	for i, member := range m.members {
		members = append(members, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: member.Addr()}})
	}
	return m.members[0].command(ctx, "", bson.D{{Key: "replSetInitiate", Value: bson.D{
		{Key: "_id", Value: mongoSet},
		{Key: "members", Value: members},
		{Key: "settings", Value: bson.D{
			{Key: "electionTimeoutMillis", Value: mongoElection.Milliseconds()},
			{Key: "heartbeatIntervalMillis", Value: (mongoElection / 4).Milliseconds()},
		}},
	}}}, nil)
}

// Primary waits until a member says that it takes writes, and returns it. A standalone server
// always does.
func (m *Mongo) Primary(ctx context.Context) (*MongoMember, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no primary within a minute"))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		for _, member := range m.members {
			if member.PID() != 0 && member.writable(ctx) {
				return member, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for a primary: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// StepDown makes the primary hand over to another member.
func (m *Mongo) StepDown(ctx context.Context) error {
	primary, err := m.Primary(ctx)
	if err != nil {
		return err
	}
	if err := primary.command(ctx, m.login(), bson.D{{Key: "replSetStepDown", Value: 10}, {Key: "secondaryCatchUpPeriodSecs", Value: 5}}, nil); err != nil {
		return fmt.Errorf("stepping down: %w", err)
	}
	return nil
}

// Members returns the servers.
func (m *Mongo) Members() []*MongoMember { return m.members }

func (m *Mongo) login() string {
	if !m.cfg.Auth {
		return ""
	}
	return mongoRoot + ":" + mongoRoot
}

// URL returns the connection string of a database, for the user who may do everything.
func (m *Mongo) URL(database string) string { return m.URLAs(m.login(), database) }

// URLAs is URL for another login, user:password.
func (m *Mongo) URLAs(login, database string) string {
	var hosts []string
	for _, member := range m.members {
		hosts = append(hosts, member.Addr())
	}
	set := "replicaSet=" + mongoSet
	if m.cfg.Standalone {
		set = "directConnection=true"
	}
	at := ""
	if login != "" {
		at = login + "@"
		set += "&authSource=admin"
	}
	return fmt.Sprintf("mongodb://%s%s/%s?%s", at, strings.Join(hosts, ","), database, set)
}

// Close ends the servers and removes their data, for whose sake no orderly end is waited for.
func (m *Mongo) Close() error {
	var errs []error
	for _, member := range m.members {
		errs = append(errs, member.close())
	}
	return errors.Join(errs...)
}

// command runs a command of the database admin on this very member.
func (m *MongoMember) command(ctx context.Context, login string, command bson.D, into any) error {
	at := ""
	if login != "" {
		at = login + "@"
	}
	opts := options.Client().ApplyURI(fmt.Sprintf("mongodb://%s%s/?directConnection=true", at, m.Addr())).
		SetServerSelectionTimeout(5 * time.Second).SetHeartbeatInterval(500 * time.Millisecond)
	client, err := mongo.Connect(opts)
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	result := client.Database("admin").RunCommand(ctx, command)
	if into == nil {
		return result.Err()
	}
	return result.Decode(into)
}

func (m *MongoMember) writable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var hello struct {
		Writable bool `bson:"isWritablePrimary"`
	}
	return m.command(ctx, "", bson.D{{Key: "hello", Value: 1}}, &hello) == nil && hello.Writable
}

// keyFile writes the secret that members know each other by.
func keyFile(dir, secret string) (string, error) {
	path := filepath.Join(dir, "key")
	return path, os.WriteFile(path, []byte(secret), 0o600)
}
