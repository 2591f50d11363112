// Command benchmarks times Tandem beside its peers on this machine.
//
//	go run ./benchmarks --suite host
//	go run ./benchmarks --suite host --workload mlp,matmul --json rows.json
//	go run ./benchmarks --suite host --peer gorgonia,torch
//
// A [suite] is a list of workloads in a file of its own, which registers it: host.go times training steps and kernels on the CPU,
// collectives.go sums over processes, launch.go the start of a job, cards.go training on several cards.
// Whatever competes is measured in one run, sample by sample in turn (measure.go), so that ratios hold where absolute times don't.
// Results are rows (row.go): a Markdown table on standard output, and JSON for programs. Progress goes to standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-train/tandem/internal/atomicfile"
)

// Exit statuses.
const (
	statusOK      = 0
	statusFailure = 1
	statusUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// assistants are what this program does when a suite has started it, by the variable that says so.
var assistants = map[string]func(ctx context.Context, stdout io.Writer) error{
	peerVariable:      func(ctx context.Context, _ io.Writer) error { return follow(ctx) },
	workersVariable:   func(ctx context.Context, _ io.Writer) error { return work(ctx) },
	firstStepVariable: takeFirstStep,
	startVariable:     takeStart,
}

// run is the command: it gives the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	for variable, assist := range assistants {
		if os.Getenv(variable) == "" {
			continue
		}
		if err := assist(ctx, stdout); err != nil {
			fmt.Fprintf(stderr, "benchmarks: %v\n", err)
			return statusFailure
		}
		return statusOK
	}
	o, err := parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, help())
		return statusOK
	case err != nil:
		fmt.Fprintf(stderr, "benchmarks: %v\n", err)
		return statusUsage
	}
	if err := execute(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "benchmarks: %v\n", err)
		return statusFailure
	}
	return statusOK
}

// options are what the command line asks for.
type options struct {
	suites    []string
	workloads []string // empty: all of the suites
	peers     []string
	json      string // a file; "": none
	threads   int    // 0: GOMAXPROCS
	modes     []string
	sampling
}

func flagSet(o *options) *pflag.FlagSet {
	fs := pflag.NewFlagSet("benchmarks", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {}
	fs.StringSliceVar(&o.suites, "suite", nil, "`suites` to run, with commas between them: "+strings.Join(suiteNames(), ", "))
	fs.StringSliceVar(&o.workloads, "workload", nil, "only these `workloads` of them (default: all)")
	fs.StringSliceVar(&o.peers, "peer", []string{gorgoniaPeer}, "`peers` to measure beside Tandem: gorgonia (its tape machine), torch (needs python3 with PyTorch), or none")
	fs.StringSliceVar(&o.modes, "torch-modes", []string{"eager", "compile", "graph", "compile+graph", "last+compile", "last+compile+graph"},
		"on cards, how PyTorch runs: some of eager, compile, graph and (images alone) last, joined by +")
	fs.StringVar(&o.json, "json", "", "write the rows to this `file`")
	fs.IntVar(&o.runs, "runs", 11, "samples of each measurement; the median counts")
	fs.DurationVar(&o.minTime, "min-time", 100*time.Millisecond, "repeat work until a sample takes this long")
	fs.IntVar(&o.threads, "threads", 0, "cores to use (default: all that the process may)")
	return fs
}

// parse reads and checks the command line.
func parse(args []string) (*options, error) {
	o := new(options)
	fs := flagSet(o)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case fs.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q: values belong to flags, as in --suite host; --help lists the flags", fs.Arg(0))
	case len(o.suites) == 0:
		return nil, fmt.Errorf("no suite: give --suite with some of %s", strings.Join(suiteNames(), ", "))
	case o.runs < 1:
		return nil, fmt.Errorf("--runs %d: want at least 1", o.runs)
	case o.minTime < 0:
		return nil, fmt.Errorf("--min-time %v: want a time from 0", o.minTime)
	case o.threads < 0:
		return nil, fmt.Errorf("--threads %d: want a number of cores, or 0 for all", o.threads)
	}
	if slices.Equal(o.peers, []string{"none"}) {
		o.peers = nil
	}
	if err := known("suite", o.suites, suiteNames()); err != nil {
		return nil, err
	}
	if err := known("peer", o.peers, []string{gorgoniaPeer, torchPeer}); err != nil {
		return nil, err
	}
	for _, mode := range o.modes {
		if err := known("torch-modes", strings.Split(mode, "+"), []string{"eager", "compile", "graph", "last"}); err != nil {
			return nil, err
		}
	}
	var all []string
	for _, name := range o.suites {
		for _, w := range suites[name].workloads {
			all = append(all, w.name)
		}
	}
	return o, known("workload", o.workloads, all)
}

