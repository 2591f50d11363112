package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/tandem-train/tandem/internal/job"
)

// spawnVariable names the function that a process of [Spawn] runs.
const spawnVariable = "TANDEM_SPAWN"

// Func is what a worker of [Spawn] runs. Its context ends when the launcher asks workers to stop.
type Func func(ctx context.Context, rank int) error

// registry is what Register and Init have been told.
var registry struct {
	sync.Mutex
	functions map[string]Func
	ready     bool // Init has been called
}

// Register gives a function a name that [Spawn] can call it by. Do it before [Init]: in a package's variables, an init function, or
// main's first lines. A name that is empty or taken panics.
func Register(name string, f Func) {
	registry.Lock()
	defer registry.Unlock()
	if _, taken := registry.functions[name]; taken || name == "" || f == nil {
		panic(fmt.Sprintf("launcher: Register(%q): it needs a function, and a name that no other has", name))
	}
	if registry.functions == nil {
		registry.functions = map[string]Func{}
	}
	registry.functions[name] = f
}

// Init belongs at the top of main. In a process that [Spawn] has started it runs the function and ends the process: with 0, or 1 after
// an error, or 2 after a panic. In any other it returns at once.
func Init() {
	registry.Lock()
	registry.ready = true
	name := os.Getenv(spawnVariable)
	f := registry.functions[name]
	registry.Unlock()
	if name == "" {
		return
	}
	os.Unsetenv(spawnVariable) // what this process starts is something else
	os.Exit(runSpawned(name, f))
}

// runSpawned is a spawned process's main. It gives the exit status.
func runSpawned(name string, f Func) int {
	place, err := job.Lookup(os.LookupEnv)
	switch {
	case err != nil:
	case place == nil:
		err = fmt.Errorf("launcher: %s is set, but no rank: only Spawn sets it", spawnVariable)
	case f == nil: // Spawn has looked it up, so that Init has come before Register here
		err = fmt.Errorf("launcher: no function %q: register it before Init", name)
	}
	if err != nil {
		return tell(place, job.Failure{Error: err.Error()}, 1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	job.SetTold(ctx)
	if failure, status := call(ctx, place, f); status != 0 {
		return tell(place, failure, status)
	}
	return 0
}

// call calls the function and gives how it failed, with the exit status.
func call(ctx context.Context, place *job.Place, f Func) (failure job.Failure, status int) {
	defer func() {
		if r := recover(); r != nil {
			failure, status = job.Failure{Error: fmt.Sprintf("panic: %v", r), Stack: string(debug.Stack())}, 2
		}
	}()
	err := f(ctx, place.Rank)
	if err == nil {
		return failure, 0
	}
	failure.Error = err.Error()
	// Training may have left word of this very error already, and knows whether another rank is behind it.
	if before, err := job.ReadFailure(place.ErrorFile); err == nil && before != nil && strings.Contains(failure.Error, before.Error) {
		failure.Consequence, failure.By, failure.Stack = before.Consequence, before.By, before.Stack
	}
	return failure, 1
}

// tell prints a failure and leaves it to the launcher.
func tell(place *job.Place, f job.Failure, status int) int {
	fmt.Fprintln(os.Stderr, f.Error)
	if f.Stack != "" {
		fmt.Fprintln(os.Stderr, f.Stack)
	}
	if err := place.Report(f); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return status
}

// Spawn runs a registered function in n processes, which are this program started again as a job on this node: rank and world size
// are in the environment, as for `tandem run`. It returns when all have ended, as [Run] does; a function's error or panic is in the
// [*JobError], with its text and, of a panic, the stack. Options change the job before it starts:
//
//	launcher.Spawn(ctx, 4, "train", func(c *launcher.Config) { c.MaxRestarts = 1 })
func Spawn(ctx context.Context, n int, name string, options ...func(*Config)) error {
	registry.Lock()
	ready, f := registry.ready, registry.functions[name]
	registry.Unlock()
	switch {
	case !ready:
		return errors.New("launcher: Spawn needs a call of launcher.Init at the top of main, where spawned processes find their function")
	case f == nil:
		return fmt.Errorf("launcher: Spawn: no function is registered as %q: call Register before Init", name)
	case n < 1:
		return fmt.Errorf("launcher: Spawn of %q: %d processes: it must be at least 1", name, n)
	}
	cfg := Config{Program: os.Args[0], Args: os.Args[1:], Workers: make([]Worker, n), self: true}
	for _, option := range options {
		option(&cfg)
	}
	if cfg.Env == nil {
		cfg.Env = os.Environ()
	}
	cfg.Env = append(slices.Clone(cfg.Env), spawnVariable+"="+name)
	return Run(ctx, cfg)
}
