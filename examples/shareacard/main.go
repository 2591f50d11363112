// Command shareacard lets several processes train on one card, each with a part of its memory. The last one asks for more than its part, is
// told so before anything runs, and goes on with a smaller batch.
//
//	go run ./examples/shareacard
//	TANDEM_SIM_CARDS=1x2GiB go run ./examples/shareacard --processes 3
//	go run ./examples/shareacard --fraction 0.006
//
// On a machine without cards it simulates one of 1 GiB. A large card has room for all that is asked for here, unless the parts are small, as
// in the last line; what the process holds beside its batch, its context on the card above all, counts there, too. It shows package launcher ([launcher.Spawn]), the caps of package cudaops
// ([cudaops.SetPerProcessMemoryFraction]), and the errors of package dp that say what fits ([dp.FitError]). While it runs, `tandem top` shows
// the same from outside.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/launcher"
)

// options are what the flags say; spawned processes read them, too.
type options struct {
	processes, steps, batch int
	fraction                float64
}

func parse(args []string) (o options, err error) {
	fs := pflag.NewFlagSet("shareacard", pflag.ContinueOnError)
	fs.IntVar(&o.processes, "processes", 4, "how many `processes` share the card, each with its part of the memory")
	fs.Float64Var(&o.fraction, "fraction", 0, "`part` of the card's memory that each may use (default: the same for all, together all of it)")
	fs.IntVar(&o.steps, "steps", 100, "`steps` of each process")
	fs.IntVar(&o.batch, "batch", 256, "`samples` of a step; the last process asks for 200 times as many first")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	for name, n := range map[string]int{"processes": o.processes, "steps": o.steps, "batch": o.batch} {
		if n < 1 {
			return o, fmt.Errorf("--%s %d: give at least 1", name, n)
		}
	}
	if !fs.Changed("fraction") {
		o.fraction = 1 / float64(o.processes)
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("what is %q? see --help", fs.Arg(0))
	}
	return o, nil
}

func main() {
	launcher.Register("share", func(ctx context.Context, rank int) error {
		o, err := parse(os.Args[1:])
		if err != nil {
			return err
		}
		return share(ctx, o, rank)
	})
	launcher.Init()
	o, err := parse(os.Args[1:])
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "shareacard:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "shareacard:", err)
		stop()
		os.Exit(1)
	}
}

// run starts the processes and waits for them.
func run(ctx context.Context, o options) error {
	cards, err := cudaops.AvailableDevices()
	if err != nil {
		return err
	}
	env := os.Environ()
	if len(cards) == 0 {
		const simulated = "1x1GiB"
		fmt.Printf("there is no card: one is simulated (TANDEM_SIM_CARDS=%s)\n", simulated)
		env = append(env, "TANDEM_SIM_CARDS="+simulated, "CUDA_VISIBLE_DEVICES=0") // which may hide all cards
	}
	return launcher.Spawn(ctx, o.processes, "share", func(c *launcher.Config) { c.Env = env })
}
