package source

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Overview is what the database says about an outbox and its replicas.
type Overview struct {
	Table   string       `json:"table"`
	Lanes   int          `json:"lanes"`
	Unowned int          `json:"lanes_unowned"` // lanes that belong to no member
	Backlog Backlog      `json:"backlog"`
	Members []MemberView `json:"members"`
	Leases  []LeaseView  `json:"-"`
}

// Backlog counts undelivered rows, those on their way included.
type Backlog struct {
	// Rows counts no further than BacklogBound, however many there are: More says so.
	Rows   int        `json:"rows"`
	More   bool       `json:"more"`
	Oldest *time.Time `json:"oldest,omitempty"` // of the rows counted; nil where none tells
}

// BacklogBound is how many rows an overview counts: it must not cost more as the backlog grows.
const BacklogBound = 10000

// MemberView is one replica as others see it.
type MemberView struct {
	ID      string          `json:"id"`
	Started time.Time       `json:"started"`
	Expires float64         `json:"expires_in_seconds"` // by the server's clock; negative when overdue
	State   string          `json:"state"`              // live, retiring or overdue
	Lanes   int             `json:"lanes"`
	Backlog Backlog         `json:"backlog"`
	Report  json.RawMessage `json:"report,omitempty"` // its own words, a few seconds old
}

// LeaseView is one lane.
type LeaseView struct {
	Lane  Lane      `json:"lane"`
	Owner string    `json:"owner"` // empty for nobody
	Epoch int64     `json:"epoch"`
	Since time.Time `json:"since"`
}

// NewOverview puts members and leases in order and counts who owns how many lanes. retiring
// holds for each member whether it is giving up its lanes.
func NewOverview(table string, leases []LeaseView, members []MemberView, retiring map[string]bool) *Overview {
	slices.SortFunc(leases, func(a, b LeaseView) int { return int(a.Lane) - int(b.Lane) })
	slices.SortFunc(members, func(a, b MemberView) int { return strings.Compare(a.ID, b.ID) })
	o := &Overview{Table: table, Lanes: len(leases), Members: members, Leases: leases}
	for i := range members {
		m := &members[i]
		switch {
		case m.Expires <= 0:
			m.State = "overdue"
		case retiring[m.ID]:
			m.State = "retiring"
		default:
			m.State = "live"
		}
	}
	for _, l := range leases {
		if m := o.member(l.Owner); m != nil {
			m.Lanes++
		} else {
			o.Unowned++
		}
	}
	return o
}

func (o *Overview) member(id string) *MemberView {
	i, found := slices.BinarySearchFunc(o.Members, id, func(m MemberView, id string) int { return strings.Compare(m.ID, id) })
	if !found {
		return nil
	}
	return &o.Members[i]
}

// Count adds n rows of a lane to the backlog; oldest may be nil. Of the first BacklogBound+1
// rows each must be counted once, and Bound called at the end.
func (o *Overview) Count(lane Lane, n int, oldest *time.Time) {
	o.Backlog.add(n, oldest)
	if int(lane) >= len(o.Leases) {
		return // the lane count was changed meanwhile
	}
	if m := o.member(o.Leases[lane].Owner); m != nil {
		m.Backlog.add(n, oldest)
	}
}

// Bound says of a backlog that was counted beyond BacklogBound that there is more.
func (o *Overview) Bound() {
	if o.Backlog.Rows > BacklogBound {
		o.Backlog.Rows, o.Backlog.More = BacklogBound, true
		for i := range o.Members {
			o.Members[i].Backlog.More = true
		}
	}
}

func (b *Backlog) add(n int, oldest *time.Time) {
	b.Rows += n
	if oldest != nil && (b.Oldest == nil || oldest.Before(*b.Oldest)) {
		b.Oldest = oldest
	}
}
