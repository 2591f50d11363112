// Command tandem runs programs as the workers of a job, one a card, and shows the cards of a machine and the jobs on it.
//
//	tandem run ./examples/mnist                       one worker a visible card
//	tandem run --devices 3,2,0,1 train --epochs 3     on these cards; rank 0 gets card 3
//	tandem devices                                    which cards there are, and what CUDA_VISIBLE_DEVICES makes of them
//	tandem top                                        what they do
//
// Each subcommand reads its flags ([flagSet], which also reads their environment variables) into options. That of run makes a
// [launcher.Config] of them, by a function without side effects ([runOptions.config]); package launcher does the rest. What a
// person asked for goes to standard output, all else to standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/tandem-train/tandem/launcher"
)

// Exit statuses. A failed job ends with that of its first worker that failed, and a command that a signal has ended ends by that signal.
const (
	statusOK            = 0
	statusFailure       = 1
	statusUsage         = 2
	statusNotExecutable = 126 // as shells have it
	statusNotFound      = 127
)

func main() {
	err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)
	var ended *launcher.SignalError
	if errors.As(err, &ended) {
		raise(ended.Signal)
	}
	os.Exit(status(err))
}

// command is a subcommand.
type command struct {
	name  string
	about string // in a line

	// Its help: what follows its name, what it does, examples, and what comes behind the flags.
	usage, intro, examples, after string

	takesProgram bool // and the program's arguments, behind its flags

	flags func() *flagSet // for help and completion
	run   func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

// commands are all subcommands but help, in the order of the help. It is a function, since completion lists them, too.
func commands() []command {
	return []command{runCommand(), devicesCommand(), topCommand(), versionCommand(), completionCommand()}
}

func find(name string) (command, bool) {
	for _, c := range commands() {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
}

// run is the whole command: it says on stderr what went wrong, and gives the error for the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	err := dispatch(ctx, args, stdout, stderr)
	var failed *launcher.JobError
	switch {
	case err == nil:
	case errors.As(err, &failed):
		fmt.Fprintf(stderr, "tandem: %s", failed.Report())
	default:
		fmt.Fprintf(stderr, "tandem: %v\n", err)
	}
	return err
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, overview())
		return usagef("name a command: run, devices, top, version, completion or help")
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "--help", "-h":
		return showHelp(args, stdout)
	case "--version":
		name = "version"
	}
	c, ok := find(name)
	if !ok {
		return usagef("unknown command %q: there are run, devices, top, version, completion and help; to run a program: tandem run %s", name, name)
	}
	err := c.run(ctx, args, stdout, stderr)
	if errors.Is(err, pflag.ErrHelp) {
		_, err = fmt.Fprint(stdout, c.help())
	}
	return err
}

func showHelp(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		_, err := fmt.Fprint(stdout, overview())
		return err
	}
	c, ok := find(args[0])
	if !ok {
		return usagef("help %q: there is no such command: tandem help lists them", args[0])
	}
	_, err := fmt.Fprint(stdout, c.help())
	return err
}

// status is the exit status for what run returned.
func status(err error) int {
	var (
		usage  *usageError
		failed interface{ ExitCode() int }
	)
	switch {
	case err == nil:
		return statusOK
	case errors.As(err, &usage):
		return statusUsage
	case errors.As(err, &failed):
		return failed.ExitCode()
	}
	return statusFailure
}
