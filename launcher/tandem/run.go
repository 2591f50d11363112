package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/tandem-train/tandem/internal/atomicfile"
	"github.com/tandem-train/tandem/launcher"
)

func runCommand() command {
	return command{
		name:  "run",
		about: "run a program as the workers of a job, one a card",
		usage: "[flags] PROGRAM [args...]",
		intro: `Runs PROGRAM as the workers of a job, one a card. Each worker sees its own card only, as its card 0, and finds its rank and
the others in torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...). Standard input is empty. When one fails, the
others are ended, a report says which failed first and why, and nothing of the job is left.

PROGRAM is a command in PATH, the path of a program, or a Go package (./examples/mnist, github.com/x/y/cmd/z), which is built
once. Flags end where PROGRAM stands: what follows are its own.`,
		examples: `  tandem run ./examples/mnist --epochs 1
      one worker a visible card; on the host, if there is none
  TANDEM_SIM_CARDS=4 tandem run --devices 3,2,0,1 ./examples/mnist
      four simulated cards; rank 0 gets physical card 3
  tandem run --procs-per-device 4 --memory-fraction 0.25 ./train
      four workers share each card, each with a quarter of its memory
  tandem run --log-dir logs --tee 3 --max-restarts 2 ./train
      keep what workers print; after a failure start all again, twice at most
  srun --ntasks-per-node=1 tandem run ./train
      on all nodes of a Slurm job: addresses and numbers come from Slurm
`,
		after: `
Environment:
  Each flag has a variable, which counts where the flag is not given: TANDEM_ and its name in capitals, such as
  TANDEM_NPROC_PER_NODE=4 for --nproc-per-node 4. Flags may be written with _ for -, as in --nproc_per_node.

  CUDA_VISIBLE_DEVICES   which cards there are, and their order: without --devices, rank 0 gets the first
  CUDA_DEVICE_LIMIT      caps, by logical card; each worker gets that of its own card
  TANDEM_SIM_CARDS       simulate cards on the host: 4, or 4x2GiB
  OMP_NUM_THREADS, GOMAXPROCS
                         set for workers to their share of the CPUs, unless set already

INT, TERM, HUP and QUIT are passed on to the workers; a second signal kills them at once.

Exit status: that of the worker that failed first (128 and the signal's number, if a signal ended it), 1 if the program does not
build, 2 wrong usage, 126 not executable, 127 no such program. A signal ends the command by that signal.
`,
		takesProgram: true,

		flags: func() *flagSet { return new(runOptions).flagSet() },
		run:   runJob,
	}
}

// runJob is tandem run.
func runJob(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseRun(args, os.LookupEnv)
	if err != nil {
		return err
	}
	s, err := o.look()
	if err != nil {
		return err
	}
	cfg, err := o.config(s)
	if err != nil {
		return err
	}
	if err := o.clearReport(); err != nil {
		return err
	}
	p, err := findProgram(o.program)
	if err != nil {
		return err
	}
	ctx, stop := launcher.Interrupt(ctx)
	defer stop()
	cfg.Stdout, cfg.Stderr, cfg.Logger = stdout, stderr, newLogger(stderr)
	return o.launch(ctx, cfg, p)
}

// launch builds the program, if that is needed, and runs the job.
func (o *runOptions) launch(ctx context.Context, cfg launcher.Config, p program) error {
	cfg.Program = p.path
	if p.goBuild {
		folder, err := os.MkdirTemp("", "tandem-run-*")
		if err != nil {
			return fmt.Errorf("folder for the built program: %w", err)
		}
		defer func() {
			if err := os.RemoveAll(folder); err != nil {
				cfg.Logger.Warn("the built program is left behind", "error", err)
			}
		}()
		if cfg.Program, err = p.build(ctx, folder, cfg.Stderr); err != nil {
			return err
		}
	}
	err := launcher.Run(ctx, cfg)
	var (
		failed  *launcher.JobError
		unready *launcher.StartError
	)
	switch {
	case errors.As(err, &failed):
		if err := o.writeReport(failed); err != nil {
			cfg.Logger.Error("the report was not written", "error", err)
		}
	case errors.As(err, &unready):
		return &programError{startStatus(unready), err}
	}
	return err
}

// startStatus is what a shell would end with.
func startStatus(err error) int {
	if errors.Is(err, fs.ErrNotExist) {
		return statusNotFound
	}
	return statusNotExecutable
}

// clearReport removes the report of an earlier job, and finds out whether one can be written.
func (o *runOptions) clearReport() error {
	if o.jsonErrors == "" {
		return nil
	}
	switch info, err := os.Lstat(o.jsonErrors); {
	case err == nil && !info.Mode().IsRegular():
		return usagef("%s: it is there and no regular file (%s): name another", o.flags.as("json-errors"), info.Mode())
	case err == nil:
		if err := os.Remove(o.jsonErrors); err != nil {
			return fmt.Errorf("%s: %w", o.flags.as("json-errors"), err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w", o.flags.as("json-errors"), err)
	}
	if err := atomicfile.Check(o.jsonErrors); err != nil {
		return usagef("%s: its folder can't take a file: %w", o.flags.as("json-errors"), err)
	}
	return nil
}

// writeReport writes the report of a failed job where it was asked for.
func (o *runOptions) writeReport(failed *launcher.JobError) error {
	if o.jsonErrors == "" {
		return nil
	}
	text, err := json.MarshalIndent(failed, "", "  ")
	if err == nil {
		err = atomicfile.Write(o.jsonErrors, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.flags.as("json-errors"), err)
	}
	return nil
}
