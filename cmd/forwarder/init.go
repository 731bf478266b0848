package main

import (
	"github.com/spf13/cobra"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

func (p *program) initCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "init [flags]", Short: "Creates the outbox table and the forwarder's own tables",
		Long: `Creates the outbox table and the forwarder's own tables where they do not exist yet. It can
be repeated, and never drops or changes anything. With --print it writes the SQL to standard
output and touches no database, so it needs none.`,
	}
	flags := addSettings(cmd, true, "source.postgres.url")
	print := cmd.Flags().Bool("print", false, "write the SQL instead of running it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Source: !*print}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		return p.actions.initStore(cmd.Context(), cfg, *print, p.stdout)
	}
	return cmd
}
