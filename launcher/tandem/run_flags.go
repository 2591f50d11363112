package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-train/tandem/cudaops"
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

// procs is the value of --nproc-per-node.
type procs struct {
	kind  string // "" (by default), "auto", "gpu", "cpu", or "number"
	count int
}

func (v *procs) Type() string { return "number" }

func (v *procs) String() string {
	if v.kind == "number" {
		return strconv.Itoa(v.count)
	}
	return v.kind
}

func (v *procs) Set(s string) error {
	switch s {
	case "auto", "gpu", "cpu":
		*v = procs{kind: s}
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxWorkers {
		return fmt.Errorf("want a number from 1 to %d, auto, gpu or cpu", maxWorkers)
	}
	*v = procs{kind: "number", count: n}
	return nil
}

// maxWorkers is more than a node has use for.
const maxWorkers = 4096

// nodeCount is the value of --nnodes.
type nodeCount int

func (v *nodeCount) Type() string { return "number" }

func (v *nodeCount) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.Itoa(int(*v))
}

func (v *nodeCount) Set(s string) error {
	low, high, isRange := strings.Cut(s, ":")
	if isRange && low != high {
		return errors.New("want a single number: a job here has as many nodes at its end as at its start")
	}
	n, err := strconv.ParseUint(low, 10, 16)
	if err != nil || n < 1 {
		return errors.New("want a number from 1 to 65535")
	}
	*v = nodeCount(n)
	return nil
}

// cardList is the value of --devices.
type cardList []int

func (v *cardList) Type() string   { return "cards" }
func (v *cardList) String() string { return join(*v) }

func (v *cardList) Set(s string) error {
	ids, err := parseNumbers(s)
	if err != nil {
		return fmt.Errorf("%w: want physical card numbers with commas between them, such as 3,2,0,1", err)
	}
	*v = ids
	return nil
}

// rankList is the value of --local-ranks-filter.
type rankList []int

func (v *rankList) Type() string   { return "ranks" }
func (v *rankList) String() string { return join(*v) }

func (v *rankList) Set(s string) error {
	ids, err := parseNumbers(s)
	if err != nil {
		return fmt.Errorf("%w: want local ranks with commas between them, such as 0,1", err)
	}
	*v = ids
	return nil
}

// parseNumbers reads numbers from 0, each once, with commas between them.
func parseNumbers(s string) ([]int, error) {
	var numbers []int
	for field := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(field), 10, 16)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%q is no such number", field)
		case slices.Contains(numbers, int(n)):
			return nil, fmt.Errorf("%d is named twice", n)
		}
		numbers = append(numbers, int(n))
	}
	return numbers, nil
}

func join(numbers []int) string {
	s := make([]string, len(numbers))
	for i, n := range numbers {
		s[i] = strconv.Itoa(n)
	}
	return strings.Join(s, ",")
}

// size is the value of --memory-limit, in bytes.
type size int64

func (v *size) Type() string { return "size" }

func (v *size) String() string {
	if *v == 0 {
		return ""
	}
	return exactSize(int64(*v))
}

func (v *size) Set(s string) error {
	n, err := cudaops.ParseSize(s)
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New("want more than nothing, such as 8GiB")
	}
	*v = size(n)
	return nil
}

// exactSize writes bytes in the largest unit that has a whole number of them.
func exactSize(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// choiceValue is the value of a flag with a few words, the first of which is the default.
type choiceValue struct {
	kind  string // what help calls it
	value *string
	words []string
}

func choice(kind string, value *string, first string, others ...string) *choiceValue {
	*value = first
	return &choiceValue{kind, value, append([]string{first}, others...)}
}

func (v *choiceValue) Type() string   { return v.kind }
func (v *choiceValue) String() string { return *v.value }

func (v *choiceValue) Set(s string) error {
	if !slices.Contains(v.words, s) {
		return fmt.Errorf("want one of %s", strings.Join(v.words, ", "))
	}
	*v.value = s
	return nil
}

// hostPort is the value of --rdzv-endpoint.
type hostPort struct {
	host string
	port int // 0: not said
}

func (v *hostPort) Type() string { return "HOST[:PORT]" }

func (v *hostPort) String() string {
	if v.host == "" || v.port == 0 {
		return v.host
	}
	return net.JoinHostPort(v.host, strconv.Itoa(v.port))
}

func (v *hostPort) Set(s string) error {
	host, port := s, "0"
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") && (strings.Count(s, ":") == 1 || s[i-1] == ']') {
		host, port = s[:i], s[i+1:]
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || strings.ContainsAny(host, "[]/ ") {
		return errors.New("want HOST or HOST:PORT, such as node0:29500")
	}
	*v = hostPort{host, int(n)}
	return nil
}

// streams is the value of --redirects and --tee.
type streams launcher.StreamsByRank

func (v *streams) Type() string { return "which" }

func (v *streams) String() string {
	if len(v.Ranks) == 0 {
		if v.All == launcher.None {
			return ""
		}
		return strconv.Itoa(int(v.All))
	}
	var entries []string
	for _, rank := range slices.Sorted(maps.Keys(v.Ranks)) {
		entries = append(entries, fmt.Sprintf("%d:%d", rank, v.Ranks[rank]))
	}
	return strings.Join(entries, ",")
}

func (v *streams) Set(s string) error {
	bad := errors.New("want 0 (none), 1 (stdout), 2 (stderr), 3 (both), or those by local rank, as in 0:1,1:3")
	which := func(s string) (launcher.Streams, bool) {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		return launcher.Streams(n), err == nil && n >= 0 && n <= int(launcher.Both)
	}
	if all, ok := which(s); ok {
		*v = streams{All: all}
		return nil
	}
	ranks := map[int]launcher.Streams{}
	for entry := range strings.SplitSeq(s, ",") {
		number, text, _ := strings.Cut(entry, ":")
		rank, err := strconv.ParseUint(strings.TrimSpace(number), 10, 16)
		if err != nil {
			return bad
		}
		if _, twice := ranks[int(rank)]; twice {
			return fmt.Errorf("local rank %d is there twice", rank)
		}
		n, ok := which(text)
		if !ok {
			return bad
		}
		ranks[int(rank)] = n
	}
	*v = streams{Ranks: ranks}
	return nil
}
