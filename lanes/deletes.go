package lanes

import (
	"fmt"
	"slices"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// shard is the deletes of a share of the lanes, one statement at a time: a lane's rows are
// deleted in the order in which they were acknowledged, so that what a crash leaves to be sent
// again is a suffix of each key.
type shard struct {
	acked   []int64 // to be deleted, in order
	since   time.Time
	out     bool   // a delete is on its way
	reads   uint64 // the floor's count when it was sent
	fails   int
	retryAt time.Time // not before, after a failure
}

func (e *Engine) shard(lane source.Lane) *shard { return &e.shards[int(lane)%len(e.shards)] }

// Deleting says that a Ready.Delete that is on its way runs as transaction xid.
func (e *Engine) Deleting(now time.Time, ids []int64, xid uint64) {
	sh := e.shard(e.acknowledged(ids[0]).lane)
	e.floor.Ours(xid)
	e.floor.Fence(sh.reads, xid)
	e.fencedAt = now
}

// Deleted says that a Ready.Delete has committed.
func (e *Engine) Deleted(ids []int64) {
	e.finished(ids).fails = 0
	for _, id := range ids {
		it := e.acknowledged(id)
		e.forget(it)
		l := &e.lanes[it.lane]
		l.undeleted--
		e.undeleted--
		e.stats.Deleted++
		if l.ownership == draining {
			e.checkDrained(it.lane)
		}
	}
}

// DeleteFailed says that a Ready.Delete did not commit, or may not have. It is asked for
// again; deleting a row twice does no harm.
func (e *Engine) DeleteFailed(now time.Time, ids []int64) {
	sh := e.finished(ids)
	sh.fails++
	sh.retryAt = now.Add(e.cfg.Store.after(sh.fails, e.cfg.Rand))
	if len(sh.acked) == 0 {
		sh.since = now
	}
	sh.acked = append(slices.Clone(ids), sh.acked...)
}

// finished returns the shard that a delete was of.
func (e *Engine) finished(ids []int64) *shard {
	sh := e.shard(e.acknowledged(ids[0]).lane)
	if !sh.out {
		panic(fmt.Sprintf("lanes: the delete of row %d has finished and was not on its way", ids[0]))
	}
	sh.out = false
	return sh
}

func (e *Engine) acknowledged(id int64) *item {
	it := e.known.Get(id)
	if it == nil || it.state != acknowledged {
		panic(fmt.Sprintf("lanes: row %d was deleted without an acknowledgement", id))
	}
	return it
}

// deletes takes the acknowledged events to delete, one set for each shard that has none on its
// way: at once when they fill a statement or when lanes are being given up, else after a moment
// in which more may come.
func (e *Engine) deletes(now time.Time) [][]int64 {
	var sets [][]int64
	for i := range e.shards {
		sh := &e.shards[i]
		if len(sh.acked) == 0 || sh.out || now.Before(e.deleteDue(sh)) {
			continue
		}
		n := min(len(sh.acked), e.cfg.DeleteEvents)
		set := slices.Clone(sh.acked[:n])
		slices.Sort(set)
		sh.acked = append(sh.acked[:0], sh.acked[n:]...)
		sh.since = now
		sh.out = true
		sh.reads = e.floor.Reads()
		sets = append(sets, set)
	}
	return sets
}

// deleteDue is when a shard's next delete may be sent.
func (e *Engine) deleteDue(sh *shard) time.Time {
	due := sh.retryAt
	if len(sh.acked) < e.cfg.DeleteEvents/2 && !e.hurry() {
		if full := sh.since.Add(e.cfg.DeleteWait); full.After(due) {
			due = full
		}
	}
	return due
}

// hurry reports whether somebody waits for deletes.
func (e *Engine) hurry() bool { return e.stopping || e.owns[draining] > 0 }
