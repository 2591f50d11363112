package nn

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/nn/op"
)

// DropoutLayer sets elements to 0 in training and divides the others by 1-P; in evaluation it changes nothing.
type DropoutLayer struct {
	P float64 // the probability of 0
}

// Dropout returns a layer that drops elements with probability p. Which ones depends on the seed, the step, the layer and the
// sample's place in the whole batch, not on the number of cards; for that, dimension 0 of the input must count samples.
func Dropout(p float64) *DropoutLayer { return &DropoutLayer{p} }

// String is "Dropout 0.5".
func (l *DropoutLayer) String() string { return fmt.Sprintf("Dropout %v", l.P) }

// Forward implements [Module].
func (l *DropoutLayer) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	if err := g.enter(l, x); err != nil {
		return nil, err
	}
	switch {
	case !(l.P >= 0 && l.P <= 1):
		return nil, g.errorf(l, "the probability must be in 0..1")
	case x.Shape().Dims() == 0:
		return nil, g.errorf(l, "input is a scalar: wants [N, ...]")
	case !g.Training() || l.P == 0:
		return x, nil
	}
	y, err := op.Dropout(x, l.P, g.Stream())
	return g.leave(l, y, err)
}
