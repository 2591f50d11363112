package host

import (
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
)

func (b *builder) copy(s *ir.Step) (step, error) {
	in, out := s.In[0], s.Out[0]
	from, err := b.bits(in)
	if err != nil {
		return nil, err
	}
	to, err := b.bits(out)
	if err != nil {
		return nil, err
	}
	if in.DType != out.DType || !in.Shape.Equal(out.Shape) {
		return nil, fmt.Errorf("copies %v to %v", in, out)
	}
	return b.move(in, out.Strides, from, to), nil
}

// move copies from, which lies as o says, to to, which lies by strides.
func (b *builder) move(o ir.Operand, strides []int, from, to []float32) step {
	plan := kernel.NewStridedCopy(b.pool, o.Shape, strides, o.Strides)
	return stepFunc(func() { plan.Run(to, from) })
}

// sequence is several steps as one.
type sequence []step

func (s sequence) run(e *Exec) error {
	for _, t := range s {
		if err := t.run(e); err != nil {
			return err
		}
	}
	return nil
}

// concat copies every argument to its stretch of the result.
func (b *builder) concat(s *ir.Step, op ir.Concat) (step, error) {
	out := s.Out[0]
	to, err := b.bits(out)
	if err != nil {
		return nil, err
	}
	var seq sequence
	at := 0
	for _, in := range s.In {
		from, err := b.bits(in)
		if err != nil {
			return nil, err
		}
		if n := in.Shape.Size(); n > 0 {
			seq = append(seq, b.move(in, out.Strides, from, to[at*out.Strides[op.Axis]:]))
		}
		at += in.Shape[op.Axis]
	}
	return seq, nil
}

// unslice clears the result and copies the argument to every Step-th place.
func (b *builder) unslice(s *ir.Step, op ir.Unslice) (step, error) {
	in, out := s.In[0], s.Out[0]
	from, err := b.bits(in)
	if err != nil {
		return nil, err
	}
	to, err := b.contiguousBits(out)
	if err != nil {
		return nil, err
	}
	zero := b.rowwise(len(to), len(to), 0, func(lo, hi int, _ []float32) { clear(to[lo:hi]) })
	if in.Shape.Size() == 0 {
		return zero, nil
	}
	at, strides := 0, slices.Clone(out.Strides)
	for d := range strides {
		at += op.Start[d] * strides[d]
		strides[d] *= op.Step[d]
	}
	return sequence{zero, b.move(in, strides, from, to[at:])}, nil
}
