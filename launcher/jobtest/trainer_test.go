package jobtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/nn"
)

// The worker of these tests is this test's own binary: it trains, and something happens to it when the flags say so.

// fault is what happens to one rank at one step.
type fault struct {
	kind       string
	rank, step int
}

// Set reads KIND@RANK:STEP.
func (f *fault) Set(s string) error {
	kind, at, _ := strings.Cut(s, "@")
	rank, step, _ := strings.Cut(at, ":")
	f.kind = kind
	var errRank, errStep error
	f.rank, errRank = strconv.Atoi(rank)
	f.step, errStep = strconv.Atoi(step)
	return errors.Join(errRank, errStep)
}

func (f *fault) String() string { return "" }

// trainer is the worker's options.
type trainer struct {
	faults     faults
	steps      int
	feed       string
	strategy   string
	seed       uint64
	hidden     int
	checkpoint string // to go on from, and to save to after each third step and at the end; then each fault has its attempt. "": none
}

type faults []fault

func (f *faults) Set(s string) error {
	var one fault
	if err := one.Set(s); err != nil {
		return err
	}
	*f = append(*f, one)
	return nil
}

func (f *faults) String() string { return "" }

func trainerMain() {
	var o trainer
	flags := flag.NewFlagSet("trainer", flag.ExitOnError)
	flags.Var(&o.faults, "fault", "KIND@RANK:STEP")
	flags.IntVar(&o.steps, "steps", 20, "")
	flags.StringVar(&o.feed, "feed", "scatter", "")
	flags.StringVar(&o.strategy, "strategy", "gather", "")
	flags.Uint64Var(&o.seed, "seed", 1, "")
	flags.IntVar(&o.hidden, "hidden", 20, "")
	flags.StringVar(&o.checkpoint, "checkpoint", "", "")
	_ = flags.Parse(os.Args[1:]) // ends the process on an error
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.train(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "trainer: %v\n", err)
		if errors.Is(err, context.Canceled) {
			os.Exit(130)
		}
		os.Exit(1)
	}
}

// envRank is this process's rank, also before it has joined the others.
func envRank() int {
	r, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		panic("no RANK: " + err.Error())
	}
	return r
}

func (o *trainer) train(ctx context.Context) (err error) {
	o.happens(envRank(), -1)
	strategy, err := dp.ParseStrategy(o.strategy)
	if err != nil {
		return err
	}
	seed, hidden := o.seed, o.hidden
	for _, f := range o.faults {
		if f.rank != envRank() {
			continue
		}
		switch f.kind {
		case "seed":
			seed++
		case "model":
			hidden++
		}
	}
	model := nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), nn.Linear(hidden, 5))
	t, err := dp.New(model, nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.9)), dp.WithStrategy(strategy), dp.Seed(seed))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	fmt.Printf("rank %d pid %d ready\n", t.Rank(), os.Getpid())
	const batch = 10
	loss := 0.0
	if o.checkpoint != "" {
		if err := t.LoadCheckpoint(o.checkpoint); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for step := t.Steps(); step < o.steps; step++ {
		if o.happens(t.Rank(), step) {
			return nil
		}
		x, y := batchOf(uint64(step), batch)
		switch {
		case o.feed == "shard":
			mine := data.Chunk(batch, t.WorldSize(), t.Rank())
			x, y = part(x, mine), part(y, mine)
			loss, err = t.StepShard(ctx, x, y)
		case t.Rank() == 0:
			loss, err = t.Step(ctx, x, y)
		default:
			loss, err = t.Step(ctx, nil, nil)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		if step == 0 {
			fmt.Printf("rank %d stepped\n", t.Rank())
		}
		if o.checkpoint != "" && (step%3 == 2 || step == o.steps-1) {
			if err := t.SaveCheckpoint(o.checkpoint); err != nil {
				return err
			}
		}
	}
	fmt.Printf("rank %d done, loss %.6f\n", t.Rank(), loss)
	return nil
}

// batchOf makes the samples of a step, the same in every process.
func batchOf(step uint64, n int) (tensor.Tensor, tensor.Tensor) {
	rng := rand.New(rand.NewPCG(step, 3))
	x, y := make([]float32, 12*n), make([]int32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	for i := range y {
		y[i] = int32(rng.IntN(5))
	}
	return tensor.New(tensor.WithShape(n, 12), tensor.WithBacking(x)), tensor.New(tensor.WithShape(n), tensor.WithBacking(y))
}

// part copies some samples; nil for none.
func part(t tensor.Tensor, r data.Range) tensor.Tensor {
	if r.Len() == 0 {
		return nil
	}
	shape := slices.Clone([]int(t.Shape()))
	size := t.Shape().TotalSize() / shape[0]
	shape[0] = r.Len()
	switch x := t.Data().(type) {
	case []float32:
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(slices.Clone(x[r.Lo*size:r.Hi*size])))
	case []int32:
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(slices.Clone(x[r.Lo*size:r.Hi*size])))
	}
	panic("no such type of tensor")
}

// happens lets happen what is to happen to this rank before a step, -1 being before it joins the others. It reports whether the rank
// leaves its loop.
func (o *trainer) happens(rank, step int) (leaves bool) {
	for i, f := range o.faults {
		if f.rank != rank || f.step != step || o.checkpoint != "" && os.Getenv("TORCHELASTIC_RESTART_COUNT") != strconv.Itoa(i) {
			continue
		}
		switch f.kind {
		case "exit":
			fmt.Fprintln(os.Stderr, "the disk is full")
			os.Exit(3)
		case "panic":
			panic(fmt.Sprintf("index 7 of rank %d is out of range", rank))
		case "kill":
			die(syscall.SIGKILL)
		case "stop":
			// While the step goes on: the signal comes whenever the other thread gets to send it.
			go die(syscall.SIGSTOP)
		case "hang":
			select {}
		case "return":
			return true
		case "deaf":
			signal.Ignore(syscall.SIGTERM)
		case "oom":
			if _, err := cudaops.Alloc(0, 1<<40); err != nil {
				fmt.Fprintf(os.Stderr, "trainer: %v\n", err)
				os.Exit(1)
			}
		case "survived":
			if _, err := cudaops.Alloc(0, 1<<40); err == nil {
				panic("a terabyte was there")
			}
		case "child", "daemon":
			child := exec.Command("sleep", "1000")
			child.Stdout, child.Stderr = os.Stdout, os.Stderr // it holds the pipes
			child.SysProcAttr = &syscall.SysProcAttr{Setsid: f.kind == "daemon"}
			if err := child.Start(); err != nil {
				panic(err)
			}
		case "flood":
			line := []byte(strings.Repeat("x", 1<<20))
			for range 100 {
				if _, err := os.Stdout.Write(line); err != nil {
					panic(err)
				}
			}
		}
	}
	return false
}

func die(sig syscall.Signal) {
	if err := syscall.Kill(os.Getpid(), sig); err != nil {
		panic(err)
	}
}
