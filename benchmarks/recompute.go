package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/nn"
)

const (
	deepName = "mlp of 24 layers"
	halfKept = "half of the activations"
	allKept  = "all kept" // what that is measured beside: the same steps with all of their activations in memory
)

// deep is an MLP of 24 layers, which has little but activations.
func deep(width int) nn.Module {
	var layers []nn.Module
	for range 24 {
		layers = append(layers, nn.Linear(width, width), nn.ReLU())
	}
	return nn.Sequential(append(layers, nn.Linear(width, 10))...)
}

// cardRecompute is recompute on a card.
func cardRecompute(ctx context.Context, b *bench) error {
	if err := needCard(); err != nil {
		return err
	}
	return recompute(ctx, b, 0, 2048, 4096, nn.TF32.String(), dp.WithPrecision(nn.TF32))
}

// recompute times steps of deep that keep half of their activations and compute the others again, beside steps that keep all.
func recompute(ctx context.Context, b *bench, device, width, batch int, mode string, options ...dp.Option) (err error) {
	b.log("%s: %s, batch %d, %s", b.suite, deepName, batch, halfKept)
	open := func(more ...dp.Option) (*dp.DataParallel, error) {
		return dp.New(deep(width), nn.CrossEntropy(), nn.SGD(learningRate), append(append(more, options...), dp.DeviceIDs(device), dp.Seed(1))...)
	}
	whole, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, whole.Close()) }()
	plan, err := whole.Plan(batch, width)
	if err != nil {
		return err
	}
	half, err := open(dp.Recompute(plan.Cards[0].Activations / 2))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, half.Close()) }()
	if less, err := half.Plan(batch, width); err != nil {
		return err
	} else if kept := less.Cards[0].Activations; kept > plan.Cards[0].Activations/2 {
		return fmt.Errorf("recompute: %d bytes of activations are kept, more than half of %d", kept, plan.Cards[0].Activations)
	}
	x, y := random(batch*width), make([]int32, batch)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range y {
		y[i] = rng.Int32N(10)
	}
	input, target := tensor.New(tensor.WithShape(batch, width), tensor.WithBacking(x)), tensor.New(tensor.WithShape(batch), tensor.WithBacking(y))
	took := func(t timing) row { return stepTime(deepName, batch, mode, t) }
	_, err = b.compare(ctx,
		entrant{row: func(t timing) row { return stepTime(deepName, batch, mode+", "+halfKept, t) }, run: stepper(ctx, half, input, target)},
		entrant{row: took, run: stepper(ctx, whole, input, target), peer: allKept},
	)
	return err
}
