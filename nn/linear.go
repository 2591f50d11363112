package nn

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/nn/op"
)

// LinearLayer is y = x Wᵀ + b over the last dimension: [..., In] -> [..., Out].
type LinearLayer struct {
	In, Out int
	Weight  *Parameter // [Out, In], uniform in ±1/sqrt(In)
	Bias    *Parameter // [Out], likewise; nil without bias
}

// LinearOption changes a [LinearLayer].
type LinearOption interface{ linear(*LinearLayer) }

// Linear returns a fully connected layer.
func Linear(in, out int, opts ...LinearOption) *LinearLayer {
	l := &LinearLayer{In: in, Out: out, Weight: NewParameter(fanIn(in), out, in), Bias: NewParameter(fanIn(in), out)}
	for _, o := range opts {
		o.linear(l)
	}
	return l
}

// NoBiasOption is what [NoBias] returns.
type NoBiasOption struct{}

// NoBias leaves out the bias of a linear or convolution layer.
func NoBias() NoBiasOption { return NoBiasOption{} }

func (NoBiasOption) linear(l *LinearLayer) { l.Bias = nil }

// String is "Linear 784->512".
func (l *LinearLayer) String() string { return fmt.Sprintf("Linear %d->%d", l.In, l.Out) }

// Forward implements [Module].
func (l *LinearLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	if l.In < 1 || l.Out < 1 {
		return nil, g.errorf(l, "sizes must be at least 1")
	}
	s := x.Shape()
	if len(s) < 2 || s[len(s)-1] != l.In {
		return nil, g.errorf(l, "input %s: wants [N, ..., %d]", dims(s), l.In)
	}
	y, err := op.Linear(x, g.Param(l.Weight), g.optional(l.Bias))
	return g.leave(l, y, err)
}
