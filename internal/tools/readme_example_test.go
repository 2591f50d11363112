package tools

import (
	"context"
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/dp"
	"github.com/tandem-train/tandem/dp/data"
	"github.com/tandem-train/tandem/nn"
)

// From here to the Example is the program of README.md.

func train(ctx context.Context, x, y *tensor.Dense) (err error) {
	model := nn.Sequential(
		nn.Flatten(),
		&Block{nn.Linear(784, 512)},
		nn.Linear(512, 10),
	)
	t, err := dp.New(model, nn.CrossEntropy(), nn.SGD(0.1, nn.Momentum(0.9)),
		dp.DeviceIDs(0, 2, 3),      // logical numbers, the primary card first; default: all, or the host
		dp.OutputDevice(0),         // where Forward gathers
		dp.WithStrategy(dp.Gather)) // or dp.AllReduce, dp.Sharded: the same numbers
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()

	dataset, err := data.NewTensorDataset(x, y)
	if err != nil {
		return err
	}
	loader, err := data.NewLoader(dataset, 64, data.Shuffle(1))
	if err != nil {
		return err
	}
	var loss float64
	for epoch := range 10 {
		for batch, err := range loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			// Scatter, apply in parallel, gather gradients, update, replicate.
			if loss, err = t.Step(ctx, batch.X, batch.Y); err != nil {
				return err
			}
		}
	}

	logits, err := t.Forward(ctx, x) // evaluation: scatter, apply, gather
	if err != nil {
		return err
	}
	state, err := t.StateDict() // under PyTorch's names
	if err != nil {
		return err
	}
	if t.Rank() == 0 { // of several processes this one has the logits
		fmt.Printf("%d cards, %d steps, learned: %t\n", t.WorldSize(), t.Steps(), loss < 0.1)
		fmt.Println(logits.Shape(), state.Names())
	}
	return nil
}

// Block is a module of one's own: layers and Gorgonia's functions, mixed freely.
type Block struct{ Fc *nn.LinearLayer }

func (b *Block) Forward(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	h, err := b.Fc.Forward(g, x)
	if err != nil {
		return nil, err
	}
	return gorgonia.Tanh(h)
}

// Example runs the README's program on images with one bright row, whose number is the label.
func Example() {
	const n = 200
	x, y := make([]float32, n*784), make([]int32, n)
	for i := range n {
		y[i] = int32(i % 10)
		for j := range 28 {
			x[784*i+28*int(y[i])+j] = 1
		}
	}
	err := train(context.Background(),
		tensor.New(tensor.WithShape(n, 1, 28, 28), tensor.WithBacking(x)),
		tensor.New(tensor.WithShape(n), tensor.WithBacking(y)))
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// 3 cards, 40 steps, learned: true
	// (200, 10) [1.fc.weight 1.fc.bias 2.weight 2.bias]
}
