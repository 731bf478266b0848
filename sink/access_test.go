package sink

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// kgoRecord is the client's record, for tests of what is computed from one.
type kgoRecord = kgo.Record

// authorizedCluster starts a broker with access control, on which the user that the returned
// function configures has the given rights.
func authorizedCluster(t *testing.T, topics []string, acls ...kfake.ACL) (*kfake.Cluster, func(*Config)) {
	t.Helper()
	for i := range acls {
		acls[i].Pattern = kmsg.ACLResourcePatternTypeLiteral
	}
	c := fakeCluster(t,
		kfake.SeedTopics(1, topics...),
		kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", "admin-secret"),
		kfake.User("PLAIN", "alice", "alice-secret", acls...),
	)
	return c, func(cfg *Config) { cfg.SASL = SASL{Mechanism: "PLAIN", User: "alice", Password: "alice-secret"} }
}

func grantWrite(t *testing.T, c *kfake.Cluster, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.SASL(plain.Auth{User: "admin", Pass: "admin-secret"}.AsMechanism()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	acl := kadm.NewACLs().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite).Allow("User:alice").AllowHosts("*")
	results, err := kadm.NewClient(client).CreateACLs(ctx, acl)
	if err != nil {
		t.Fatalf("granting: %v", err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatalf("granting: %v", r.Err)
		}
	}
}

// placements returns key and partition of each record by its event's id.
func placements(t *testing.T, records []*kgo.Record) map[int64]placed {
	t.Helper()
	out := make(map[int64]placed, len(records))
	for _, r := range records {
		out[recordID(t, r)] = placed{string(r.Key), r.Partition}
	}
	return out
}
