package nn

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/ir"
)

// Clip bounds gradients before the optimizer sees them.
type Clip interface {
	// Validate reports settings that make no sense.
	Validate() error
	// Apply bounds the flat gradient [n]. Where a rank has only a share of it, sumRanks adds a scalar up over the ranks;
	// elsewhere it returns its argument.
	Apply(g *ir.Graph, grad *ir.Value, sumRanks func(*ir.Value) *ir.Value) *ir.Value
}

// ClipGradNorm scales the gradient down to a 2-norm of max, all parameters taken together, where it is larger: by
// max/(norm + 1e-6).
func ClipGradNorm(max float64) Clip { return clipNorm(max) }

type clipNorm float64

func (c clipNorm) Validate() error {
	if !(c > 0) {
		return fmt.Errorf("nn: clip: the largest norm is %v: it must be above 0", float64(c))
	}
	return nil
}

func (c clipNorm) Apply(g *ir.Graph, grad *ir.Value, sumRanks func(*ir.Value) *ir.Value) *ir.Value {
	norm := g.Map(ir.Sqrt, sumRanks(g.Sum(g.Map(ir.Square, grad))))
	return g.Times(grad, g.Map(ir.Min, g.Over(g.Const(float64(c)), g.Shift(norm, 1e-6)), g.Const(1)))
}

// ClipGradValue brings every element of the gradient into -v..v.
func ClipGradValue(v float64) Clip { return clipValue(v) }

type clipValue float64

func (c clipValue) Validate() error {
	if !(c > 0) {
		return fmt.Errorf("nn: clip: the largest value is %v: it must be above 0", float64(c))
	}
	return nil
}

func (c clipValue) Apply(g *ir.Graph, grad *ir.Value, _ func(*ir.Value) *ir.Value) *ir.Value {
	return g.Map(ir.Min, g.Map(ir.Max, grad, g.Const(-float64(c))), g.Const(float64(c)))
}
