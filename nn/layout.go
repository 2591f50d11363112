package nn

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/ir"
)

// Layout places a model's parameters, their gradients and its buffers in flat arenas. Parameters lie in the reverse of the
// model's order, which is about the order in which backward finishes their gradients; each starts at a multiple of 128 bytes.
// Two models with the same names and shapes have the same layout.
type Layout struct {
	Params  []ParamSlot
	Buffers []BufferSlot

	// Elements is the size of the parameter arena in float32, gaps included.
	Elements       int
	BufferElements int

	params  map[*Parameter]int
	buffers map[*Buffer]int
}

// ParamSlot is a parameter's place: at the same offset in the Params and in the Grads region.
type ParamSlot struct {
	NamedParameter
	Slot, Grad *ir.Slot
}

// BufferSlot is a buffer's place.
type BufferSlot struct {
	NamedBuffer
	Slot *ir.Slot
}

// The gradient arena ends with sums that are reduced together with the gradients: of the losses, and of the weights that the
// mean divides by.
const (
	lossTail   = 0
	weightTail = 1
	// GradTail is the number of elements after the gradients.
	GradTail = 2
)

const slotAlign = 32 // elements

func alignSlot(n int) int { return (n + slotAlign - 1) / slotAlign * slotAlign }

// NewLayout lays out m.
func NewLayout(m Module) (*Layout, error) {
	params, err := NamedParameters(m)
	if err != nil {
		return nil, err
	}
	buffers, err := NamedBuffers(m)
	if err != nil {
		return nil, err
	}
	l := &Layout{params: map[*Parameter]int{}, buffers: map[*Buffer]int{}}
	for i := len(params) - 1; i >= 0; i-- {
		p := params[i]
		shape := ir.Of(p.Parameter.Shape()...)
		l.params[p.Parameter] = len(l.Params)
		l.Params = append(l.Params, ParamSlot{p,
			&ir.Slot{Region: ir.Params, Name: p.Name, Offset: l.Elements, Shape: shape},
			&ir.Slot{Region: ir.Grads, Name: p.Name, Offset: l.Elements, Shape: shape}})
		l.Elements = alignSlot(l.Elements + shape.Size())
	}
	for _, b := range buffers {
		shape := ir.Of(b.Buffer.Shape()...)
		l.buffers[b.Buffer] = len(l.Buffers)
		l.Buffers = append(l.Buffers, BufferSlot{b, &ir.Slot{Region: ir.Buffers, Name: b.Name, Offset: l.BufferElements, Shape: shape}})
		l.BufferElements = alignSlot(l.BufferElements + shape.Size())
	}
	if l.Elements == 0 {
		return nil, fmt.Errorf("nn: the model %T has no parameters: are its layers exported fields, or listed by Children?", m)
	}
	return l, nil
}

// SharedElements is how much of the parameter arena ranks have from each other: the parameters, and what lies behind them.
func (c *Compiler) SharedElements() int {
	if !c.Scaled {
		return c.Layout.Elements
	}
	return c.Layout.Elements + ScaleTail
}

// ParamElements is the size of the parameter arena.
func (c *Compiler) ParamElements() int {
	n := c.SharedElements()
	if c.Copied {
		n = alignSlot(n) + c.Layout.Elements/2
	}
	return n
}

// CopyAt is where the copy of the parameters begins, in halves; 0 is nowhere.
func (c *Compiler) CopyAt() int {
	if !c.Copied {
		return 0
	}
	return 2 * alignSlot(c.SharedElements())
}

// ParamRange is the flat slot over elements lo to hi-1 of the parameter arena.
func (l *Layout) ParamRange(lo, hi int) *ir.Slot {
	return &ir.Slot{Region: ir.Params, Name: "params", Offset: lo, Shape: ir.Of(hi - lo)}
}

// Where gradients lie. Mostly the arena has one number of float32 for each element, and ranks sum those in place, wherever each of them stands. But where
// gradients lie as halves, sums would need more bits: then the arena has a place for each rank, one behind the other. A rank stores its own gradients at its
// place, ranks tell each other what lies there, and who updates adds up what lies at all of them; see summed. Between two ranks that moves half the
// bytes, and takes no more memory.

// Apart reports whether each rank's gradients have a place of their own, and are not to be summed there.
func (c *Compiler) Apart() bool { return c.Copied && c.GradHalf.Half() }

// GradElements is the size of the gradient arena in float32: the gradients, and GradTail more.
func (c *Compiler) GradElements() int {
	n := c.Layout.Elements
	if c.Apart() {
		n = c.ranks() * n / 2 // Elements is even
	}
	return n + GradTail
}

// ranks is how many ranks there are.
func (c *Compiler) ranks() int { return max(1, c.Ranks) }

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

// summed reads the gradients of elements lo to hi-1, all ranks' together.
func (c *Compiler) summed(g *ir.Graph, lo, hi int) *ir.Value {
	sum := g.Read(c.GradRange(0, lo, hi))
	if c.Apart() {
		for r := 1; r < c.ranks(); r++ {
			sum = g.Plus(sum, g.Read(c.GradRange(r, lo, hi)))
		}
	}
	return sum
}

// BufferRange is the flat slot over all buffers.
func (l *Layout) BufferRange() *ir.Slot {
	return &ir.Slot{Region: ir.Buffers, Name: "buffers", Shape: ir.Of(l.BufferElements)}
}
