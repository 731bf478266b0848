//go:build !linux

package servers

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// Elsewhere than on Linux there is no signal at the parent's death, no process table in
// files, and no change of user: servers run as the caller, who must not be root, and are
// stopped only by the process that started them.

func attachToParent(*exec.Cmd, syscall.Signal) {}

type account struct{}

func unprivileged() (*account, error) {
	if os.Geteuid() == 0 {
		return nil, errors.New("PostgreSQL cannot run as root: run as an ordinary user")
	}
	return nil, nil
}

func (*account) apply(*exec.Cmd)     {}
func (*account) own(string) error    { return nil }
func (*account) reaches(string) bool { return true }

// tryLock always succeeds: what it guards is also safe by atomic renames, only dearer.
func tryLock(*os.File) (bool, error) { return true, nil }

func childrenOf(int) ([]int, error) { return nil, nil }
func ended(int) bool                { return true }
func freeze(int) error              { return nil }

func kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}
