package postgres

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// database makes another database on the server of the world, which is the test's own, with
// the tables beside the outbox.
func (w *world) database(name string, statements ...string) *world {
	w.t.Helper()
	w.exec("CREATE DATABASE " + name)
	other := worldAt(w.t, w.path(name), statements...)
	other.beside(Config{})
	return other
}

// path is the URL of another database of the server.
func (w *world) path(database string) string {
	w.t.Helper()
	u, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal("the server's address is not a URL")
	}
	u.Path = "/" + database
	return u.String()
}

// reconfigure changes a setting of the whole server, which is the test's own, without a restart.
func (w *world) reconfigure(name, value string) {
	w.t.Helper()
	w.exec(fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value))
	w.exec("SELECT pg_reload_conf()")
	eventually(w.t, name+" is "+value, func() bool { return value == asked(w, "SELECT current_setting('"+name+"')") })
}

// asked is value in a session of its own, whose settings are the server's of now.
func asked(w *world, sql string) string {
	w.t.Helper()
	fresh := *w
	fresh.conn = w.session()
	defer fresh.conn.Close(context.Background())
	return value[string](&fresh, sql)
}

// slots names the replication slots of the database.
func (w *world) slots() []string {
	w.t.Helper()
	list := value[[]string](w, "SELECT coalesce(array_agg(slot_name::text ORDER BY slot_name), '{}') FROM pg_replication_slots WHERE database = current_database()")
	return list
}

// cut ends the log's connection at the server.
func (w *world) cut() {
	w.t.Helper()
	w.exec("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE database = current_database() AND active")
}

// wantNumbers asserts that the payloads are the numbers from first to last, each once and in
// order.
func wantNumbers(t testing.TB, what string, list []string, first, last int) {
	t.Helper()
	want := numbers(first, last)
	if !slices.Equal(list, want) {
		t.Errorf("%s: %d events, want %d to %d: %s", what, len(list), first, last, firstDifference(list, want))
	}
}

// numbered waits until the outbox is empty, and asserts that the numbers up to last were
// acknowledged, each once and in order.
func (st *streaming) numbered(w *world, last int) {
	st.t.Helper()
	st.delivered(w, last)
	wantNumbers(st.t, "acknowledged", st.sink.payloads(), 1, last)
}

// says waits for a line of the log that holds all the words.
func (st *streaming) says(words ...string) {
	st.t.Helper()
	eventually(st.t, fmt.Sprintf("the log says %q", words), func() bool { return st.lines(words...) > 0 })
}

// lines counts the lines of the log that hold all the words.
func (st *streaming) lines(words ...string) int {
	n := 0
	for line := range strings.Lines(st.logged.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			n++
		}
	}
	return n
}

// again waits until the log is streamed for the nth time.
func (st *streaming) again(n uint64) {
	st.t.Helper()
	eventually(st.t, fmt.Sprintf("the log is streamed for the %dth time", n), func() bool {
		s := st.Stats()
		return s.Begun >= n && s.Complete
	})
}

// relayed puts a proxy before the log's connection alone.
func (w *world) relayed(t *testing.T) (*proxy, func(*Config)) {
	t.Helper()
	p := newProxy(t, w.url)
	return p, func(c *Config) { c.ReplicationURL = p.url }
}
