package servers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const (
	folderPrefix = "forwarder-server-"
	lockName     = "lock"
)

// folder is a server's folder under the one for temporary files. Its lock is held as long
// as this process lives, and so tells a folder in use from one left behind.
type folder struct {
	path string
	lock *os.File
}

// newFolder makes a folder that the account may write to, and removes those that killed
// processes left behind.
func newFolder(name string, owner *account) (*folder, error) {
	parent, err := tempFolder(owner)
	if err != nil {
		return nil, err
	}
	sweep(parent)
	path, err := os.MkdirTemp(parent, folderPrefix+name+"-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for %s: %w", name, err)
	}
	f := &folder{path: path}
	if err := errors.Join(f.takeLock(), owner.own(path)); err != nil {
		return nil, errors.Join(fmt.Errorf("making a folder for %s: %w", name, err), f.remove())
	}
	return f, nil
}

// takeLock locks a file before it gets the name by which sweep knows it, so that sweep
// never meets a lock that is not taken yet.
func (f *folder) takeLock() error {
	unnamed := filepath.Join(f.path, lockName+".new")
	lock, err := os.Create(unnamed)
	if err != nil {
		return err
	}
	f.lock = lock
	if _, err := tryLock(lock); err != nil {
		return err
	}
	return os.Rename(unnamed, filepath.Join(f.path, lockName))
}

func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// tempFolder returns the folder for temporary files, or one that the owner reaches.
func tempFolder(owner *account) (string, error) {
	candidates := []string{os.TempDir(), "/tmp", "/var/tmp"}
	if i := slices.IndexFunc(candidates, owner.reaches); i >= 0 {
		return candidates[i], nil
	}
	return "", fmt.Errorf("making a data folder: the server's user may not enter any of %q: set TMPDIR to a folder that everybody may enter", candidates)
}

// sweep removes the folders whose lock nobody holds. It is a courtesy: what cannot be
// removed stays for its owner to remove.
func sweep(parent string) {
	found, _ := filepath.Glob(filepath.Join(parent, folderPrefix+"*"))
	for _, path := range found {
		if info, err := os.Lstat(path); err != nil || !info.IsDir() {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if ours, err := tryLock(lock); err == nil && ours {
			_ = os.RemoveAll(path)
		}
		_ = lock.Close()
	}
}
