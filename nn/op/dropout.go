package op

import (
	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// Dropout sets each element to 0 with probability p and divides the others by 1-p. Dimension 0 of x counts samples: the
// elements of one sample are drawn alike wherever it is computed. stream tells the draws of one op from another's.
func Dropout(x *gorgonia.Node, p float64, stream uint64) (*gorgonia.Node, error) {
	return apply(dropout{p, stream}, x)
}

type dropout struct {
	P      float64
	Stream uint64
}

func (k dropout) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := a[0]
	if k.P >= 1 {
		return g.Times(x, g.Const(0))
	}
	drop := g.Map(ir.Lt, g.Rand(k.Stream, x.Shape...), g.Const(k.P))
	return g.Select(drop, g.Const(0), g.Scale(x, 1/(1-k.P)))
}

func (dropout) wrt(int) bool { return true }

// diff drops the same elements of the gradient: the same stream gives the same draws.
func (k dropout) diff(_ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := apply(k, dy)
	return gorgonia.Nodes{dx}, err
}
