package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// autogroups is the switch of a scheduler's feature for desktops: sessions share the processors, and not
// processes. Each backend of PostgreSQL is a session of its own, and one that wakes up often
// and briefly, as a walsender does, then waits for milliseconds beside a busy broker. Under a
// service manager or in a container processes are in no autogroup.
const autogroups = "/proc/sys/kernel/sched_autogroup_enabled"

// withoutAutogroups turns them off while it runs this program once more, since a process that is in an
// autogroup stays there. ran is false where that is not needed or not allowed.
func withoutAutogroups(ctx context.Context) (ran bool, err error) {
	was, err := os.ReadFile(autogroups)
	if err != nil || bytes.Equal(bytes.TrimSpace(was), []byte("0")) {
		return false, nil // there is no such thing here, or it is off
	}
	set := func(value []byte) error {
		if err := os.WriteFile(autogroups, value, 0o644); err != nil {
			return fmt.Errorf("setting kernel.sched_autogroup_enabled: %w", err)
		}
		return nil
	}
	if err := set([]byte("0")); errors.Is(err, fs.ErrPermission) {
		progress("kernel.sched_autogroup_enabled is on, and only root may change that: latencies will suffer from it")
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, set(was)) }()
	progress("kernel.sched_autogroup_enabled is off until the end")
	self, err := os.Executable()
	if err != nil {
		return false, fmt.Errorf("finding this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return true, fmt.Errorf("measuring: %w", err)
	}
	return true, nil
}
