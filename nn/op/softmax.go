package op

import (
	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// Softmax is exp(x) divided by its sum along axis.
func Softmax(x *gorgonia.Node, axis int) (*gorgonia.Node, error) {
	return apply(softmax{Axis: axis}, x)
}

// LogSoftmax is the logarithm of [Softmax].
func LogSoftmax(x *gorgonia.Node, axis int) (*gorgonia.Node, error) {
	return apply(softmax{Axis: axis, Log: true}, x)
}

type softmax struct {
	Axis int
	Log  bool
}

// toLast swaps axis with the last dimension. It is its own inverse.
func toLast(g *ir.Graph, v *ir.Value, axis int) *ir.Value {
	n := len(v.Shape)
	if axis == n-1 {
		return v
	}
	perm := make([]int, n)
	for i := range perm {
		perm[i] = i
	}
	perm[axis], perm[n-1] = n-1, axis
	return g.Transpose(v, perm...)
}

func (k softmax) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	if k.Axis < 0 || k.Axis >= len(a[0].Shape) {
		g.Fail(shapeError("x with the dimension of the softmax", a[0]))
		return a[0]
	}
	return toLast(g, g.Add(ir.Softmax{Log: k.Log}, nil, toLast(g, a[0], k.Axis)), k.Axis)
}

func (softmax) wrt(int) bool { return true }

func (k softmax) diff(_ gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := apply(softmaxGrad(k), y, dy)
	return gorgonia.Nodes{dx}, err
}

// softmaxGrad is y, dy -> dx.
type softmaxGrad struct {
	Axis int
	Log  bool
}

func (k softmaxGrad) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	dx := g.Add(ir.SoftmaxGrad{Log: k.Log}, nil, toLast(g, a[0], k.Axis), toLast(g, a[1], k.Axis))
	return toLast(g, dx, k.Axis)
}
