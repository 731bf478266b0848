package tail

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/outbox-forwarder/forwarder/source"
)

// finishing is a log that is asked to finish, and what is appended to it meanwhile.
type finishing struct {
	*Log[int]
	t        *testing.T
	finished chan struct{}
}

func finishingLog(t *testing.T) *finishing {
	none := func(context.Context, []int64, func(uint64)) error { return nil }
	return &finishing{NewLog[int](LogConfig{}, none), t, make(chan struct{})}
}

func (f *finishing) append(ctx context.Context, pos int, end bool, rows ...int64) error {
	entries := make([]Entry, len(rows))
	for i, id := range rows {
		entries[i] = Entry{Event: &source.Event{ID: id}}
	}
	return f.Append(ctx, pos, end, entries)
}

// finish returns once Finish waits, or has returned.
func (f *finishing) finish() {
	go func() {
		f.Finish(context.Background())
		close(f.finished)
	}()
	synctest.Wait()
}

// deliver reads what there is and deletes all of it but what keep says.
func (f *finishing) deliver(keep int) {
	f.t.Helper()
	page, err := f.Read(context.Background(), &source.Read{Limit: 100, Bytes: 1 << 20})
	if err != nil {
		f.t.Fatal(err)
	}
	var ids []int64
	for _, ev := range page.Events[keep:] {
		ids = append(ids, ev.ID)
	}
	if err := f.Delete(context.Background(), ids, func(uint64) {}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *finishing) wantConfirmed(want int) {
	f.t.Helper()
	if got, _ := f.Confirmed(); got != want {
		f.t.Errorf("%d is confirmed, want %d", got, want)
	}
}

// TestFinish: the transaction that was begun is taken in to its end and delivered, and the next one
// only after a reset.
func TestFinish(t *testing.T) { synctest.Test(t, finish) }

func finish(t *testing.T) {
	f := finishingLog(t)
	ctx := t.Context()
	for _, err := range []error{f.append(ctx, 1, true, 10), f.append(ctx, 2, false, 20)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f.finish()
	f.deliver(0)
	if err := f.append(ctx, 2, true, 21); err != nil {
		t.Fatal(err)
	}
	next := make(chan error, 1)
	go func() { next <- f.append(ctx, 3, true, 30) }()
	f.deliver(0)
	<-f.finished
	f.wantConfirmed(2)
	synctest.Wait()
	select {
	case err := <-next:
		t.Fatalf("the next transaction was taken in: %v", err)
	default:
	}
	f.Reset(false)
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	f.deliver(0)
	f.wantConfirmed(3)
}

// TestFinishGivesUp: an event that cannot be delivered does not hold up the stop.
func TestFinishGivesUp(t *testing.T) { synctest.Test(t, finishGivesUp) }

func finishGivesUp(t *testing.T) {
	f := finishingLog(t)
	if err := f.append(t.Context(), 1, true, 10, 11); err != nil {
		t.Fatal(err)
	}
	f.finish()
	f.deliver(1)
	<-f.finished
	if _, ok := f.Confirmed(); ok {
		t.Error("a transaction is confirmed of which one event was not delivered")
	}
}

// TestFinishAfterScan: the log is read on until it is past what the scan brought.
func TestFinishAfterScan(t *testing.T) { synctest.Test(t, finishAfterScan) }

func finishAfterScan(t *testing.T) {
	f := finishingLog(t)
	ctx := t.Context()
	if err := f.Scan(ctx, []*source.Event{{ID: 10}}, true); err != nil {
		t.Fatal(err)
	}
	f.finish()
	f.deliver(0)
	if err := f.append(ctx, 1, true, 10, 11); err != nil {
		t.Fatal(err)
	}
	f.deliver(0)
	f.EndSkip()
	<-f.finished
	f.wantConfirmed(1)
}
