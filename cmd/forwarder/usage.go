package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outbox-forwarder/forwarder/internal/config"
)

// usageError is a mistake on the command line. Its text never repeats an argument whose
// form is not that of a name, since that may be a password in the wrong place.
type usageError struct {
	problem string
	hint    string
}

func (e *usageError) Error() string { return e.problem + "; " + e.hint }

// flagError says what is wrong with a flag. The flag library's own texts repeat arguments:
// "-source-url=postgres://..." with one dash would come back with its password.
func flagError(cmd *cobra.Command, err error) error {
	see := "see " + cmd.CommandPath() + " --help"
	var unknown *pflag.NotExistError
	var incomplete *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return &usageError{"a flag with one dash is not known to " + cmd.CommandPath(), "flags begin with two dashes; " + see}
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := config.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			see = "did you mean --" + near + "?"
		}
		return &usageError{"unknown flag --" + showWord(unknown.GetSpecifiedName()), see}
	case errors.As(err, &incomplete):
		return &usageError{"the flag --" + incomplete.GetSpecifiedName() + " has no value", "write --" + incomplete.GetSpecifiedName() + " VALUE"}
	case errors.As(err, &invalid) && errors.Is(err, errTwice):
		return &usageError{"the flag --" + invalid.GetFlag().Name + " is given twice", "keep one of them"}
	case errors.As(err, &invalid):
		return &usageError{"the flag --" + invalid.GetFlag().Name + " is either there or not", "write it without a value"}
	}
	return &usageError{"an argument is not a flag in the right form", see}
}

// noArguments refuses what is no flag.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{fmt.Sprintf("%s takes flags only, but there is a word without one", cmd.CommandPath()),
		"write each value behind its flag; see " + cmd.CommandPath() + " --help"}
}

// unknownCommand reports a first word that is no command.
func unknownCommand(word string, names []string) error {
	hint := "the commands are " + strings.Join(names, ", ")
	if near := config.Nearest(word, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	if strings.HasPrefix(word, "-") {
		return &usageError{"a flag stands before the command", "write forwarder COMMAND first; " + hint}
	}
	return &usageError{"unknown command " + showWord(word), hint}
}

// showWord returns a word that has the form of a name, else a stand-in.
func showWord(word string) string {
	plain := word != "" && len(word) <= 40 && !strings.ContainsFunc(word, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
	if plain {
		return word
	}
	return "(not shown: it is no name)"
}

var errTwice = errors.New("given twice")

// settingFlag is a flag whose value config judges. A list may be given in parts; of
// anything else two values contradict each other.
type settingFlag struct {
	list  bool
	given bool
	text  string
}

func (f *settingFlag) Set(text string) error {
	switch {
	case !f.given:
		f.text = text
	case f.list:
		f.text += "," + text
	default:
		return errTwice
	}
	f.given = true
	return nil
}

// String is empty so that help never shows a value as a default.
func (f *settingFlag) String() string { return "" }

// Type is what help shows in place of a value.
func (f *settingFlag) Type() string {
	if f.list {
		return "LIST"
	}
	return "VALUE"
}

// settingFlags are the flags of one command that config understands.
type settingFlags struct {
	file  settingFlag
	byKey map[string]*settingFlag // by path
}

// addSettings gives a command the flags of some settings, and --config if file is true.
func addSettings(cmd *cobra.Command, file bool, paths ...string) *settingFlags {
	s := &settingFlags{byKey: map[string]*settingFlag{}}
	if file {
		cmd.Flags().Var(&s.file, "config", "YAML file with settings (also FORWARDER_CONFIG); forwarder.example.yaml explains them all")
	}
	for _, f := range config.Flags() {
		if slices.Contains(paths, f.Path) {
			s.byKey[f.Path] = &settingFlag{list: f.List}
			cmd.Flags().Var(s.byKey[f.Path], f.Name, f.Usage)
		}
	}
	return s
}

// overrides returns what was given.
func (s *settingFlags) overrides(needs config.Needs) config.Overrides {
	o := config.Overrides{File: s.file.text, FileGiven: s.file.given, Flags: map[string]string{}, Needs: needs}
	for path, f := range s.byKey {
		if f.given {
			o.Flags[path] = f.text
		}
	}
	return o
}
