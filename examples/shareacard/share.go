package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

const (
	inputs, hidden, classes = 784, 512, 10
	tooMuch                 = 200 // times the batch
)

// share is what each process does: it takes its part of card 0 and trains a model of its own there.
func share(ctx context.Context, o options, rank int) (err error) {
	if err := cudaops.SetPerProcessMemoryFraction(o.fraction, 0); err != nil {
		return err
	}
	model := nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
	t, err := dp.New(model, nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.9)),
		dp.DeviceIDs(0), dp.Seed(uint64(rank)),
		dp.Alone()) // the processes share a card, not a model
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	batch := o.batch
	if rank == o.processes-1 {
		batch *= tooMuch
	}
	rng := rand.New(rand.NewPCG(uint64(rank), 1))
	for step := range o.steps {
		loss, n, err := fitting(ctx, t, rng, batch)
		if err != nil {
			return err
		}
		batch = n
		if step%max(1, o.steps/4) == 0 || step == o.steps-1 {
			if err := tell(step+1, o.steps, batch, loss); err != nil {
				return err
			}
		}
	}
	return nil
}

// fitting takes a step on a batch of n samples, or of half as many and so on where that does not fit. It gives the loss and how many it was.
func fitting(ctx context.Context, t *dp.DataParallel, rng *rand.Rand, n int) (loss float64, samples int, err error) {
	for {
		x, y := draw(rng, n)
		loss, err = t.Step(ctx, x, y)
		var full *cudaops.OutOfMemoryError
		if !errors.As(err, &full) || n == 1 {
			return loss, n, err
		}
		var fit *dp.FitError // it was known before anything ran, and with it what would fit
		if errors.As(err, &fit) {
			fmt.Printf("a batch of %d does not fit, one of %d would\n", n, fit.Plan.Largest)
		}
		fmt.Println(full)
		n /= 2
	}
}

// draw makes samples whose class is the largest of their first numbers.
func draw(rng *rand.Rand, n int) (x, y tensor.Tensor) {
	images, labels := make([]float32, n*inputs), make([]int32, n)
	for i := range images {
		images[i] = float32(rng.NormFloat64())
	}
	for i := range labels {
		for c, v := range images[i*inputs:][:classes] {
			if v > images[i*inputs+int(labels[i])] {
				labels[i] = int32(c)
			}
		}
	}
	return tensor.New(tensor.WithShape(n, inputs), tensor.WithBacking(images)), tensor.New(tensor.WithShape(n), tensor.WithBacking(labels))
}

// tell prints how far training is, and what this process holds of the card.
func tell(step, steps, batch int, loss float64) error {
	held, err := cudaops.MemoryReserved(0)
	if err != nil {
		return err
	}
	limit, err := cudaops.MemoryLimit(0)
	if err != nil {
		return err
	}
	fmt.Printf("step %d/%d  batch %d  loss %.3f  holds %s of %s\n", step, steps, batch, loss, cudaops.FormatSize(held), limit)
	return nil
}
