package main

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

// demoOptions are the settings that only a demo has.
type demoOptions struct {
	// Rate is the number of events written per second; 0 is as fast as possible.
	Rate float64
	// Duration is how long to write; 0 is until a signal.
	Duration time.Duration
}

const defaultDemoRate, fullSpeed = "1000", "max"

func (p *program) demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "demo [flags]", Short: "Shows the whole way from an outbox to a checking consumer",
		Long: `Starts a PostgreSQL, a broker in this process, a writer, the forwarder, and a consumer that
checks order, loss and repeats. Ctrl-C ends it with a verdict. With --source-url or --brokers
it works on real servers instead, PostgreSQL or MongoDB, in a schema or a database and a
topic of its own. It takes its settings from its flags only.`,
	}
	flags := addSettings(cmd, false, "source.postgres.url", "source.postgres.mode", "kafka.brokers")
	var rate, duration settingFlag
	cmd.Flags().Var(&rate, "rate", "events written per second, or "+fullSpeed+" (default "+defaultDemoRate+")")
	cmd.Flags().Var(&duration, "duration", "how long to write, such as 10s (default: until Ctrl-C)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// What the environment says about a real outbox is not for a demo.
		environ := slices.DeleteFunc(slices.Clone(p.environ), func(line string) bool { return strings.HasPrefix(line, "FORWARDER_") })
		cfg, err := config.Load(flags.overrides(config.Needs{}), environ, p.readFile)
		var problems config.Problems
		if err != nil && !errors.As(err, &problems) {
			return err
		}
		options, more := parseDemo(rate, duration)
		if problems = append(problems, more...); len(problems) > 0 {
			return problems
		}
		return p.actions.demo(cmd.Context(), cfg, options, p.stdout)
	}
	return cmd
}

func parseDemo(rate, duration settingFlag) (o demoOptions, problems config.Problems) {
	text := defaultDemoRate
	if rate.given {
		text = rate.text
	}
	if text != fullSpeed {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n > 0 && n <= 1e7) {
			problems = append(problems, &config.FieldError{Field: "--rate", Value: config.Show(text),
				Problem: "is not a number of events per second", Hint: "write a number above 0, or " + fullSpeed})
		}
		o.Rate = n
	}
	if duration.given {
		d, bad := config.Duration("--duration", duration.text)
		if bad != nil {
			problems = append(problems, bad)
		}
		o.Duration = d
	}
	return o, problems
}
