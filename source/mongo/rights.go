package mongo

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
)

// rights is what the user of a connection may do. Where nobody is logged in, the server asks for
// no login, and everybody may do everything; or it refuses every command, and says so itself.
type rights struct {
	user       string
	anonymous  bool
	privileges []privilege
}

type privilege struct {
	Resource struct {
		Database   *string `bson:"db"`
		Collection *string `bson:"collection"`
		Any        bool    `bson:"anyResource"`
	} `bson:"resource"`
	Actions []string `bson:"actions"`
}

func rightsOf(ctx context.Context, client *driver.Client) (*rights, error) {
	var status struct {
		Auth struct {
			Users []struct {
				User string `bson:"user"`
			} `bson:"authenticatedUsers"`
			Privileges []privilege `bson:"authenticatedUserPrivileges"`
		} `bson:"authInfo"`
	}
	err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}}).Decode(&status)
	if err != nil {
		return nil, err
	}
	if len(status.Auth.Users) == 0 {
		return &rights{anonymous: true}, nil
	}
	return &rights{user: status.Auth.Users[0].User, privileges: status.Auth.Privileges}, nil
}

// missing returns those of the actions that the user may not do to the collection.
func (r *rights) missing(database, collection string, actions []string) (missing []string) {
	if r.anonymous {
		return nil
	}
	for _, action := range actions {
		if !slices.ContainsFunc(r.privileges, func(p privilege) bool { return p.gives(database, collection, action) }) {
			missing = append(missing, action)
		}
	}
	return missing
}

func (p *privilege) gives(database, collection, action string) bool {
	if !slices.Contains(p.Actions, action) {
		return false
	}
	if p.Resource.Any {
		return true
	}
	// An empty name stands for all of them; a resource without names is the cluster.
	names := func(have *string, want string) bool { return have != nil && (*have == "" || *have == want) }
	return names(p.Resource.Database, database) && names(p.Resource.Collection, collection)
}

func missingRight(user, database, collection string, actions []string) string {
	return fmt.Sprintf("user %s may not %s in collection %s.%s: grant a role with the privilege {resource: {db: %q, collection: %q}, actions: [\"%s\"]}",
		user, strings.Join(actions, " and "), database, collection, database, collection, strings.Join(actions, `", "`))
}
