package servers

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestCachedFetchesOnceForAllWhoAskAtOnce(t *testing.T) {
	t.Setenv("FORWARDER_CACHE", t.TempDir())
	ctx := within(t, time.Minute)
	var fetches atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := cached(ctx, "thing", func(into string) error {
				fetches.Add(1)
				return os.WriteFile(filepath.Join(into, "program"), []byte("whole"), 0o600)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if text, err := os.ReadFile(filepath.Join(dir, "program")); string(text) != "whole" {
				t.Errorf("what was fetched reads %q, %v", text, err)
			}
		})
	}
	wg.Wait()
	if n := fetches.Load(); n != 1 {
		t.Errorf("fetched %d times, want once", n)
	}
}

func TestCachedDoesNotTakeAnInterruptedFetchForACompleteOne(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("FORWARDER_CACHE", cache)
	ctx := within(t, time.Minute)
	// What a fetch without the mark leaves, as a killed one of another kind would.
	check(t, os.Mkdir(filepath.Join(cache, "thing"), 0o755))
	check(t, os.WriteFile(filepath.Join(cache, "thing", "half"), nil, 0o600))

	broken := errors.New("the line was cut")
	_, err := cached(ctx, "thing", func(into string) error {
		check(t, os.WriteFile(filepath.Join(into, "half"), nil, 0o600))
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("a fetch that was cut gave %v", err)
	}
	dir, err := cached(ctx, "thing", func(into string) error {
		return os.WriteFile(filepath.Join(into, "whole"), nil, 0o600)
	})
	check(t, err)
	if _, err := os.Stat(filepath.Join(dir, "half")); !os.IsNotExist(err) {
		t.Errorf("the interrupted fetch is part of the complete one: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "whole")); err != nil {
		t.Error(err)
	}
	left, err := filepath.Glob(filepath.Join(cache, ".fetch-*"))
	check(t, err)
	if len(left) > 0 {
		t.Errorf("fetches left %q behind", left)
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("HOME", "/home/someone")
	for _, c := range []struct{ own, xdg, want string }{
		{"/own", "/xdg", "/own"},
		{"", "/xdg", "/xdg/forwarder"},
		{"", "relative", "/home/someone/.cache/forwarder"}, // to be ignored, says its standard
		{"", "", "/home/someone/.cache/forwarder"},
	} {
		t.Setenv("FORWARDER_CACHE", c.own)
		t.Setenv("XDG_CACHE_HOME", c.xdg)
		if got, err := CacheDir(); err != nil || got != c.want {
			t.Errorf("FORWARDER_CACHE=%q XDG_CACHE_HOME=%q: %q, %v; want %q", c.own, c.xdg, got, err, c.want)
		}
	}
}

func TestFreePortsAreOutsideTheRangeOfOutgoingConnections(t *testing.T) {
	low, high := ephemeralPorts()
	seen := make(map[int]bool)
	for range 200 {
		port, err := freePort()
		check(t, err)
		if low <= port && port <= high {
			t.Errorf("port %d is between %d and %d", port, low, high)
		}
		if seen[port] {
			t.Errorf("port %d was given out twice", port)
		}
		seen[port] = true
	}
}
