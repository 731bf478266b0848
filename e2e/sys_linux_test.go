package e2e

import (
	"os/exec"
	"syscall"
)

// dieWithParent ends the child when the test process dies, however it does.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
