package nn

import "github.com/tandem-train/tandem/internal/ir"

// Loss scaling, for gradients in float16. Its smallest number is 6e-8, and many gradients are less; so the loss is multiplied by a scale before
// it is differentiated, and the gradients are divided by it, in float32, before the update. Where the scale was too large, gradients are
// infinite or no numbers: then the step is skipped, which leaves parameters and the optimizer's state as they were, and the scale is halved.
// After enough good steps it is doubled. The numbers are those of PyTorch's GradScaler.
//
// All of it happens on the device, so that no step waits for the host. The scale, and two counters, lie in the parameter arena, behind the
// parameters: wherever these are copied, so is it, and every rank has the same.
const (
	firstScale = 1 << 16
	goodSteps  = 2000 // in a row, before the scale is doubled
	mostScale  = 1e37 // it is not doubled past that
	growth     = 2.0  // what doubling is
	backoff    = 0.5  // what halving is
	finite     = 3e38 // more than that is taken for infinite
)

// The words behind the parameters.
const (
	scaleWord   = iota // what the loss is multiplied by
	goodWord           // good steps since it changed
	skippedWord        // steps that were skipped
	// ScaleTail is how many there are.
	ScaleTail
)

// scaleSlot is one of them.
func (c *Compiler) scaleSlot(word int) *ir.Slot {
	return &ir.Slot{Region: ir.Params, Name: [...]string{"loss_scale", "good_steps", "skipped_steps"}[word], Offset: c.Layout.Elements + word, Shape: ir.Of()}
}

// FirstScale is what lies behind the parameters before the first step, and where.
func (c *Compiler) FirstScale() (at int, words []float32) {
	words = make([]float32, ScaleTail)
	words[scaleWord] = firstScale
	return c.Layout.Elements, words
}

// Skipped is the place in the parameter arena of the number of skipped steps, as a float32.
func (c *Compiler) Skipped() int { return c.Layout.Elements + skippedWord }

// unscale divides the gradient by the scale and updates that. good is 1 where the gradient is finite, on all ranks, and 0 where the step is to
// be skipped.
func (c *Compiler) unscale(g *ir.Graph, grad *ir.Value, sumRanks func(*ir.Value) *ir.Value) (unscaled, good *ir.Value) {
	scale, run, skipped := g.Read(c.scaleSlot(scaleWord)), g.Read(c.scaleSlot(goodWord)), g.Read(c.scaleSlot(skippedWord))
	isFinite := g.Map(ir.Le, g.Map(ir.Abs, grad), g.Const(finite)) // no number compares as 0
	bad := sumRanks(g.Sum(g.Minus(g.Const(1), isFinite)))
	good = g.Map(ir.Eq, bad, g.Const(0))
	longer := g.Shift(run, 1)
	full := g.Map(ir.Ge, longer, g.Const(goodSteps))
	grown := g.Map(ir.Min, g.Scale(scale, growth), g.Const(mostScale))
	g.Store(c.scaleSlot(scaleWord), g.Select(good, g.Select(full, grown, scale), g.Scale(scale, backoff)))
	g.Store(c.scaleSlot(goodWord), g.Select(good, g.Select(full, g.Const(0), longer), g.Const(0)))
	g.Store(c.scaleSlot(skippedWord), g.Plus(skipped, g.Minus(g.Const(1), good)))
	return g.Times(grad, g.Map(ir.Recip, scale)), good
}
