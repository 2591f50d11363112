package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

const cardSuite = "card"

func init() {
	register(suite{cardSuite, "training on one CUDA card", []workload{
		{"card-mlp", "784-512-512-10, batches of 64 and 4096, tf32", onCard("mlp")},
		{"card-cnn", "two 3x3 convolutions (1-32-64), 9216-128-10, batches of 64 and 4096, tf32", onCard("cnn")},
		{"card-big", "four layers 8192-8192, 8192-1000, batches of 4096, tf32 and bf16", onCard("big")},
		{"card-recompute", "24 layers 2048-2048 with half of their activations, beside all of them, batches of 4096, tf32", cardRecompute},
		{"card-start", "from the start of a process to its first finished step, and the peak of its memory, of all of these", cardStarts},
	}})
}

// cardCase is training that is timed on a card.
type cardCase struct {
	name      string
	batch     int
	precision nn.Precision
}

// modes are PyTorch's for the case: channels last is nothing without images.
func (c cardCase) modes(b *bench) []string {
	return slices.DeleteFunc(slices.Clone(b.torchModes), func(mode string) bool { return c.name != "cnn" && strings.Contains(mode, "last") })
}

var cardCases = []cardCase{
	{"mlp", 64, nn.TF32}, {"mlp", 4096, nn.TF32},
	{"cnn", 64, nn.TF32}, {"cnn", 4096, nn.TF32},
	{"big", 4096, nn.TF32}, {"big", 4096, nn.BF16},
}

// cardNets are the networks by name.
var cardNets = map[string]cardNet{
	"mlp": {mlp.layers, []int{1, 28, 28}, 10, []layer{linear(784, 512), linear(512, 512), linear(512, 10)}},
	"cnn": {cnn.layers, []int{1, 28, 28}, 10, []layer{conv3x3(1, 32, 26), conv3x3(32, 64, 24), pooled(64, 12), linear(9216, 128), linear(128, 10)}},
	"big": {big, []int{8192}, 1000, []layer{linear(8192, 8192), linear(8192, 8192), linear(8192, 8192), linear(8192, 8192), linear(8192, 1000)}},
}

// cardNet is a network and what it takes.
type cardNet struct {
	model   func() nn.Module
	in      []int // of a sample
	classes int
	layers  []layer // for floors
}

// big is four wide layers, bound by matrix products.
func big() nn.Module {
	var layers []nn.Module
	for range 4 {
		layers = append(layers, nn.Linear(8192, 8192), nn.ReLU())
	}
	return nn.Sequential(append(layers, nn.Linear(8192, 1000))...)
}

// samples makes a batch of random numbers and labels. The numbers repeat, since drawing them all would take longer than training does.
func (n cardNet) samples(batch int) (x, y *tensor.Dense) {
	rng := rand.New(rand.NewPCG(1, 2))
	shape := append([]int{batch}, n.in...)
	in, labels := make([]float32, tensor.Shape(shape).TotalSize()), make([]int32, batch)
	repeat(in, rng)
	for i := range labels {
		labels[i] = int32(rng.IntN(n.classes))
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(in)), tensor.New(tensor.WithShape(batch), tensor.WithBacking(labels))
}

// repeat fills x with normal numbers, of which some thousand are drawn.
func repeat(x []float32, rng *rand.Rand) {
	drawn := min(len(x), 100_003)
	for i := range drawn {
		x[i] = float32(rng.NormFloat64())
	}
	for n := drawn; n > 0 && n < len(x); n *= 2 {
		copy(x[n:], x[:n])
	}
}

// trainer prepares training on card 0.
func (c cardCase) trainer() (*dp.DataParallel, error) {
	return dp.New(cardNets[c.name].model(), nn.CrossEntropy(), nn.SGD(learningRate, nn.Momentum(0.9)), dp.DeviceIDs(0), dp.Seed(1), dp.WithPrecision(c.precision))
}

