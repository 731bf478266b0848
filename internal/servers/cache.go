package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// completeName marks a folder of the cache whose fetch has ended well.
const completeName = ".complete"

// CacheDir returns the folder that fetched programs are kept in: FORWARDER_CACHE, else
// forwarder under XDG_CACHE_HOME, else ~/.cache/forwarder.
func CacheDir() (string, error) {
	if dir := os.Getenv("FORWARDER_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "forwarder"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder (set FORWARDER_CACHE): %w", err)
	}
	return filepath.Join(home, ".cache", "forwarder"), nil
}

// cached returns the cache's folder of that name. Where it is not complete, fetch fills an
// empty folder, which then takes its place in one step.
func cached(ctx context.Context, name string, fetch func(into string) error) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, name)
	if isComplete(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	unlock, err := lockCache(ctx, filepath.Join(cache, "."+name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if isComplete(dir) { // another process fetched it while we waited
		return dir, nil
	}
	into, err := os.MkdirTemp(cache, ".fetch-*")
	if err != nil {
		return "", fmt.Errorf("making a folder to fetch into: %w", err)
	}
	defer func() { _ = os.RemoveAll(into) }()
	if err := fetch(into); err != nil {
		return "", err
	}
	if err := place(into, dir); err != nil && !isComplete(dir) {
		return "", fmt.Errorf("keeping what was fetched: %w", err)
	}
	return dir, nil
}

// place marks the folder complete and moves it to dir, over what an interrupted fetch left.
func place(folder, dir string) error {
	mark, err := os.Create(filepath.Join(folder, completeName))
	if err != nil {
		return err
	}
	// The servers may run as another user than the one who fetches.
	if err := errors.Join(mark.Close(), os.Chmod(folder, 0o755), os.RemoveAll(dir)); err != nil {
		return err
	}
	return os.Rename(folder, dir)
}

func isComplete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, completeName))
	return err == nil
}

// lockCache waits until this process alone holds the lock file.
func lockCache(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the cache's lock: %w", err)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ours, err := tryLock(f)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if ours {
			return func() { _ = f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for another process's fetch: %w", context.Cause(ctx)), f.Close())
		case <-tick.C:
		}
	}
}

// orDefault returns the logger of a Config that may have none.
func orDefault(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.Default()
	}
	return log
}
