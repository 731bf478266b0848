package e2e

import (
	"os/exec"
	"syscall"
)

// dieWithParent ends the child when the test process dies, however it does. The child is a
// process group of its own: when the shell that started the tests ends, the kernel would
// continue a child that a test has stopped in the shell's group.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
