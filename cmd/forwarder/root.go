package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

const rootHelp = `forwarder moves events from an outbox, a table in PostgreSQL or a collection in MongoDB, to
Kafka: in order for each key, at least once, and a row is deleted when the broker has
acknowledged its record.

Try it:             forwarder demo
Create the tables:  forwarder init --source-url postgres://app@localhost:5432/app
Run it:             forwarder run --source-url postgres://app@localhost:5432/app --brokers localhost:9092
For MongoDB:        the same with --source-url mongodb://localhost:27017/app?replicaSet=rs0

Settings come from defaults, a YAML file (--config), environment variables
(FORWARDER_SOURCE_POSTGRES_URL for source.postgres.url) and flags; later ones win.
${NAME} in a value is replaced by a variable, and a secret may be written as
file:/run/secrets/name. Other users of a machine can read a process's flags, so give
passwords by the environment or by a file.

Exit codes: 0 clean stop, 1 gave up at run time, 2 wrong configuration or command line.`

// command runs the command that args name. The name comes first, so that nothing has to
// guess which word is a flag's value.
func (p *program) command(ctx context.Context, args []string) error {
	root := p.root()
	names := commandNames(root)
	switch {
	case len(args) == 0:
		return &usageError{"no command is given", "the commands are " + strings.Join(names, ", ")}
	case args[0] == "--version" && len(args) == 1:
		args = []string{"version"}
	case args[0] == "--help" || args[0] == "-h":
		args = append([]string{"help"}, args[1:]...)
	case !slices.Contains(names, args[0]):
		return unknownCommand(args[0], names)
	}
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use: "forwarder", Short: "Moves an outbox to Kafka", Long: rootHelp,
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(flagError)
	for _, cmd := range []*cobra.Command{p.runCommand(), p.checkCommand(), p.initCommand(), p.demoCommand(), p.statusCommand(), p.lanesCommand(), p.parkedCommand(), p.retireCommand(), p.slotsCommand(), p.versionCommand()} {
		cmd.Args = noArguments
		cmd.DisableFlagsInUseLine = true
		root.AddCommand(cmd)
	}
	help := helpCommand()
	root.SetHelpCommand(help)
	root.AddCommand(help)
	return root
}

// helpCommand is the library's, but an unknown topic is a mistake and not a success.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [command]", Short: "Explains a command",
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			if len(args) == 0 {
				return root.Help()
			}
			names := commandNames(root)
			if len(args) > 1 || !slices.Contains(names, args[0]) {
				return unknownCommand(args[0], names)
			}
			for _, c := range root.Commands() {
				if c.Name() == args[0] {
					c.InitDefaultHelpFlag()
					return c.Help()
				}
			}
			return nil
		},
	}
}

func commandNames(root *cobra.Command) []string {
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	return names
}
