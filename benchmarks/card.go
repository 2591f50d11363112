package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

const cardSuite = "card"

func init() {
	register(suite{cardSuite, "training on one CUDA card", []workload{
		{"card-mlp", "784-512-512-10, batches of 64 and 4096, tf32", onCard("mlp", mlp.layers, images, 64, 4096)},
		{"card-cnn", "two 3x3 convolutions (1-32-64), 9216-128-10, batches of 64 and 4096, tf32", onCard("cnn", cnn.layers, images, 64, 4096)},
		{"card-big", "four layers 8192-8192, 8192-1000, batches of 4096, tf32", onCard("big", big, vectors, 4096)},
	}})
}

// big is four wide layers, bound by matrix products.
func big() nn.Module {
	var layers []nn.Module
	for range 4 {
		layers = append(layers, nn.Linear(8192, 8192), nn.ReLU())
	}
	return nn.Sequential(append(layers, nn.Linear(8192, 1000))...)
}

// images are MNIST's shape with random numbers.
func images(batch int) (x, y *tensor.Dense) {
	x, y, _ = samples(batch)
	return x, y
}

// vectors are what big takes.
func vectors(batch int) (x, y *tensor.Dense) {
	rng := rand.New(rand.NewPCG(1, 2))
	in, labels := make([]float32, 8192*batch), make([]int32, batch)
	for i := range in {
		in[i] = float32(rng.NormFloat64())
	}
	for i := range labels {
		labels[i] = int32(rng.IntN(1000))
	}
	return tensor.New(tensor.WithShape(batch, 8192), tensor.WithBacking(in)), tensor.New(tensor.WithShape(batch), tensor.WithBacking(labels))
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

// onCard times steps of SGD with momentum on batches of some sizes that are on the card, beside PyTorch in its modes, each step waited for
// and not; and ours with a batch that is sent for every step.
func onCard(name string, model func() nn.Module, data func(batch int) (x, y *tensor.Dense), batches ...int) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) (err error) {
		if n := cudaops.DeviceCount(); n == 0 {
			return errors.New("no card is visible: see tandem devices")
		}
		var peer *torch
		if b.wants(torchPeer) {
			if peer, err = startTorch(ctx, torchOnCard); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, peer.close()) }()
		}
		for _, batch := range batches {
			if err := cardSteps(ctx, b, peer, name, model, data, batch); err != nil {
				return fmt.Errorf("batch %d: %w", batch, err)
			}
		}
		return nil
	}
}

func cardSteps(ctx context.Context, b *bench, peer *torch, name string, model func() nn.Module, data func(batch int) (x, y *tensor.Dense), batch int) (err error) {
	b.log("%s: %s, batch %d", b.suite, name, batch)
	const precision = nn.TF32
	x, y := data(batch)
	t, err := dp.New(model(), nn.CrossEntropy(), nn.SGD(learningRate, nn.Momentum(0.9)), dp.DeviceIDs(0), dp.Seed(1), dp.WithPrecision(precision))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	took := func(mode string) func(t timing) row {
		return func(t timing) row { return stepTime(name, batch, mode, t) }
	}
	placed, err := t.Upload(x, y)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, placed.Free()) }()
	onCard := func(ctx context.Context) (*dp.Loss, error) { return t.StepBatch(ctx, placed) }
	entrants := []entrant{
		{row: took(precision.String()), run: ahead(onCard)},
		{row: took(precision.String() + ", waiting"), run: calls(func() error {
			loss, err := onCard(ctx)
			if err == nil {
				_, err = loss.Value()
			}
			return err
		})},
		{row: took(precision.String() + ", batch sent"), run: ahead(func(ctx context.Context) (*dp.Loss, error) { return t.StepAsync(ctx, x, y) })},
	}
	peak := make([]int64, len(b.torchModes))
	if peer != nil {
		for i, mode := range b.torchModes {
			for _, wait := range []bool{false, true} {
				who := torchPeer + " " + mode
				if wait {
					who += ", waiting"
				}
				entrants = append(entrants, entrant{peer: who, row: took(precision.String()), run: func(ctx context.Context, n int) (time.Duration, error) {
					a, err := peer.ask(ctx, `{"workload": %q, "size": %d, "mode": %q, "precision": %q, "wait": %t, "calls": %d}`, name, batch, mode, precision, wait, n)
					peak[i] = max(peak[i], a.Memory)
					return time.Duration(a.Seconds * float64(time.Second)), err
				}})
			}
		}
	}
	if _, err := b.compare(ctx, entrants...); err != nil {
		return err
	}
	memory := func(mode string, bytes int64) row {
		r := row{Workload: name, Batch: &batch, Mode: mode, Metric: "peak memory", Value: math.Round(float64(bytes) / (1 << 20)), Unit: "MiB"}
		return r
	}
	used, err := cudaops.MaxMemoryAllocated(0)
	if err != nil {
		return err
	}
	b.add(memory(precision.String(), used))
	for i, mode := range b.torchModes {
		if peak[i] > 0 {
			b.add(memory(torchPeer+" "+mode, peak[i]))
		}
	}
	return cudaops.ResetPeakMemoryStats(0)
}
