package nn_test

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/nn"
)

// A model and its parameters, under PyTorch's names.
func ExampleSequential() {
	model := nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
	params, err := nn.NamedParameters(model)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range params {
		fmt.Println(p.Name, p.Parameter.Shape())
	}
	// Output:
	// 1.weight (512, 784)
	// 1.bias (512)
	// 3.weight (10, 512)
	// 3.bias (10)
}

// Net is a module of its own: layers of this package and functions of Gorgonia, with a weight used twice.
type Net struct {
	In    *nn.LinearLayer
	Inner *nn.LinearLayer `nn:"hidden"`
	Out   *nn.LinearLayer
}

func NewNet() *Net {
	return &Net{In: nn.Linear(4, 8), Inner: nn.Linear(8, 8), Out: nn.Linear(8, 2)}
}

// Forward implements nn.Module.
func (n *Net) Forward(g *nn.Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	h, err := n.In.Forward(g, x)
	for range 2 {
		if err != nil {
			return nil, err
		}
		if h, err = gorgonia.Rectify(h); err != nil {
			return nil, err
		}
		h, err = n.Inner.Forward(g, h)
	}
	if err != nil {
		return nil, err
	}
	return n.Out.Forward(g, h)
}

// A model of one's own is a struct. It is traced for a shape of input, here 32 samples of 4 numbers.
func ExampleModule() {
	net := NewNet()
	g := nn.NewGraph(true)
	if err := g.Bind(net); err != nil {
		fmt.Println(err)
		return
	}
	y, err := net.Forward(g, g.Input("x", tensor.Float32, 32, 4))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("output", y.Shape())
	for _, p := range g.Params() {
		fmt.Println(p.Name, p.Node.Shape())
	}

	_, err = net.Forward(g, g.Input("x2", tensor.Float32, 32, 5))
	fmt.Println(err)
	// Output:
	// output (32, 2)
	// in.weight (8, 4)
	// in.bias (8)
	// hidden.weight (8, 8)
	// hidden.bias (8)
	// out.weight (2, 8)
	// out.bias (2)
	// nn: in (Linear 4->8): input [32,5]: wants [N, ..., 4]
}

// A state dict that does not fit says everything that is wrong with it.
func ExampleLoadStateDict() {
	small := nn.Sequential(nn.Linear(4, 3))
	if err := nn.Initialize(small, 1); err != nil {
		fmt.Println(err)
		return
	}
	state, err := nn.StateDict(small)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = nn.LoadStateDict(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2)), state, true)
	var wrong *nn.StateError
	if errors.As(err, &wrong) {
		fmt.Println("missing:", wrong.Missing)
		for _, m := range wrong.Mismatched {
			fmt.Println(m.Name, m.Have, "does not fit", m.Want)
		}
	}
	// Output:
	// missing: [1.weight 1.bias]
	// 0.weight (3, 4) does not fit (2, 4)
	// 0.bias (3) does not fit (2)
}

// Schedules combine.
func ExampleWarmup() {
	s := nn.Warmup(2, nn.CosineAnnealing(4, 0))
	for step := range 7 {
		fmt.Printf("%.3f ", s.LR(0.1, step))
	}
	fmt.Println()
	// Output:
	// 0.050 0.100 0.100 0.085 0.050 0.015 0.000
}
