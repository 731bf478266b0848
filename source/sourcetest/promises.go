package sourcetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outbox-forwarder/forwarder/source"
)

// unacknowledgedComesBack delivers four events but the third, and crashes.
func unacknowledgedComesBack(t *testing.T, o Outbox) {
	b := &broker{judge: func(ev *source.Event) fate {
		if string(ev.Payload) == "C" {
			return inFlight
		}
		return acknowledged
	}}
	f := o.start(t, b, time.Millisecond)
	f.hand.gain()
	o.put(t, keyed("a", "A"), keyed("b", "B"), keyed("c", "C"), keyed("d", "D"))
	eventually(t, "A, B and D are delivered and deleted", func() bool { return b.count() == 3 && o.Left(t) == 1 })
	f.crash()

	b = &broker{}
	f = o.own(t, b)
	eventually(t, "C is back", func() bool { return slices.Contains(b.payloads(), "C") && o.Left(t) == 0 })
	o.put(t, keyed("e", "E"))
	eventually(t, "E is delivered", func() bool { return slices.Contains(b.payloads(), "E") && o.Left(t) == 0 })
	f.stop()
	got := b.payloads()
	if o.Repeats {
		got = slices.DeleteFunc(got, func(s string) bool { return s == "A" || s == "B" || s == "D" })
	}
	if !slices.Equal(got, []string{"C", "E"}) {
		t.Errorf("after the crash came %q, want C and E", b.payloads())
	}

	b = &broker{}
	f = o.own(t, b)
	o.put(t, keyed("f", "F"))
	eventually(t, "F is delivered", func() bool { return o.Left(t) == 0 && b.count() > 0 })
	f.stop()
	if got := b.payloads(); !slices.Equal(got, []string{"F"}) {
		t.Errorf("after a clean stop came %q, want F alone", got)
	}
}

// orderAndRollback lets writers that take turns for a key write in transactions of several
// rows, short and long, some of which are rolled back.
func orderAndRollback(t *testing.T, o Outbox) {
	b := &broker{}
	o.put(t, keyed("before", "the start"))
	f := o.own(t, b)
	ws := o.write(t, 6, 20)
	eventually(t, "two thousand events", func() bool { return b.count() > 2000 })
	ws.stop()
	eventually(t, "the outbox is empty", func() bool { return int64(b.count()) >= ws.total.Load()+1 && o.Left(t) == 0 })
	f.stop()
	if repeats := ws.check(b.events()); repeats > 0 {
		t.Errorf("%d repeats in one life of the process", repeats)
	}
	if got := b.payloads(); !slices.Contains(got, "the start") {
		t.Error("the row from before the start is missing")
	}
}

// refusedHoldsItsKey refuses some events a few times: later ones of their keys wait for them,
// others do not.
func refusedHoldsItsKey(t *testing.T, o Outbox) {
	tries := map[string]int{}
	b := &broker{judge: func(ev *source.Event) fate {
		name := ev.Name()
		if slices.Contains([]string{"7", "13"}, string(ev.Payload)) && tries[name] < 3 {
			tries[name]++
			return refused
		}
		if string(ev.Payload) == "stuck" && tries[name] < 1<<30 {
			tries[name]++
			return refused
		}
		return acknowledged
	}}
	f := o.own(t, b)
	o.put(t, keyed("stuck", "stuck"), keyed("stuck", "behind it"), Row{Topic: "t", Payload: []byte("keyless")})
	ws := o.write(t, 4, 10)
	eventually(t, "a thousand events", func() bool { return b.count() > 1000 })
	ws.stop()
	eventually(t, "all but two are delivered", func() bool { return int64(b.count()) == ws.total.Load()+1 && o.Left(t) == 2 })
	if repeats := ws.check(b.events()); repeats > 0 {
		t.Errorf("%d repeats", repeats)
	}
	b.setJudge(nil)
	eventually(t, "the outbox is empty", func() bool { return o.Left(t) == 0 })
	f.stop()
	if got := b.payloads(); !slices.Equal(got[len(got)-2:], []string{"stuck", "behind it"}) {
		t.Errorf("the last ones are %q", got[len(got)-2:])
	}
}

// lanesMove lets two replicas have all lanes by turns, under load.
func lanesMove(t *testing.T, o Outbox) {
	b := &broker{}
	f, g := o.own(t, b), o.start(t, b, patience)
	ws := o.write(t, 6, 20)
	for range 6 {
		seen := b.count()
		eventually(t, "the owner delivers", func() bool { return b.count() > seen+100 })
		f.hand.lose()
		f, g = g, f
		f.hand.gain()
	}
	ws.stop()
	eventually(t, "the outbox is empty", func() bool { return int64(b.count()) >= ws.total.Load() && o.Left(t) == 0 })
	f.stop()
	g.stop()
	// What was acknowledged and not deleted when a lane moved is sent again. Where a lease is
	// lost, the new owner's repeats need not be whole suffixes: both have deleted some rows.
	t.Logf("%d events, %d repeats", ws.total.Load(), ws.check(b.events()))
}

// stopUnderLoad stops replicas in order while events flow: nothing is sent twice.
func stopUnderLoad(t *testing.T, o Outbox) {
	b := &broker{}
	ws := o.write(t, 6, 20)
	for range 4 {
		f := o.own(t, b)
		seen := b.count()
		eventually(t, "events are delivered", func() bool { return b.count() > seen+200 })
		f.stop()
	}
	f := o.own(t, b)
	ws.stop()
	eventually(t, "the outbox is empty", func() bool { return int64(b.count()) >= ws.total.Load() && o.Left(t) == 0 })
	f.stop()
	if repeats := ws.check(b.events()); repeats > 0 {
		t.Errorf("%d repeats after stops in order", repeats)
	}
}

// idle counts the reads of an outbox in which nothing happens.
func idle(t *testing.T, o Outbox) {
	b := &broker{}
	f := o.own(t, b)
	o.put(t, keyed("k", "first"))
	eventually(t, "the first is delivered", func() bool { return b.count() == 1 && o.Left(t) == 0 })
	const during, atMost = 2 * time.Second, 200 // the pause between two reads is 50 ms in the end
	before := f.reads.Load()
	<-time.After(during)
	if n := f.reads.Load() - before; n > atMost {
		t.Errorf("%d reads in %v though nothing was written", n, during)
	}
	o.put(t, keyed("k", "second"))
	eventually(t, "the second is delivered", func() bool { return b.count() == 2 })
	f.stop()
	if got := fmt.Sprint(b.payloads()); got != "[first second]" {
		t.Errorf("%s arrived", got)
	}
}
