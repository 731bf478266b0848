package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/outbox-forwarder/forwarder/internal/config"
	"github.com/outbox-forwarder/forwarder/source/postgres"
)

func (p *program) slotsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "slots [flags]", Short: "Lists the replication slots of forwarders, and drops one",
		Long: `Lists the replication slots that forwarders have on the PostgreSQL server, for any outbox, with
how much of its log the server keeps for each. A durable slot that no forwarder reads any more
keeps the log until the disk is full: remove it with "forwarder slots drop NAME".`,
	}
	flags := addSettings(cmd, true, "source.postgres.url")
	asJSON := cmd.Flags().Bool("json", false, "write JSON, one slot on a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Source: true, Look: true}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		list, err := p.actions.slots(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		if *asJSON {
			out := json.NewEncoder(p.stdout)
			for _, s := range list {
				if err := out.Encode(s); err != nil {
					return err
				}
			}
			return nil
		}
		return writeSlots(p.stdout, list)
	}
	cmd.AddCommand(p.slotsDropCommand())
	return cmd
}

func (p *program) slotsDropCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drop NAME [flags]", Short: "Drops a replication slot that no forwarder reads",
		Long: `Drops a replication slot, so that the server need not keep its log any longer, after asking
on standard input. What only that log holds is lost: rows that their writer has deleted, and
messages without a row. Rows in the outbox stay, and are forwarded as ever. A slot from which
a forwarder reads at this moment is refused.`,
		DisableFlagsInUseLine: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return nil
			}
			return &usageError{cmd.CommandPath() + " takes the name of one slot", "`forwarder slots` lists them"}
		},
	}
	flags := addSettings(cmd, true, "source.postgres.url")
	yes := cmd.Flags().Bool("yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Source: true, Look: true}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		list, err := p.actions.slots(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		for _, s := range list {
			if s.Name != args[0] {
				continue
			}
			// An active one is refused by the server's word, without a question.
			if s.Active == 0 && !*yes && !p.confirmed(fmt.Sprintf("Drop replication slot %s, for which the server keeps %s of its log?", s.Name, mebibytes(s.Retained))) {
				return errors.New("the slot was not dropped: answer yes, or give --yes")
			}
			break
		}
		if err := p.actions.dropSlot(cmd.Context(), cfg, args[0]); err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "%s is dropped\n", args[0])
		return err
	}
	return cmd
}

// confirmed asks on standard error and reads the answer from standard input.
func (p *program) confirmed(question string) bool {
	fmt.Fprintf(p.stderr, "%s Type yes: ", question)
	answer, err := bufio.NewReader(p.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	return strings.TrimSpace(answer) == "yes"
}

func writeSlots(out io.Writer, list []postgres.Slot) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "no forwarder has a replication slot on this server")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	// tabwriter keeps the first write error and Flush returns it.
	fmt.Fprintln(table, "SLOT\tDATABASE\tTABLE\tKIND\tREAD BY PROCESS\tKEEPS\tSTATUS")
	for _, s := range list {
		kind, reader, name := "durable", "-", "-"
		if s.Temporary {
			kind = "temporary"
		}
		if s.Active != 0 {
			reader = strconv.Itoa(s.Active)
		}
		if s.Table != "" {
			name = s.Table
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.Database, name, kind, reader, mebibytes(s.Retained), s.Status)
	}
	return table.Flush()
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/float64(config.MiB)) }

func listSlots(ctx context.Context, cfg config.Config) ([]postgres.Slot, error) {
	pg, err := slotDatabase(cfg)
	if err != nil {
		return nil, err
	}
	return postgres.ListSlots(ctx, pg.config())
}

func dropSlot(ctx context.Context, cfg config.Config, name string) error {
	pg, err := slotDatabase(cfg)
	if err != nil {
		return err
	}
	return postgres.DropSlot(ctx, pg.config(), name)
}

func slotDatabase(cfg config.Config) (postgresDatabase, error) {
	if cfg.Source.IsMongo() {
		return postgresDatabase{}, &config.FieldError{Field: cfg.Source.Section(), Problem: "is MongoDB, which has no replication slots", Hint: "name a PostgreSQL with --source-url"}
	}
	return postgresDatabase{cfg.Source.Postgres, cfg.Memory.Events, slog.New(slog.DiscardHandler)}, nil
}
