// Command mnist trains a network that reads handwritten digits, on one card, on many, or on the host.
//
//	go run ./examples/mnist
//	TANDEM_SIM_CARDS=4 go run ./examples/mnist --devices 0,2,3 --strategy allreduce --report run.json
//
// It is a program as a user of the library would write it: a model of package nn ([newModel]), a data set of its own for the
// loader of package dp/data ([digits]), and a loop around [dp.DataParallel.Step] ([session]). The rest is what a command owes to
// people (flags, progress, a clean end by Ctrl-C) and to scripts (a JSON [report], exit statuses).
//
// Results go to standard output, progress and messages to standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Exit statuses.
const (
	statusOK          = 0
	statusFailure     = 1
	statusUsage       = 2
	statusInterrupted = 130 // 128 + SIGINT, as shells have it
)

// started is when this process began, but for the few milliseconds in which the packages below were initialised.
var started = time.Now()

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// untilSignal ends with the first signal; a second one ends the process at once. Signals are taken from when there is a trainer: before that they
// end the process, or [dp.New], which waits for other processes and would not know of one that was taken before.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// run is the command: it gives the exit status. When ctx ends, or at a signal, it stops with what was reached.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		fmt.Fprint(stdout, help())
		return statusOK
	}
	if err == nil {
		err = train(ctx, opts, newConsole(stdout, stderr, opts))
	}
	if err != nil {
		fmt.Fprintf(stderr, "mnist: %v\n", err)
	}
	return status(err)
}

// status is the exit status for what train or parse returned.
func status(err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return statusOK
	case errors.As(err, &usage):
		return statusUsage
	case errors.Is(err, errInterrupted):
		return statusInterrupted
	}
	return statusFailure
}