// known reports the first of names that doesn't exist.
func known(flag string, names, existing []string) error {
	for _, name := range names {
		if !slices.Contains(existing, name) {
			return fmt.Errorf("--%s %q: there is none of that name: want some of %s", flag, name, strings.Join(existing, ", "))
		}
	}
	return nil
}

// execute runs what the options ask for and reports it.
func execute(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	if o.threads > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(o.threads))
	}
	save := func([]row) error { return nil }
	if o.json != "" {
		// First of all, so that a folder that doesn't exist costs nobody minutes.
		if err := atomicfile.Check(o.json); err != nil {
			return fmt.Errorf("--json %s: %w", o.json, err)
		}
		save = func(rows []row) error { return writeJSON(o.json, rows) }
	}
	b := &bench{
		sampling: o.sampling, cores: runtime.GOMAXPROCS(0), peers: o.peers, torchModes: o.modes,
		log: func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) },
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.scripts)) }()
	if slices.Contains(o.peers, torchPeer) && slices.ContainsFunc(o.suites, func(s string) bool { return s != cardSuite && s != cardsSuite }) {
		if b.torch, err = b.startTorch(ctx, torchOnCPU); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.torch.close()) }()
	}
	m := describeMachine(b.torch)
	// What was measured before something failed, or was interrupted, took minutes too.
	if failed := b.runAll(ctx, o); failed != nil {
		defer func() { err = errors.Join(failed, err) }()
		if len(b.rows) == 0 {
			return nil
		}
		fmt.Fprintf(stderr, "benchmarks: stopped early; these are the rows until then\n")
	}
	fmt.Fprintf(stdout, "%s\n\n", strings.Join(append(b.about, m), ", "))
	writeTable(stdout, b.rows)
	if goals := reached(b.rows); len(goals) > 0 {
		fmt.Fprintln(stdout, "\nBeside the best of the peers:")
		fmt.Fprintln(stdout)
		writeGoals(stdout, goals)
	}
	return save(b.rows)
}

// runAll runs the workloads that the options ask for.
func (b *bench) runAll(ctx context.Context, o *options) error {
	for _, name := range o.suites {
		b.suite = name
		for _, w := range suites[name].workloads {
			if len(o.workloads) > 0 && !slices.Contains(o.workloads, w.name) {
				continue
			}
			if err := w.run(ctx, b); err != nil {
				return fmt.Errorf("%s: %s: %w", name, w.name, err)
			}
		}
	}
	return nil
}

// help is the text of --help.
func help() string {
	var b strings.Builder
	b.WriteString(`Times Tandem beside its peers on this machine, and says how much of the machine's peak it reaches.

Usage:
  go run ./benchmarks --suite NAME [flags]

Suites and their workloads:
`)
	for _, name := range suiteNames() {
		s := suites[name]
		fmt.Fprintf(&b, "  %-14s %s\n", name, s.about)
		for _, w := range s.workloads {
			fmt.Fprintf(&b, "    %-12s %s\n", w.name, w.about)
		}
	}
	b.WriteString("\nFlags:\n" + flagSet(new(options)).FlagUsagesWrapped(96))
	b.WriteString(`
Ratios compare times, ours over the peer's: smaller is better. A ± is half of the distance between the quartiles.
Measure on a machine that does nothing else.
`)
	return b.String()
}
