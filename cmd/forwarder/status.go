package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/outbox-forwarder/forwarder/internal/admin"
	"github.com/outbox-forwarder/forwarder/internal/config"
	"github.com/outbox-forwarder/forwarder/source"
)

// watchEvery is the pause of status --watch.
const watchEvery = 2 * time.Second

func (p *program) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status [flags]", Short: "Shows replicas, lanes and backlog, from the database",
		Long: `Reads from the database which replicas share the outbox, how many lanes each has, what waits
in them, and what each says of itself. It works from any machine, and counts no more than
10,000 rows however many wait.`,
	}
	flags := addSettings(cmd, true, "source.postgres.url")
	asJSON := cmd.Flags().Bool("json", false, "write JSON, one object on a line")
	watch := cmd.Flags().Bool("watch", false, "show it again every 2 s, until Ctrl-C")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Source: true, Look: true}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		return p.overviews(cmd.Context(), cfg, *watch, func(o *source.Overview) error {
			if *asJSON {
				return json.NewEncoder(p.stdout).Encode(o)
			}
			return writeStatus(p.stdout, o, time.Now())
		})
	}
	return cmd
}

func (p *program) lanesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "lanes [flags]", Short: "Shows who owns which lane, since when",
		Long: `Reads from the database which replica owns each lane, since when, and in which epoch, which
grows with every change of owner. Lanes that changed together are shown together.`,
	}
	flags := addSettings(cmd, true, "source.postgres.url")
	asJSON := cmd.Flags().Bool("json", false, "write JSON, one lane on a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Source: true, Look: true}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		return p.overviews(cmd.Context(), cfg, false, func(o *source.Overview) error {
			if !*asJSON {
				return writeLanes(p.stdout, o, time.Now())
			}
			out := json.NewEncoder(p.stdout)
			for _, l := range o.Leases {
				if err := out.Encode(l); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return cmd
}

func (p *program) retireCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "retire [flags]", Short: "Makes a running replica give up its lanes to the others",
		Long: `Tells the forwarder that runs at --admin-listen to finish what is in flight, give up its lanes
and take none until it is restarted. Nothing is repeated.`,
	}
	flags := addSettings(cmd, true, "admin.listen")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(flags.overrides(config.Needs{Admin: true, Look: true}), p.environ, p.readFile)
		if err != nil {
			return err
		}
		return p.actions.retire(cmd.Context(), cfg, p.stdout)
	}
	return cmd
}

// overviews shows an overview once, or again and again until ctx is done.
func (p *program) overviews(ctx context.Context, cfg config.Config, watch bool, show func(*source.Overview) error) error {
	for {
		o, err := p.actions.overview(ctx, cfg)
		switch {
		case ctx.Err() != nil && watch:
			return nil
		case err != nil:
			return err
		}
		if err := show(o); err != nil || !watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

// writeStatus prints an overview for people.
func writeStatus(out io.Writer, o *source.Overview, now time.Time) error {
	fmt.Fprintf(out, "%s: %s waiting, oldest %s; %d lanes, %d without owner; %d members\n",
		o.Table, rowsText(o.Backlog), oldestText(o.Backlog, now), o.Lanes, o.Unowned, len(o.Members))
	if len(o.Members) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	// tabwriter keeps the first write error and Flush returns it.
	fmt.Fprintln(table, "MEMBER\tSTATE\tUP\tLANES\tWAITING\tOLDEST\tIN MEMORY\tFLOOR LAG\tPARKED")
	reports := make([]report, len(o.Members))
	for i, m := range o.Members {
		memory, lag, parked := "-", "-", "-"
		if m.Report != nil && json.Unmarshal(m.Report, &reports[i]) == nil {
			memory, lag, parked = strconv.Itoa(reports[i].InMemory), strconv.FormatInt(reports[i].FloorLag, 10), strconv.Itoa(reports[i].ParkedCount)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n",
			m.ID, m.State, now.Sub(m.Started).Round(time.Second), m.Lanes, rowsText(m.Backlog), oldestText(m.Backlog, now), memory, lag, parked)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i, m := range o.Members {
		r := reports[i]
		for _, reason := range r.Unready {
			fmt.Fprintf(out, "%s is not ready: %s\n", m.ID, oneLine(reason))
		}
		if len(r.Parked) == 0 {
			continue
		}
		fmt.Fprintf(out, "%s cannot deliver:\n", m.ID)
		if err := admin.WriteTable(out, r.Parked, now); err != nil {
			return err
		}
		if more := r.ParkedCount - len(r.Parked); more > 0 {
			fmt.Fprintf(out, "and %d more: ask it with `forwarder parked --admin-listen %s`\n", more, r.Admin)
		}
	}
	return nil
}

func rowsText(b source.Backlog) string {
	if b.More {
		return strconv.Itoa(b.Rows) + "+"
	}
	return strconv.Itoa(b.Rows)
}

func oldestText(b source.Backlog, now time.Time) string {
	if b.Oldest == nil {
		return "-"
	}
	return max(now.Sub(*b.Oldest), 0).Round(time.Second).String()
}

// writeLanes prints the lanes, those that changed together on one line.
func writeLanes(out io.Writer, o *source.Overview, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "LANES\tOWNER\tEPOCH\tFOR")
	for i := 0; i < len(o.Leases); {
		first := o.Leases[i]
		j := i + 1
		for j < len(o.Leases) && o.Leases[j].Owner == first.Owner && o.Leases[j].Epoch == first.Epoch &&
			o.Leases[j].Since.Sub(first.Since).Abs() < time.Second {
			j++
		}
		lanes := strconv.Itoa(int(first.Lane))
		if j > i+1 {
			lanes += "-" + strconv.Itoa(int(o.Leases[j-1].Lane))
		}
		owner := first.Owner
		if owner == "" {
			owner = "(nobody)"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\n", lanes, owner, first.Epoch, now.Sub(first.Since).Round(time.Second))
		i = j
	}
	return table.Flush()
}