// The modes of a step: the next one begins before it is waited for, or not.
func (c cardCase) pipelined() string { return c.precision.String() + " pipelined" }
func (c cardCase) waiting() string   { return c.precision.String() + " waiting" }

// took makes the rows of a mode.
func (c cardCase) took(mode string) func(t timing) row {
	return func(t timing) row { return stepTime(c.name, c.batch, mode, t) }
}

// ahead makes steps that are not waited for, but for the last.
func ahead(step func(ctx context.Context) (*dp.Loss, error)) contender {
	return func(ctx context.Context, n int) (time.Duration, error) {
		start := time.Now()
		var loss *dp.Loss
		for range n {
			var err error
			if loss, err = step(ctx); err != nil {
				return 0, err
			}
		}
		_, err := loss.Value()
		return time.Since(start), err
	}
}

// needCard is an error where there is no card.
func needCard() error {
	cards, err := cudaops.AvailableDevices()
	if err == nil && len(cards) == 0 {
		err = errors.New("no card is visible: see tandem devices")
	}
	return err
}

// onCard times steps of SGD with momentum on batches that are on the card, beside PyTorch in its modes, each step waited for and not; and
// ours with a batch that is sent for every step.
func onCard(name string) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) (err error) {
		if err := needCard(); err != nil {
			return err
		}
		if b.ceilings == nil {
			if b.ceilings, err = measureCeilings(ctx, b.sampling); err != nil {
				return err
			}
			b.add(b.ceilings.rows()...)
			card, err := cudaops.DeviceName(0)
			if err != nil {
				return err
			}
			b.about = append(b.about, card)
		}
		var peer *torch
		if b.wants(torchPeer) {
			if peer, err = b.startTorch(ctx, torchOnCard); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, peer.close()) }()
			if version := "PyTorch " + peer.version; !slices.Contains(b.about, version) {
				b.about = append(b.about, version)
			}
		}
		for _, c := range cardCases {
			if c.name != name {
				continue
			}
			if err := c.steps(ctx, b, peer); err != nil {
				return fmt.Errorf("batch %d: %w", c.batch, err)
			}
		}
		return nil
	}
}

func (c cardCase) steps(ctx context.Context, b *bench, peer *torch) (err error) {
	b.log("%s: %s, batch %d, %v", b.suite, c.name, c.batch, c.precision)
	x, y := cardNets[c.name].samples(c.batch)
	t, err := c.trainer()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	placed, err := t.Upload(x, y)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, placed.Free()) }()
	onCard := func(ctx context.Context) (*dp.Loss, error) { return t.StepBatch(ctx, placed) }
	entrants := []entrant{
		{row: c.took(c.pipelined()), run: ahead(onCard)},
		{row: c.took(c.waiting()), run: calls(func() error {
			loss, err := onCard(ctx)
			if err == nil {
				_, err = loss.Value()
			}
			return err
		})},
		{row: c.took(c.pipelined() + ", batch sent"), run: ahead(func(ctx context.Context) (*dp.Loss, error) { return t.StepAsync(ctx, x, y) })},
	}
	if peer != nil {
		for _, mode := range c.modes(b) {
			for _, wait := range []bool{false, true} {
				took := c.took(c.pipelined())
				if wait {
					took = c.took(c.waiting())
				}
				entrants = append(entrants, entrant{peer: torchPeer + " " + mode, row: took, run: func(ctx context.Context, n int) (time.Duration, error) {
					a, err := peer.ask(ctx, `{"workload": %q, "size": %d, "mode": %q, "precision": %q, "wait": %t, "calls": %d}`, c.name, c.batch, mode, c.precision, wait, n)
					return time.Duration(a.Seconds * float64(time.Second)), err
				}})
			}
		}
	}
	reached, err := b.compare(ctx, entrants...)
	if err != nil {
		return err
	}
	floor := reached[0].against("floor", 1e3*b.ceilings.floor(cardNets[c.name], c.batch, c.precision))
	floor.limit = true
	b.add(floor)
	return nil
}
