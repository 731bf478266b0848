//go:build !linux

package e2e

import "os/exec"

// dieWithParent has no counterpart outside Linux; the test's clean-up ends the child.
func dieWithParent(*exec.Cmd) {}
