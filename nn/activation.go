package nn

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/nn/op"
)

// ActivationLayer applies a function to every element.
type ActivationLayer struct {
	name string
	fn   func(*gorgonia.Node) (*gorgonia.Node, error)
}

// ReLU is max(x, 0).
func ReLU() *ActivationLayer { return &ActivationLayer{"ReLU", op.ReLU} }

// Sigmoid is 1/(1+exp(-x)).
func Sigmoid() *ActivationLayer { return &ActivationLayer{"Sigmoid", op.Sigmoid} }

// Tanh is the hyperbolic tangent.
func Tanh() *ActivationLayer { return &ActivationLayer{"Tanh", op.Tanh} }

// SiLU is x sigmoid(x).
func SiLU() *ActivationLayer { return &ActivationLayer{"SiLU", op.SiLU} }

// GELUOption changes a [GELU].
type GELUOption interface{ gelu(*ActivationLayer) }

// GELU is x Φ(x), Φ being the normal distribution function.
func GELU(opts ...GELUOption) *ActivationLayer {
	l := &ActivationLayer{"GELU", op.GELU}
	for _, o := range opts {
		o.gelu(l)
	}
	return l
}

// ApproximateTanhOption is what [ApproximateTanh] returns.
type ApproximateTanhOption struct{}

// ApproximateTanh makes GELU x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³))).
func ApproximateTanh() ApproximateTanhOption { return ApproximateTanhOption{} }

func (ApproximateTanhOption) gelu(l *ActivationLayer) { l.name, l.fn = "GELU tanh", op.GELUTanh }

// String is the function's name.
func (l *ActivationLayer) String() string { return l.name }

// Forward implements [Module].
func (l *ActivationLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	y, err := l.fn(x)
	return g.leave(l, y, err)
}

// SoftmaxLayer normalises along a dimension.
type SoftmaxLayer struct {
	Dim int // from the end if negative
	Log bool
}

// Softmax is exp(x) over its sum along dim; -1 is the last dimension.
func Softmax(dim int) *SoftmaxLayer { return &SoftmaxLayer{Dim: dim} }

// LogSoftmax is the logarithm of [Softmax], computed without losing small probabilities.
func LogSoftmax(dim int) *SoftmaxLayer { return &SoftmaxLayer{Dim: dim, Log: true} }

// String is "Softmax along -1".
func (l *SoftmaxLayer) String() string {
	if l.Log {
		return fmt.Sprintf("LogSoftmax along %d", l.Dim)
	}
	return fmt.Sprintf("Softmax along %d", l.Dim)
}

// Forward implements [Module].
func (l *SoftmaxLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	n := x.Shape().Dims()
	dim := l.Dim
	if dim < 0 {
		dim += n
	}
	if dim < 0 || dim >= n {
		return nil, g.errorf(l, "input %s has no dimension %d", dims(x.Shape()), l.Dim)
	}
	f := op.Softmax
	if l.Log {
		f = op.LogSoftmax
	}
	y, err := f(x, dim)
	return g.leave(l, y, err)
}
