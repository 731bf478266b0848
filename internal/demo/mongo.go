package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/outbox-forwarder/forwarder/internal/oracle"
)

// useMongo takes a database of the demo's own on a server of the user's. Its name is new, so
// nothing of the user's can be in it.
func useMongo(ctx context.Context, source string) (*database, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(source))
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	name := schemaName + "_" + strings.ToLower(bson.NewObjectID().Hex())
	d := &database{
		kind: "collection", url: source,
		tables: oracle.Tables{Outbox: name + ".outbox", Ledger: name + ".ledger"},
		close: func(ctx context.Context) error {
			return errors.Join(client.Database(name).Drop(ctx), client.Disconnect(ctx))
		},
	}
	var server struct{ Version string }
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&server); err != nil {
		return nil, errors.Join(fmt.Errorf("connecting: %w", err), client.Disconnect(ctx))
	}
	shown := shownMongoURL(source)
	d.detail = fmt.Sprintf("%s  version %s (database %s made for this demo, removed at its end)", shown, server.Version, name)
	d.look = fmt.Sprintf("mongosh '%s' --eval 'db.getSiblingDB(\"%s\").outbox.countDocuments()'", shown, name)
	return d, nil
}

// shownMongoURL is the URL by which somebody reaches the same server, without the password.
func shownMongoURL(source string) string {
	u, err := url.Parse(source)
	if err != nil {
		return "mongodb://..."
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}
	if u.User != nil {
		shown.User = url.User(u.User.Username())
	}
	if set := u.Query().Get("replicaSet"); set != "" {
		shown.RawQuery = url.Values{"replicaSet": {set}}.Encode()
	}
	return shown.String()
}
