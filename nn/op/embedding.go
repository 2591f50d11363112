package op

import (
	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// Embedding takes rows of a table: table [V, D], indices int32 [...] -> [..., D]. An index outside 0..V-1 is an error when it
// runs. The row padding, unless it is negative, gets no gradient.
func Embedding(table, indices *gorgonia.Node, padding int) (*gorgonia.Node, error) {
	return apply(embedding{padding}, table, indices)
}

type embedding struct{ Padding int }

// checkRows passes indices through the range check of n rows.
func checkRows(g *ir.Graph, indices *ir.Value, n int) *ir.Value {
	return g.Add(ir.CheckIndex{Bound: n, Ignore: 0, What: "index"}, nil, indices)
}

func (k embedding) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	table := a[0]
	if len(table.Shape) != 2 {
		g.Fail(shapeError("a table [V, D] and indices", a...))
		return table
	}
	return g.Add(ir.Gather{}, nil, table, checkRows(g, a[1], table.Shape[0]))
}

func (embedding) wrt(i int) bool { return i == 0 }

func (k embedding) diff(a gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dt, err := apply(embeddingGrad{k.Padding, a[0].Shape()[0]}, a[1], dy)
	return gorgonia.Nodes{dt, nil}, err
}

// embeddingGrad is indices, dy [..., D] -> dtable [Rows, D].
type embeddingGrad struct{ Padding, Rows int }

func (k embeddingGrad) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	idx, dy := checkRows(g, a[0], k.Rows), a[1]
	if k.Padding >= 0 {
		real := g.Map(ir.Ne, g.Map(ir.Float, idx), g.Const(float64(k.Padding)))
		dy = g.Times(dy, g.Reshape(real, append(idx.Shape.Clone(), 1)...))
	}
	return g.Add(ir.ScatterAdd{Rows: k.Rows}, nil, idx, dy)
}
