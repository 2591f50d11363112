package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

func init() {
	register(suite{"launch", "from starting tandem run to the first finished step, with programs built already; needs go", []workload{
		{"mlp", "784-512-512-10, batch 64, on 2 workers, beside one process without a launcher", launches},
	}})
}

// firstStepVariable marks a process of this program that is a worker whose first step is waited for. It says where it trains: on the host or on cards.
const firstStepVariable = "TANDEM_BENCH_FIRST_STEP"

const (
	atHost  = "host"
	atCards = "cards"
)

// firstStep is what rank 0 prints after the first step.
const firstStep = "first step"

// launches times the start of a job of two workers.
func launches(ctx context.Context, b *bench) (err error) {
	b.log("%s: mlp", b.suite)
	tandem, self, remove, err := commands(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	took := func(mode string) func(t timing) row {
		return func(t timing) row {
			r := stepTime("mlp", 64, mode, t)
			r.Metric = "first step"
			return r
		}
	}
	_, err = b.compare(ctx,
		entrant{row: took("2 workers"), run: starts(atHost, tandem, "run", "--nproc-per-node", "2", self)},
		entrant{row: took("1 process"), run: starts(atHost, self)},
	)
	return err
}

// commands are what jobs are started by: the command tandem, which is the file of that name beside this program's, or one that is built, and removed
// by remove; and this program, for their workers.
func commands(ctx context.Context) (tandem, self string, remove func() error, err error) {
	if self, err = os.Executable(); err != nil {
		return "", "", nil, err
	}
	tandem = filepath.Join(filepath.Dir(self), "tandem")
	if _, err := os.Stat(tandem); err == nil {
		return tandem, self, func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return "", "", nil, err
	}
	tandem = filepath.Join(dir, "tandem")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", tandem, "github.com/tandem-train/tandem/launcher/tandem").CombinedOutput(); err != nil {
		return "", "", nil, errors.Join(fmt.Errorf("build tandem: %w: %s", err, bytes.TrimSpace(out)), os.RemoveAll(dir))
	}
	return tandem, self, func() error { return os.RemoveAll(dir) }, nil
}

// starts times a command from its start to the line that says that the first step is done, in a worker that trains there. It waits for the command's end.
func starts(where, name string, args ...string) contender {
	return func(ctx context.Context, n int) (total time.Duration, err error) {
		for range n {
			took, err := start(ctx, where, name, args...)
			if err != nil {
				return 0, err
			}
			total += took
		}
		return total, nil
	}
}

func start(ctx context.Context, where, name string, args ...string) (took time.Duration, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), firstStepVariable+"="+where)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if took == 0 && bytes.HasSuffix(lines.Bytes(), []byte(firstStep)) {
			took = time.Since(begin)
		}
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", filepath.Base(name), err, bytes.TrimSpace(said.Bytes()))
	}
	if took == 0 {
		return 0, fmt.Errorf("%s: no step was done: %s", filepath.Base(name), bytes.TrimSpace(said.Bytes()))
	}
	return took, nil
}

// takeFirstStep is the worker: one step on a batch that rank 0 has.
func takeFirstStep(ctx context.Context, stdout io.Writer) (err error) {
	open := func() (*dp.DataParallel, error) { return newTrainer(mlp.layers(), nn.CrossEntropy()) }
	if os.Getenv(firstStepVariable) == atCards {
		open = func() (*dp.DataParallel, error) { return startTeam.trainer() }
	}
	t, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if t.Rank() > 0 {
		_, err = t.Step(ctx, nil, nil)
		return err
	}
	x, y, _ := samples(startTeam.Batch)
	if _, err := t.Step(ctx, x, y); err != nil {
		return err
	}
	fmt.Fprintln(stdout, firstStep)
	return nil
}
