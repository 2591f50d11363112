package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-train/tandem/launcher"
)

// runOptions are what the command line of tandem run asks for.
type runOptions struct {
	flags *flagSet

	procs          procs
	devices        []int // physical numbers; nil: the visible cards
	procsPerDevice int   // 0: not said
	memoryFraction float64
	memoryLimit    int64 // bytes; 0: none
	numa           string

	nodes      int // 0: not said
	nodeRank   int
	standalone bool
	endpoint   hostPort
	id         string
	backend    string
	masterAddr string
	masterPort int

	maxRestarts     int
	monitorInterval time.Duration
	grace           time.Duration

	logDir         string
	redirects, tee launcher.StreamsByRank
	filter         []int
	jsonErrors     string
	role           string

	program string
	args    []string
}

// flagSet declares the flags of run, with o to take their values.
func (o *runOptions) flagSet() *flagSet {
	fs := newFlagSet("run")
	fs.group("Workers and their cards", func(f *pflag.FlagSet) {
		f.Var(&o.procs, "nproc-per-node", "`number` of workers on this node, or auto (one a visible card, or one a CPU if there is no card), gpu (one a visible card) or cpu (one a CPU, without cards); default: one a visible card, or one worker if there is no card")
		f.Var((*cardList)(&o.devices), "devices", "run on these `cards`, by physical number, such as 3,2,0,1: rank 0 gets the first")
		f.IntVar(&o.procsPerDevice, "procs-per-device", 0, "`number` of workers that share each card; default: 1")
		f.Float64Var(&o.memoryFraction, "memory-fraction", 0, "cap each worker to this `fraction` of its card's memory, such as 0.25")
		f.Var((*size)(&o.memoryLimit), "memory-limit", "cap each worker to this `size` of its card's memory, such as 8GiB")
		f.Var(choice("how", &o.numa, "none", numaModes...), "numa-binding", "bind each worker to CPUs next to its card: none, node (those of the card's NUMA node), socket, exclusive (cores of the node that no other worker gets) or core-complex (cores that share a cache)")
	})
	fs.group("Several nodes", func(f *pflag.FlagSet) {
		f.Var((*nodeCount)(&o.nodes), "nnodes", "`number` of nodes; start tandem run on each of them (default: what Slurm or Open MPI says, or 1)")
		f.IntVar(&o.nodeRank, "node-rank", 0, "this node's `number`, from 0 (default: what Slurm, Open MPI or a Kubernetes indexed job says)")
		f.StringVar(&o.masterAddr, "master-addr", "", "`host` of node 0 (default: what Slurm says, or 127.0.0.1 for one node)")
		f.IntVar(&o.masterPort, "master-port", 0, "`port` of node 0 where rank 0 listens (default: a free one for one node, else Slurm's or 29500)")
		f.BoolVar(&o.standalone, "standalone", false, "one node and a free port, whatever a cluster says")
		f.Var(&o.endpoint, "rdzv-endpoint", "the same as --master-addr and --master-port, in one")
		f.StringVar(&o.id, "rdzv-id", "", "`name` of the job, the same on all nodes (default: made up, or the cluster's)")
		f.Var(choice("which", &o.backend, "static", "c10d"), "rdzv-backend", "static or c10d, which are the same here: rank 0 listens, on node 0")
	})
	fs.group("Failures", func(f *pflag.FlagSet) {
		f.IntVar(&o.maxRestarts, "max-restarts", 0, "start all workers again after a failure, at most this `number` of times")
		o.grace = 30 * time.Second
		f.Var(seconds{&o.grace}, "grace", "time that workers have to end by themselves, before they are killed, in `seconds`")
		o.monitorInterval = 100 * time.Millisecond
		f.Var(seconds{&o.monitorInterval}, "monitor-interval", "how often workers are looked at, in `seconds`; that one has ended is noticed at once")
		f.StringVar(&o.jsonErrors, "json-errors", "", "write the report of a failed job to this JSON `file`; one of an earlier job is removed")
	})
	fs.group("Output", func(f *pflag.FlagSet) {
		f.StringVar(&o.logDir, "log-dir", "", "keep what workers print in files below this `folder`, a folder a job")
		f.VarP((*streams)(&o.redirects), "redirects", "r", "print only to files: 1 stdout, 2 stderr, 3 both, or by local rank, as in 0:1,1:3")
		f.VarP((*streams)(&o.tee), "tee", "t", "print to files and to the console, in the same notation")
		f.Var((*rankList)(&o.filter), "local-ranks-filter", "print only what these local `ranks` print, such as 0,1; files have all")
		f.StringVar(&o.role, "role", "default", "`name` of what the workers are, in ROLE_NAME")
	})
	o.flags = fs
	return fs
}

// parseRun reads the command line of run. Its errors are *usageError, or pflag.ErrHelp.
func parseRun(args []string, getenv func(string) (string, bool)) (*runOptions, error) {
	o := new(runOptions)
	fs := o.flagSet()
	if err := fs.parse(args, getenv); err != nil {
		return nil, err
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	if fs.NArg() == 0 {
		return nil, usagef("there is no program to run: tandem run [flags] PROGRAM [args...], as in tandem run ./examples/mnist")
	}
	o.program, o.args = fs.Arg(0), fs.Args()[1:]
	return o, nil
}

// given is whether a flag was given, or its variable.
func (o *runOptions) given(flag string) bool { return o.flags.Changed(flag) }

// validate checks what a flag alone can't, without knowing the machine. What remains is for [launcher.Config.Validate].
func (o *runOptions) validate() error {
	for _, n := range []struct {
		flag     string
		value    int
		min, max int
	}{
		{"procs-per-device", o.procsPerDevice, 1, 1024},
		{"node-rank", o.nodeRank, 0, 1 << 16},
		{"master-port", o.masterPort, 0, 65535},
		{"max-restarts", o.maxRestarts, 0, 1 << 30},
	} {
		if o.given(n.flag) && (n.value < n.min || n.value > n.max) {
			return usagef("%s: want a number from %d to %d", o.flags.as(n.flag), n.min, n.max)
		}
	}
	if f := o.memoryFraction; o.given("memory-fraction") && !(f > 0 && f <= 1) {
		return usagef("%s: want a number above 0 and at most 1, such as 0.25", o.flags.as("memory-fraction"))
	}
	for _, flag := range []string{"redirects", "tee"} {
		if o.given(flag) && o.logDir == "" {
			return usagef("%s: it needs a folder for the files, too: --log-dir FOLDER", o.flags.as(flag))
		}
	}
	if o.standalone {
		for _, flag := range []string{"node-rank", "master-addr", "master-port", "rdzv-endpoint"} {
			if o.given(flag) {
				return usagef("%s: --standalone is one node with a free port of its own: leave one of them out", o.flags.as(flag))
			}
		}
		if o.nodes > 1 {
			return usagef("%s: --standalone is one node: leave one of them out", o.flags.as("nnodes"))
		}
	}
	if o.endpoint.host != "" {
		for _, flag := range []string{"master-addr", "master-port"} {
			if o.given(flag) {
				return usagef("%s: --rdzv-endpoint says the same: leave one of them out", o.flags.as(flag))
			}
		}
	}
	return nil
}
