package lanes

import (
	"context"
	"time"
)

// Leases is the store of members and lanes. Every decision about time is made by the store's
// clock, every change of ownership by a conditional write. Calls are serial, each has the
// deadline of its context, and a call that failed may have been carried out.
type Leases interface {
	// Join adds the member me for ttl.
	Join(ctx context.Context, me Member, ttl time.Duration) error
	// Round renews me and returns who is there; alive is false when me is no member any
	// more. It has removed members that had expired. A report that is not nil replaces what
	// the member's row shows to people.
	Round(ctx context.Context, me Member, ttl time.Duration, report []byte) (table Table, alive bool, err error)
	// Take makes me the owner of those leases that are still as they are given, and whose
	// owner is no member. It returns what me owns now of them, with the new epochs. A lane that
	// nobody has owned since it was put into the store may have been there before, and who owned
	// it then need not have noticed: it is left alone while another member is there that joined
	// before it was put there, for the ttl of the last Join or Round at most.
	Take(ctx context.Context, me string, want []Lease) (got []Lease, err error)
	// Release makes those leases free that still belong to me with the epoch given.
	Release(ctx context.Context, me string, done []Lease) error
	// Leave removes me.
	Leave(ctx context.Context, me string) error
}

// Table is what the store says in one snapshot.
type Table struct {
	Members []Member
	Leases  []Lease // one for each lane
}
