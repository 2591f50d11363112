package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// usageError is a command line, or a variable in place of it, that asks for what can't be.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// flagSet is a subcommand's flags, in groups. Each flag has an environment variable, which counts where the flag is not given.
type flagSet struct {
	*pflag.FlagSet
	groups []flagGroup
	env    map[string]string // flags that were set by a variable: its name
}

type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

func newFlagSet(command string) *flagSet {
	fs := &flagSet{FlagSet: pflag.NewFlagSet("tandem "+command, pflag.ContinueOnError), env: map[string]string{}}
	fs.SetInterspersed(false)
	fs.Usage = func() {}
	// torchrun's flags have a second spelling, with underscores.
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	return fs
}

// group declares flags under a title.
func (fs *flagSet) group(title string, declare func(*pflag.FlagSet)) {
	g := pflag.NewFlagSet(title, pflag.ContinueOnError)
	g.SortFlags = false
	declare(g)
	fs.groups = append(fs.groups, flagGroup{title, g})
	fs.AddFlagSet(g)
}

// variable is the name of a flag's environment variable.
func variable(flag string) string {
	return "TANDEM_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// parse reads arguments and then, for flags that are not among them, variables. Its errors are *usageError, or pflag.ErrHelp.
func (fs *flagSet) parse(args []string, getenv func(string) (string, bool)) error {
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return usagef("%w; %s --help lists the flags", plain(err), fs.Name())
	}
	var failed error
	fs.VisitAll(func(f *pflag.Flag) {
		name := variable(f.Name)
		value, _ := getenv(name)
		if f.Changed || value == "" || failed != nil {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			failed = usagef("%s=%q: %w", name, value, reason(err))
			return
		}
		fs.env[f.Name] = name
	})
	return failed
}

// as is how a flag was given: --name value, or its variable.
func (fs *flagSet) as(name string) string {
	value := fs.Lookup(name).Value.String()
	if v, ok := fs.env[name]; ok {
		return v + "=" + value
	}
	return "--" + name + " " + value
}

// plain says what pflag says about a value in the form of the other messages here.
func plain(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	return fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), reason(err))
}

// reason is why pflag did not accept a value.
func reason(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return errors.Unwrap(invalid)
	}
	return err
}

// noArguments is an error for a command that takes none.
func (fs *flagSet) noArguments() error {
	if fs.NArg() == 0 {
		return nil
	}
	return usagef("unexpected argument %q: %s takes flags only; --help lists them", fs.Arg(0), fs.Name())
}

// help is the text of --help.
func (c command) help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n  tandem %s %s\n", c.intro, c.name, c.usage)
	if c.examples != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s", c.examples)
	}
	for _, g := range c.flags().groups {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.flags.FlagUsagesWrapped(100))
	}
	b.WriteString(c.after)
	return b.String()
}

// overview is the help of the whole command.
func overview() string {
	var b strings.Builder
	b.WriteString(`Tandem runs a program as the workers of a job, one a card, and shows cards and jobs.

Usage:
  tandem COMMAND [flags]

Commands:
`)
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-11s %s\n", c.name, c.about)
	}
	fmt.Fprintf(&b, "  %-11s %s\n", "help", "show the help of a command: tandem help run")
	b.WriteString(`
Examples:
  tandem run ./examples/mnist
  TANDEM_SIM_CARDS=4 tandem run --devices 3,2,0,1 ./examples/mnist --epochs 1
  tandem devices
`)
	return b.String()
}
