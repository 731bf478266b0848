package main

import (
	"encoding/json"

	"github.com/outbox-forwarder/forwarder/internal/admin"
)

// report is what a replica shows of itself in its member row, for `forwarder status` on any
// machine. It is small, since the row is rewritten with each heartbeat.
type report struct {
	Version     string         `json:"version"`
	Admin       string         `json:"admin,omitempty"` // where its admin server listens
	InMemory    int            `json:"in_memory"`
	Undeleted   int            `json:"undeleted"`
	FloorLag    int64          `json:"floor_lag"`
	Unready     []string       `json:"unready,omitempty"`
	ParkedCount int            `json:"parked_count"`
	Parked      []admin.Parked `json:"parked,omitempty"` // the first of them
}

// The bounds that keep a report small.
const (
	reportParked = 3
	reportText   = 160
)

// report describes this replica, for the keeper.
func (s *service) report() []byte {
	forwarder, _, _ := s.parts()
	if forwarder == nil {
		return nil
	}
	stats := forwarder.Stats()
	r := report{
		Version: versionName(), Admin: s.cfg.Admin.Listen, InMemory: stats.InMemory, Undeleted: stats.Undeleted,
		FloorLag: stats.FloorLag, Unready: s.Unready(), Parked: s.Parked(),
	}
	r.ParkedCount = len(r.Parked)
	r.Parked = r.Parked[:min(len(r.Parked), reportParked)]
	for i := range r.Parked {
		p := &r.Parked[i]
		p.Reason, p.Topic = cut(p.Reason), cut(p.Topic)
		if len(p.Key) > reportText {
			p.Key = p.Key[:reportText]
		}
	}
	for i := range r.Unready {
		r.Unready[i] = cut(r.Unready[i])
	}
	text, err := json.Marshal(r)
	if err != nil {
		s.log.Error("the report for the member row cannot be written", "err", err)
		return nil
	}
	return text
}

func cut(s string) string {
	if len(s) <= reportText {
		return s
	}
	return s[:reportText] + "..."
}
