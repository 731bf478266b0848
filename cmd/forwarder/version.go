package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker (-X main.version=...).
var version string

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Prints the version",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(p.stdout, "forwarder %s %s %s/%s\n", versionName(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// versionName falls back to what the Go tool knows, for "go install" and "go run".
func versionName() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
