package launcher

import (
	"context"
	"io"
	"log/slog"
	"time"
)

// Config says what to run, how many times, and what to do when it fails.
type Config struct {
	// Program is the file that every worker runs, with Args: a path, or the name of a command. Dir is where; "" is here.
	Program string
	Args    []string
	Dir     string
	// Env is the environment of workers before the job's own variables are set; nil is this process's.
	Env []string

	// Workers are this node's, one element each. The order is that of local ranks.
	Workers []Worker

	// Node is this launcher's number among the Nodes that run the job, each of which must start as many workers.
	Node, Nodes int
	// Addr and Port are where rank 0 listens. Port 0 lets the system choose one, which needs Nodes to be 1. Addr "" is 127.0.0.1.
	Addr string
	Port int

	// RunID names the job, in reports and the log folder; "" makes one up. All nodes need the same.
	RunID string
	Role  string // "" is "default"

	// MaxRestarts is how often the whole group is started again after a failure. It needs Nodes to be 1.
	MaxRestarts int
	// MonitorInterval is how often it is looked for workers that were stopped, which is logged. An end is known without it.
	MonitorInterval time.Duration // 0: 100 ms
	// Grace is how long workers have between SIGTERM (or the signal that is passed on) and SIGKILL.
	Grace time.Duration // 0: 30 s

	// LogDir takes what workers print: RUNID/attempt_N/LOCALRANK/stdout.log and stderr.log, byte by byte; "" keeps no files. With several
	// nodes node_N comes after RUNID. A RUNID that is there from before gets a number: RUNID_2.
	LogDir string
	// Redirects sends what a worker prints to its file alone, Tee to the console as well, which counts more. Both need LogDir. With
	// neither, LogDir keeps files of all streams, and the console has them, too.
	Redirects, Tee StreamsByRank
	// Filter lists the local ranks whose output goes to the console; nil is all.
	Filter []int

	// Stdout and Stderr take the workers' output, whole lines at a time; nil is this process's.
	Stdout, Stderr io.Writer
	// Logger takes what the launcher itself has to say; nil is slog.Default().
	Logger *slog.Logger

	self bool // workers run this very executable, whatever its file is by now
}

// Worker is what is special about one worker.
type Worker struct {
	// Env is set last, beside the job's variables: the visible card, caps, threads.
	Env []string
	// Card is what reports call the worker's card, such as "physical card 3"; "" for none.
	Card string
	// CPUs are the processors that it may run on; nil is all.
	CPUs []int
}

// Streams says which of a worker's streams something is about.
type Streams int

// The streams, as torchrun numbers them.
const (
	None   Streams = 0
	Stdout Streams = 1
	Stderr Streams = 2
	Both   Streams = 3
)

// StreamsByRank is about the streams of all workers, and of those that are named by local rank.
type StreamsByRank struct {
	All   Streams
	Ranks map[int]Streams
}

// Of is the streams of one local rank.
func (s StreamsByRank) Of(localRank int) Streams {
	if v, ok := s.Ranks[localRank]; ok {
		return v
	}
	return s.All
}

// Run starts the job, waits for its end, and leaves no process behind. It returns nil when every worker has ended with 0, and else
//
//	*ConfigError   cfg makes no sense
//	*AddressError  rank 0 cannot listen
//	*StartError    a worker could not be started
//	*JobError      workers have failed
//	*SignalError   ctx has ended by a signal, see [Interrupt]
//
// or an error that wraps the cause of ctx. Nothing has been started by the first two.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	return run(ctx, cfg.withDefaults())
}
