package lanes

import (
	"context"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// Source is the outbox: where events are read and deleted.
type Source interface {
	// Read answers one page. Calls are serial. The page holds no event that the read excludes.
	Read(ctx context.Context, read *source.Read) (*source.Page, error)
	// Delete removes rows by id, which are in ascending order; ids that are gone already are
	// no error. As soon as the transaction has its xid, which was assigned after the call,
	// began is told; where a delete is tried again it is told again, and where there are no
	// xids, never. Delete is called concurrently with Read and with itself.
	Delete(ctx context.Context, ids []int64, began func(xid uint64)) error
}

// Waker is a Source that hears of new rows, and may have them in memory.
type Waker interface {
	// Wake holds a token, until it is taken, from when there may be something new to read.
	Wake() <-chan struct{}
	// FromMemory answers a read as Source.Read does, at once, or returns nil: then the read must be
	// given to Source.Read. Calls of both are serial.
	FromMemory(read *source.Read) *source.Page
}

// Sink is the broker.
type Sink interface {
	// Submit hands runs to the broker's client, each in its order. Calls are serial. report
	// gets exactly one outcome for each event, in any number of calls from any goroutine,
	// also before Submit returns. Within a run, those of one key come in the run's order: rows
	// are deleted in the order of their outcomes.
	Submit(runs [][]*source.Event, report func([]source.Outcome))
	// Recall takes back what was submitted and is not on the wire yet, with outcomes of class
	// Broker. It does not wait.
	Recall()
}

// Owner decides which lanes are ours.
type Owner interface {
	// Own holds lanes on behalf of h until ctx is done, and then gives them up. It returns
	// early with an error only when it cannot go on.
	Own(ctx context.Context, h Holder) error
	// Retire asks Own to take no more lanes and to drain those that it holds, while it goes on
	// to hold what h has not finished with. It returns at once.
	Retire()
}

// Holder is what an Owner tells. Its methods return at once.
type Holder interface {
	// Gain says that lanes are ours from now on.
	Gain(lanes []source.Lane)
	// Lose says that lanes are not ours any more: nothing more of them is submitted.
	Lose(lanes []source.Lane)
	// Drain asks to finish with lanes; done is called once for each, as it is finished.
	Drain(lanes []source.Lane, done func(source.Lane))
	// Trust says until when, by the monotonic clock, the lanes are ours without further
	// word. From then on nothing is submitted, until a later Trust. An owner that never calls
	// it is trusted for good.
	Trust(until time.Time)
}

// Sole is the Owner of a forwarder that has the outbox to itself.
type Sole struct{ Lanes int }

// Own holds every lane until ctx is done.
func (s Sole) Own(ctx context.Context, h Holder) error {
	all := make([]source.Lane, s.Lanes)
	for i := range all {
		all[i] = source.Lane(i)
	}
	h.Gain(all)
	<-ctx.Done()
	return nil
}

// Retire does nothing: nobody waits for the lanes.
func (s Sole) Retire() {}
