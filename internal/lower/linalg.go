package lower

import (
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// The products of linAlgBinOp, in the order of Gorgonia's āBinaryOperator.
const (
	matMul = iota
	matVec
	vecDot
	outer
	batched
)

// product writes a matrix product; a and b may be taken transposed.
func product(c *call, args []*ir.Value) (*ir.Value, error) {
	g, a, b := c.g, args[0], args[1]
	which := c.op.byte("āBinaryOperator")
	if c.op.bool("transA") {
		a = g.T(a)
	}
	if c.op.bool("transB") {
		b = g.T(b)
	}
	switch which {
	case matVec: // [m,k] x [k]
		return g.MatMul(a, g.Reshape(b, b.Shape.Size(), 1)), nil
	case vecDot:
		return g.Sum(g.Times(flat(g, a), flat(g, b))), nil
	case outer:
		return g.Times(g.Reshape(a, a.Shape.Size(), 1), g.Reshape(b, 1, b.Shape.Size())), nil
	case batched: // any number of leading dimensions
		return g.Reshape(g.MatMul(matrices(g, a), matrices(g, b)), c.shape...), nil
	}
	return g.MatMul(a, b), nil
}

func flat(g *ir.Graph, v *ir.Value) *ir.Value { return g.Reshape(v, v.Shape.Size()) }

// matrices folds all but the last two dimensions into one.
func matrices(g *ir.Graph, v *ir.Value) *ir.Value {
	n := len(v.Shape)
	if n <= 3 {
		return v
	}
	return g.Reshape(v, v.Shape[:n-2].Size(), v.Shape[n-2], v.Shape[n-1])
}

// tensordot contracts aAxes of a with bAxes of b: one matrix product of a [free, contracted] and b [contracted, free].
func tensordot(c *call, args []*ir.Value) (*ir.Value, error) {
	a, b := args[0], args[1]
	aAxes, bAxes := c.op.ints("aAxes"), c.op.ints("bAxes")
	if len(aAxes) != len(bAxes) {
		return nil, c.failf("axes %v and %v are not as many", aAxes, bAxes)
	}
	g, freeA, freeB, k := c.g, others(a, aAxes), others(b, bAxes), 1
	for _, ax := range aAxes {
		k *= a.Shape[ax]
	}
	a = g.Transpose(a, slices.Concat(freeA, aAxes)...)
	b = g.Transpose(b, slices.Concat(bAxes, freeB)...)
	shape := slices.Concat(a.Shape[:len(freeA)], b.Shape[len(bAxes):])
	m, n := a.Shape[:len(freeA)].Size(), b.Shape[len(bAxes):].Size()
	return g.Reshape(g.MatMul(g.Reshape(a, m, k), g.Reshape(b, k, n)), shape...), nil
}

// others lists the axes of v that are not in axes.
func others(v *ir.Value, axes []int) []int {
	var out []int
	for i := range v.Shape {
		if !slices.Contains(axes, i) {
			out = append(out, i)
		}
	}
	return out
}
