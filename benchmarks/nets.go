package main

import (
	"fmt"
	"math/rand/v2"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/nn"
)

// net is a network for images [N, 1, 28, 28] and ten classes, twice: of nn's layers, and of Gorgonia's own functions alone, so that one
// graph runs on Gorgonia's machine and on ours.
type net struct {
	name    string
	layers  func() nn.Module
	natives func() *native
}

var mlp = net{
	name: "mlp",
	layers: func() nn.Module {
		return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
	},
	natives: func() *native {
		m := new(native)
		m.flatten()
		m.linear(784, 512)
		m.relu()
		m.linear(512, 512)
		m.relu()
		m.linear(512, 10)
		return m
	},
}

var cnn = net{
	name: "cnn",
	layers: func() nn.Module {
		return nn.Sequential(
			nn.Conv2d(1, 32, 3), nn.ReLU(), // [N, 32, 26, 26]
			nn.Conv2d(32, 64, 3), nn.ReLU(), // [N, 64, 24, 24]
			nn.MaxPool2d(2), nn.Flatten(), // [N, 9216]
			nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
		)
	},
	natives: func() *native {
		m := new(native)
		m.conv(1, 32)
		m.relu()
		m.conv(32, 64)
		m.relu()
		m.maxPool()
		m.flatten()
		m.linear(9216, 128)
		m.relu()
		m.linear(128, 10)
		return m
	},
}

// native is a chain of Gorgonia's functions as a module.
type native struct {
	Params []*nn.Parameter
	layers []func(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error)
}

// Forward implements nn.Module.
func (m *native) Forward(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	for i, layer := range m.layers {
		var err error
		if x, err = layer(g, x); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return x, nil
}

func (m *native) add(layer func(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error)) {
	m.layers = append(m.layers, layer)
}

// param adds a parameter of small random numbers.
func (m *native) param(dims ...int) *nn.Parameter {
	p := nn.NewParameter(nn.Uniform(-0.03, 0.03), dims...)
	m.Params = append(m.Params, p)
	return p
}

func (m *native) flatten() {
	m.add(func(_ *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
		n := x.Shape()[0]
		return gorgonia.Reshape(x, tensor.Shape{n, x.Shape().TotalSize() / n})
	})
}

func (m *native) relu() {
	m.add(func(_ *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) { return gorgonia.Rectify(x) })
}

// linear is x W + b, W [in, out].
func (m *native) linear(in, out int) {
	w, b := m.param(in, out), m.param(1, out)
	m.add(func(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
		y, err := gorgonia.Mul(x, g.Param(w))
		if err != nil {
			return nil, err
		}
		return gorgonia.BroadcastAdd(y, g.Param(b), nil, []byte{0})
	})
}

// conv is a convolution of 3x3 windows with a bias for each channel.
func (m *native) conv(in, out int) {
	w, b := m.param(out, in, 3, 3), m.param(1, out, 1, 1)
	m.add(func(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
		y, err := gorgonia.Conv2d(x, g.Param(w), tensor.Shape{3, 3}, []int{0, 0}, []int{1, 1}, []int{1, 1})
		if err != nil {
			return nil, err
		}
		return gorgonia.BroadcastAdd(y, g.Param(b), nil, []byte{0, 2, 3})
	})
}

func (m *native) maxPool() {
	m.add(func(_ *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
		return gorgonia.MaxPool2D(x, tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2})
	})
}

// nativeLoss is the mean cross entropy of logits [N, 10] with labels in one-hot rows [N, 10], in Gorgonia's functions.
func nativeLoss(_ *nn.Graph, out, target *gorgonia.Node) (*gorgonia.Node, error) {
	p, err := gorgonia.SoftMax(out)
	if err != nil {
		return nil, err
	}
	logp, err := gorgonia.Log(p)
	if err != nil {
		return nil, err
	}
	picked, err := gorgonia.HadamardProd(logp, target)
	if err != nil {
		return nil, err
	}
	rows, err := gorgonia.Sum(picked, 1)
	if err != nil {
		return nil, err
	}
	mean, err := gorgonia.Mean(rows)
	if err != nil {
		return nil, err
	}
	return gorgonia.Neg(mean)
}

// samples makes a batch: images, their labels, and the labels as one-hot rows.
func samples(n int) (x, y, oneHot *tensor.Dense) {
	rng := rand.New(rand.NewPCG(1, 2))
	pixels, labels, hot := make([]float32, 784*n), make([]int32, n), make([]float32, 10*n)
	for i := range pixels {
		pixels[i] = float32(rng.NormFloat64())
	}
	for i := range labels {
		labels[i] = rng.Int32N(10)
		hot[10*i+int(labels[i])] = 1
	}
	return tensor.New(tensor.WithShape(n, 1, 28, 28), tensor.WithBacking(pixels)),
		tensor.New(tensor.WithShape(n), tensor.WithBacking(labels)),
		tensor.New(tensor.WithShape(n, 10), tensor.WithBacking(hot))
}
