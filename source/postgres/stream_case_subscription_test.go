package postgres

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outbox-forwarder/forwarder/lanes"
)

// TestC30Subscription: rows that another server's publication brings are forwarded once, with the same
// bytes by each way of reading, although the log tells where they come from in messages of its own,
// and in the order of the commits where it goes by the log.
func TestC30Subscription(t *testing.T) {
	t.Parallel()
	there := worldAt(t, ownServer(t, nil).URL("postgres"), outbox, counters,
		"ALTER TABLE outbox ALTER id RESTART 1000000", // whoever writes on both sides has two ranges of ids
		"CREATE PUBLICATION outbox_there FOR TABLE outbox WITH (publish = 'insert')")
	// These are copied when the subscription begins, in the order in which they lie there.
	there.exec("UPDATE counters SET n = 10 WHERE key = 'k0'")
	there.exec("INSERT INTO outbox (topic, key, payload) SELECT 't', 'k0', convert_to(i::text, 'UTF8') FROM generate_series(1, 10) i")
	here := worldAt(t, ownServer(t, map[string]string{"max_worker_processes": "20", "max_logical_replication_workers": "12"}).URL("postgres"))

	var worlds []*world
	var sinks []*recorder
	for _, how := range []string{"poll", "stream", "durable"} {
		w := here.database(how, outbox)
		w.publish()
		w.exec("SELECT pg_create_logical_replication_slot('witness_' || current_database(), 'pgoutput')")
		sink := &recorder{}
		switch how {
		case "poll":
			forward(t, w.open(), sink)
		case "stream":
			w.streamTo(sink, lanes.Config{}).live()
		case "durable":
			w.durable(sink, nil).live()
		}
		w.exec(fmt.Sprintf("CREATE SUBSCRIPTION %s CONNECTION '%s' PUBLICATION outbox_there", how, there.url))
		worlds, sinks = append(worlds, w), append(sinks, sink)
	}
	for _, w := range worlds {
		eventually(t, "the table is copied", func() bool {
			return value[bool](w, "SELECT count(*) = 1 FROM pg_subscription_rel WHERE srsubstate = 'r'")
		})
	}
	there.write(4, 40)
	for _, w := range worlds {
		w.insert(1, 10) // its own writers
	}
	there.write(2, 10)
	total := 10 + value[int](there, "SELECT count(*) FROM outbox")
	var first []string
	for i, w := range worlds {
		how, sink := value[string](w, "SELECT current_database()"), sinks[i]
		eventually(t, how+": all are delivered", func() bool { return sink.count() >= total && w.rows() == 0 })
		events := sink.events()
		if how != "poll" {
			there.judge(events) // ids do not rise in the order of commits here, and polling goes by them
		}
		var own []string
		var words []string
		for _, ev := range events {
			if string(ev.Key) == "k" {
				own = append(own, string(ev.Payload))
			} else {
				words = append(words, inWords(ev))
			}
		}
		wantNumbers(t, how+": its own", own, 1, 10)
		slices.Sort(words)
		if first == nil {
			first = words
		} else if !slices.Equal(words, first) {
			t.Errorf("%s: the events differ from those of polling", how)
		}
		if !value[bool](w, `SELECT bool_or(get_byte(data, 0) = ascii('O')) FROM pg_logical_slot_peek_binary_changes('witness_' || current_database(), NULL, NULL,
			'proto_version', '1', 'publication_names', 'outbox_publication')`) {
			t.Errorf("%s: the log tells no origin", how)
		}
	}
}
