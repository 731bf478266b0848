package main

import (
	"github.com/spf13/cobra"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

func (p *program) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run [flags]", Short: "Forwards events until it is stopped",
		Long: `Forwards events from the outbox to Kafka until SIGINT or SIGTERM. It then stops reading,
waits for acknowledgements (shutdown.grace, 20s by default), deletes what was acknowledged
and exits with 0. A second signal ends it at once; what was not deleted is sent again.`,
	}
	flags := addSettings(cmd, true, "source.postgres.url", "source.postgres.mode", "kafka.brokers", "admin.listen")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Source: true, Kafka: true}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		logger := newLogger(cfg.Log, p.stderr)
		logger.Debug("configuration", "config", cfg)
		return p.actions.run(cmd.Context(), cfg, logger)
	}
	return cmd
}
