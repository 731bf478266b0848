package servers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// attachToParent makes cmd die by sig when the thread that starts it ends, and puts it
// into a process group of its own, so that a Ctrl-C in the terminal reaches only the
// process that then stops its servers in order.
func attachToParent(cmd *exec.Cmd, sig syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = sig
	cmd.SysProcAttr.Setpgid = true
}

// account is the user that a server runs as where it may not run as root.
type account struct{ uid, gid uint32 }

// unprivileged returns the account for servers that refuse root: nil where the caller is
// not root, so that they run as the caller.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return &account{uint32(uid), uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL cannot run as root and there is no user postgres or nobody: add one, or run as an ordinary user")
}

// apply makes cmd run as the account.
func (a *account) apply(cmd *exec.Cmd) {
	if a == nil {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own hands the folder to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// reaches says whether the account may pass through every folder on the way to path and
// into it.
func (a *account) reaches(path string) bool {
	if a == nil {
		return true
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(path)
		if err != nil {
			return false
		}
		st := info.Sys().(*syscall.Stat_t)
		bit := os.FileMode(0o001)
		switch {
		case st.Uid == a.uid:
			bit = 0o100
		case st.Gid == a.gid:
			bit = 0o010
		}
		if info.IsDir() && info.Mode()&bit == 0 {
			return false
		}
		parent := filepath.Dir(path)
		if parent == path {
			return true
		}
		path = parent
	}
}

// tryLock takes the file's advisory lock. The kernel releases it with the last descriptor,
// so a killed holder leaves no stale lock.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return true, nil
}

// processInfo returns the parent and the state of a process from its stat file; ok is
// false when there is no such process.
func processInfo(pid int) (parent int, state byte, ok bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, false
	}
	// The second field is the program's name in parentheses, and may hold anything.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 || len(fields[0]) != 1 {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return parent, fields[0][0], err == nil
}

// childrenOf returns the ids of the processes whose parent is pid.
func childrenOf(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var children []int
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, _, ok := processInfo(child); ok && parent == pid {
			children = append(children, child)
		}
	}
	return children, nil
}

// ended says that the process holds nothing any more: there is none, or only its exit
// status waits to be collected by an init that may never come.
func ended(pid int) bool {
	_, state, ok := processInfo(pid)
	return !ok || state == 'Z' || state == 'X'
}

// freeze stops the process from running, so that it starts no child while they are listed.
func freeze(pid int) error { return syscall.Kill(pid, syscall.SIGSTOP) }

// kill ends the process at once. One that has ended already is no error.
func kill(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	return nil
}
