package op

import (
	"fmt"
	"slices"
	"strings"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// Reshape gives x another shape of the same size.
func Reshape(x *gorgonia.Node, dims ...int) (*gorgonia.Node, error) {
	return apply(reshape{slices.Clone(dims)}, x)
}

type reshape struct{ To []int }

func (k reshape) Lower(g *ir.Graph, a []*ir.Value) *ir.Value { return g.Reshape(a[0], k.To...) }

func (reshape) wrt(int) bool { return true }

func (reshape) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := Reshape(dy, a[0].Shape()...)
	return gorgonia.Nodes{dx}, err
}

// Scale is k x.
func Scale(x *gorgonia.Node, k float64) (*gorgonia.Node, error) { return apply(scale{k}, x) }

type scale struct{ K float64 }

func (k scale) Lower(g *ir.Graph, a []*ir.Value) *ir.Value { return g.Scale(a[0], k.K) }

func (scale) wrt(int) bool { return true }

func (k scale) diff(_ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := apply(k, dy)
	return gorgonia.Nodes{dx}, err
}

// Number is the scalar v, in the graph of x. It has no gradient.
func Number(x *gorgonia.Node, v float64) (*gorgonia.Node, error) { return apply(number{v}, x) }

type number struct{ V float64 }

func (k number) Lower(g *ir.Graph, _ []*ir.Value) *ir.Value { return g.Const(k.V) }

// Shift is x + k.
func Shift(x *gorgonia.Node, k float64) (*gorgonia.Node, error) { return apply(shift{k}, x) }

type shift struct{ K float64 }

func (k shift) Lower(g *ir.Graph, a []*ir.Value) *ir.Value { return g.Shift(a[0], k.K) }

func (shift) wrt(int) bool { return true }

func (shift) diff(_ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return gorgonia.Nodes{dy}, nil
}

// Lerp is (1-t) a + t b, of one shape. It has no gradient: it is for running means.
func Lerp(a, b *gorgonia.Node, t float64) (*gorgonia.Node, error) { return apply(lerp{t}, a, b) }

type lerp struct{ T float64 }

func (k lerp) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	if !a[0].Shape.Equal(a[1].Shape) {
		g.Fail(shapeError("two values of one shape", a...))
	}
	return g.Plus(g.Scale(a[0], 1-k.T), g.Scale(a[1], k.T))
}

// RunningMean is a + (b-a)/n, the mean of n values of which b is the last and a the mean of those before; n is a scalar.
// It has no gradient.
func RunningMean(a, b, n *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(runningMean{}, a, b, n)
}

type runningMean struct{}

func (runningMean) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	if !a[0].Shape.Equal(a[1].Shape) || a[2].Shape.Size() != 1 {
		g.Fail(shapeError("two values of one shape and a scalar", a...))
		return a[0]
	}
	return g.Plus(a[0], g.Over(g.Minus(a[1], a[0]), g.Reshape(a[2])))
}

// Add is a + b, of one shape.
func Add(a, b *gorgonia.Node) (*gorgonia.Node, error) { return apply(add{}, a, b) }

type add struct{}

func (add) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	if !a[0].Shape.Equal(a[1].Shape) {
		g.Fail(shapeError("two values of one shape", a...))
	}
	return g.Plus(a[0], a[1])
}

func (add) wrt(int) bool { return true }

func (add) diff(_ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return gorgonia.Nodes{dy, dy}, nil
}

func shapeError(want string, got ...*ir.Value) error {
	s := make([]string, len(got))
	for i, v := range got {
		s[i] = v.Shape.String()
	}
	return fmt.Errorf("wants %s, not %s", want, strings.Join(s, " and "))
}
