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

// ParamSlot is a parameter's place: at the same offset in the Params region and among the gradients.
type ParamSlot struct {
	NamedParameter
	Slot, Grad *ir.Slot
}

// BufferSlot is a buffer's place.
type BufferSlot struct {
	NamedBuffer
	Slot *ir.Slot
}

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

// BufferRange is the flat slot over all buffers.
func (l *Layout) BufferRange() *ir.Slot {
	return &ir.Slot{Region: ir.Buffers, Name: "buffers", Shape: ir.Of(l.BufferElements)}
}
