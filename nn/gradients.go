package nn

import "github.com/tandem-train/tandem/internal/ir"

// Where gradients lie. Mostly their arena has one float32 for each element, and ranks sum those in place, wherever they stand. Gradients that lie as halves
// would lose bits in such sums. So for them the arena has a place for each rank, one behind the other: a rank stores its own at its place, ranks tell
// each other what lies there, and whoever updates adds up, in float32, what lies at all places; see summed. Between two ranks that moves half the bytes, and
// takes no more memory.

// The gradient arena ends with sums that are reduced together with the gradients: of the losses, and of the weights that the
// mean divides by.
const (
	lossTail   = 0
	weightTail = 1
	// GradTail is the number of elements after the gradients.
	GradTail = 2
)

// Apart reports whether each rank's gradients have a place of their own, and are not to be summed there.
func (c *Compiler) Apart() bool { return c.Copied && c.GradHalf.Half() }

// GradElements is the size of the gradient arena in float32: the gradients, and GradTail more.
func (c *Compiler) GradElements() int {
	n := c.Layout.Elements
	if c.Apart() {
		n = c.places() * n / 2 // n is even
	}
	return n + GradTail
}

// places is how many places for gradients there are.
func (c *Compiler) places() int {
	if c.Apart() {
		return max(1, c.Ranks)
	}
	return 1
}

// grads is a slot of gradients where those of a rank lie, and as they lie.
func (c *Compiler) grads(rank int, s *ir.Slot) *ir.Slot {
	if !c.Apart() {
		return s
	}
	half := *s
	half.DType, half.Offset = c.GradHalf, s.Offset+rank*c.Layout.Elements
	return &half
}

// GradRange is the flat slot over elements lo to hi-1 of a rank's gradients.
func (c *Compiler) GradRange(rank, lo, hi int) *ir.Slot {
	return c.grads(rank, &ir.Slot{Region: ir.Grads, Name: "grads", Offset: lo, Shape: ir.Of(hi - lo)})
}

// TailRange is the flat slot over the tail of the gradients, which is float32 and summed in place in any case.
func (c *Compiler) TailRange() *ir.Slot {
	return &ir.Slot{Region: ir.Grads, Name: "sums", Offset: c.GradElements() - GradTail, Shape: ir.Of(GradTail)}
}

// summed is the gradients of elements lo to hi-1, all ranks' together, where they have been told or summed.
func (c *Compiler) summed(g *ir.Graph, lo, hi int) *ir.Value {
	sum := g.Read(c.GradRange(0, lo, hi))
	for r := 1; r < c.places(); r++ {
		sum = g.Plus(sum, g.Read(c.GradRange(r, lo, hi)))
	}
	return sum
}
