package op

import (
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// Linear is y = x Wᵀ + b over the last dimension: x [..., in], w [out, in], b [out] or nil -> [..., out].
func Linear(x, w, b *gorgonia.Node) (*gorgonia.Node, error) {
	if b == nil {
		return apply(linear{}, x, w)
	}
	return apply(linear{}, x, w, b)
}

type linear struct{}

func (linear) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x, w := a[0], a[1]
	if len(x.Shape) == 0 || len(w.Shape) != 2 {
		g.Fail(shapeError("x [..., in] and w [out, in]", x, w))
		return x
	}
	y := g.MatMul(rows(g, x), g.T(w))
	if len(a) == 3 {
		y = g.Plus(y, a[2])
	}
	return g.Reshape(y, append(slices.Clone(x.Shape[:len(x.Shape)-1]), w.Shape[0])...)
}

func (linear) wrt(int) bool { return true }

func (linear) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	var g grads
	g.add(apply(linearGradX{}, dy, a[1]))
	g.add(apply(linearGradW{}, dy, a[0]))
	if len(a) == 3 {
		g.add(apply(sumLast{1}, dy))
	}
	return g.get()
}

// linearGradX is dy [..., out], w [out, in] -> [..., in].
type linearGradX struct{}

func (linearGradX) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	dy, w := a[0], a[1]
	dx := g.MatMul(rows(g, dy), w)
	return g.Reshape(dx, append(slices.Clone(dy.Shape[:len(dy.Shape)-1]), w.Shape[1])...)
}

// linearGradW is dy [..., out], x [..., in] -> [out, in].
type linearGradW struct{}

func (linearGradW) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	return g.MatMul(g.T(rows(g, a[0])), rows(g, a[1]))
}

// rows lays x [..., n] out as a matrix [m, n].
func rows(g *ir.Graph, x *ir.Value) *ir.Value {
	n := len(x.Shape) - 1
	return g.Reshape(x, x.Shape[:n].Size(), x.Shape[n])
}
