package main

import (
	"github.com/spf13/cobra"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

func (p *program) parkedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "parked [flags]", Short: "Lists what a running forwarder cannot deliver, and why",
		Long: `Asks the forwarder that runs at --admin-listen which rows, keys and topics wait, since when
and why. With --retry it tells that forwarder to try all of them again now.`,
	}
	flags := addSettings(cmd, true, "admin.listen")
	retry := cmd.Flags().Bool("retry", false, "try everything that waits again now")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Admin: true, Look: true}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		return p.actions.parked(cmd.Context(), cfg, *retry, p.stdout)
	}
	return cmd
}
