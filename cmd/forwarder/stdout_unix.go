//go:build unix

package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// stdoutClosed says whether the process was started with standard output closed. The Go
// runtime then opens the null device in its place, for reading and writing, and every write
// succeeds. A shell's >/dev/null opens it for writing only, so that is told apart; a parent
// that hands down a null device open for both is taken for a closed output. That matters
// only to a command that prints: run does not.
func stdoutClosed() bool {
	flags, err := unix.FcntlInt(os.Stdout.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return true
	}
	out, err := os.Stdout.Stat()
	if err != nil {
		return true
	}
	null, err := os.Stat(os.DevNull)
	if err != nil {
		return false
	}
	a, aok := out.Sys().(*syscall.Stat_t)
	b, bok := null.Sys().(*syscall.Stat_t)
	return aok && bok && out.Mode()&os.ModeCharDevice != 0 && a.Rdev == b.Rdev &&
		flags&unix.O_ACCMODE == unix.O_RDWR
}
