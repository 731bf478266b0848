package postgres

import (
	"context"
	"testing"
	"time"
)

// TestCloseWithSilentServer: connections that died without a word, and a read that was given up on
// one of them, do not hold up the end.
func TestCloseWithSilentServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, outbox)
	p := newProxy(t, w.url)
	s, err := Open(t.Context(), w.config(func(c *Config) { c.URL = p.url }))
	if err != nil {
		t.Fatal(err)
	}
	wantIDs(t, "before", events(t, s, everything()))
	p.silence(true)
	once, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Read(once, everything()); err == nil {
		t.Fatal("a server that does not answer was read")
	}
	closed := make(chan struct{})
	go func() {
		s.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(5 * closeLimit):
		t.Errorf("it is not closed after %v", 5*closeLimit)
	}
}
