//go:build !unix

package main

// stdoutClosed is false where a write to a closed output fails by itself.
func stdoutClosed() bool { return false }
