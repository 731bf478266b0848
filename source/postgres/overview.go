package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-forwarder/forwarder/source"
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
	Lane  source.Lane `json:"lane"`
	Owner string      `json:"owner"` // empty for nobody
	Epoch int64       `json:"epoch"`
	Since time.Time   `json:"since"`
}

// ReadOverview looks at the tables, from anywhere.
func ReadOverview(ctx context.Context, cfg Config) (*Overview, error) {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	conn, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is left to be lost
	if err := settleQueue(ctx, conn); err != nil {
		return nil, err
	}
	t, err := describe(ctx, conn, cfg)
	if err != nil {
		return nil, err
	}
	o := &Overview{Table: t.name.String(), Lanes: t.lanes}
	owners := make([]string, t.lanes)
	if err := o.readLeases(ctx, conn, t, owners); err != nil {
		return nil, fmt.Errorf("reading the lanes: %w", err)
	}
	if err := o.readMembers(ctx, conn, t, owners); err != nil {
		return nil, fmt.Errorf("reading the members: %w", err)
	}
	if err := o.readBacklog(ctx, conn, t, owners); err != nil {
		return nil, fmt.Errorf("counting the backlog: %w", err)
	}
	return o, nil
}

func (o *Overview) readLeases(ctx context.Context, conn *pgx.Conn, t *table, owners []string) error {
	rows, err := conn.Query(ctx, fmt.Sprintf(`SELECT lane, coalesce(owner, ''), epoch, since FROM %s`, t.name.beside(lanesSuffix).sql()))
	if err != nil {
		return err
	}
	var lane int32
	var l LeaseView
	_, err = pgx.ForEachRow(rows, []any{&lane, &l.Owner, &l.Epoch, &l.Since}, func() error {
		l.Lane = source.Lane(lane)
		o.Leases = append(o.Leases, l)
		owners[lane] = l.Owner
		return nil
	})
	slices.SortFunc(o.Leases, func(a, b LeaseView) int { return int(a.Lane) - int(b.Lane) })
	return err
}

func (o *Overview) readMembers(ctx context.Context, conn *pgx.Conn, t *table, owners []string) error {
	rows, err := conn.Query(ctx, fmt.Sprintf(
		`SELECT id, started_at, extract(epoch FROM expires_at - clock_timestamp())::float8, retiring, report FROM %s`,
		t.name.beside(membersSuffix).sql()))
	if err != nil {
		return err
	}
	var m MemberView
	var retiring bool
	_, err = pgx.ForEachRow(rows, []any{&m.ID, &m.Started, &m.Expires, &retiring, &m.Report}, func() error {
		switch {
		case m.Expires <= 0:
			m.State = "overdue"
		case retiring:
			m.State = "retiring"
		default:
			m.State = "live"
		}
		o.Members = append(o.Members, m)
		m.Report = nil
		return nil
	})
	slices.SortFunc(o.Members, func(a, b MemberView) int { return strings.Compare(a.ID, b.ID) })
	for _, owner := range owners {
		if m := o.member(owner); m != nil {
			m.Lanes++
		} else {
			o.Unowned++
		}
	}
	return err
}

func (o *Overview) member(id string) *MemberView {
	i, found := slices.BinarySearchFunc(o.Members, id, func(m MemberView, id string) int { return strings.Compare(m.ID, id) })
	if !found {
		return nil
	}
	return &o.Members[i]
}

// readBacklog counts the first rows by lane, and so by owner.
func (o *Overview) readBacklog(ctx context.Context, conn *pgx.Conn, t *table, owners []string) error {
	created := "NULL::timestamptz"
	if t.has("created_at") {
		col := pgx.Identifier{t.columns.CreatedAt}.Sanitize()
		created = fmt.Sprintf("CASE WHEN isfinite(%[1]s) THEN %[1]s::timestamptz END", col)
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(
		`SELECT lane, count(*), min(created) FROM (SELECT %s AS lane, %s AS created FROM %s ORDER BY %s LIMIT %d) first GROUP BY lane`,
		newStatements(t).lane(), created, t.name.sql(), pgx.Identifier{t.columns.ID}.Sanitize(), BacklogBound+1))
	if err != nil {
		return err
	}
	var lane int32
	var n int
	var oldest *time.Time
	_, err = pgx.ForEachRow(rows, []any{&lane, &n, &oldest}, func() error {
		o.Backlog.add(n, oldest)
		if m := o.member(owners[lane]); m != nil {
			m.Backlog.add(n, oldest)
		}
		return nil
	})
	if o.Backlog.Rows > BacklogBound {
		o.Backlog.Rows, o.Backlog.More = BacklogBound, true
		for i := range o.Members {
			o.Members[i].Backlog.More = true
		}
	}
	return err
}

func (b *Backlog) add(n int, oldest *time.Time) {
	b.Rows += n
	if oldest != nil && (b.Oldest == nil || oldest.Before(*b.Oldest)) {
		b.Oldest = oldest
	}
}
