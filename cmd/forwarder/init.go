package main

import (
	"github.com/spf13/cobra"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

func (p *program) initCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "init [flags]", Short: "Creates the outbox and the forwarder's own tables",
		Long: `Creates the outbox (a table in PostgreSQL, a collection in MongoDB), what the forwarder keeps
beside it, and the publication for --mode stream, where they do not exist yet. It can be
repeated, and never drops or changes anything. With --print it writes what it would do to
standard output, as SQL or for mongosh, and touches no database, so it needs none.`,
	}
	flags := addSettings(cmd, true, "source.postgres.url", "source.postgres.mode")
	print := cmd.Flags().Bool("print", false, "write the statements instead of running them")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Source: !*print}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		return p.actions.initStore(cmd.Context(), cfg, *print, newLogger(cfg.Log, p.stderr), p.stdout)
	}
	return cmd
}
