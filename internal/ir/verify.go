package ir

import (
	"errors"
	"fmt"
)

// Verify reports the first way in which p is not a legal program: an operand outside its region, a loop that uses a register
// before it is made, an output that overlaps what the step reads.
func (p *Program) Verify() error {
	for i := range p.Steps {
		s := &p.Steps[i]
		if err := p.verifyStep(s); err != nil {
			return fmt.Errorf("ir: step %d %s (%s): %w", i, s.Name, opName(s.Op), err)
		}
	}
	return nil
}

func (p *Program) verifyStep(s *Step) error {
	for i, o := range s.In {
		if err := p.verifyOperand(o); err != nil {
			return fmt.Errorf("operand %d: %w", i, err)
		}
	}
	for i, o := range s.Out {
		if err := p.verifyOperand(o); err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
		if o.Region == Consts || o.Region == Input || o.Region == Hyper {
			return fmt.Errorf("result %d: writes %s", i, o.Region)
		}
		for j, in := range s.In {
			if _, ok := s.Op.(Collective); ok {
				continue
			}
			if !o.overlaps(in) {
				continue
			}
			if _, ok := s.Op.(Fused); !ok || in.Offset != o.Offset || in.DType.Size() != o.DType.Size() || !in.Shape.Equal(o.Shape) || !in.Contiguous() {
				return fmt.Errorf("result %d %v overlaps operand %d %v", i, o, j, in)
			}
		}
		for j, other := range s.Out[:i] {
			if o.overlaps(other) {
				return fmt.Errorf("results %d and %d overlap", j, i)
			}
		}
	}
	if err := s.verifyEpilogue(); err != nil {
		return err
	}
	if s.Loop == nil {
		return nil
	}
	for r, in := range s.Loop.Code {
		switch in.Kind {
		case Load:
			if in.In < 0 || in.In >= len(s.In) || !s.In[in.In].Shape.Equal(s.Loop.Shape) {
				return fmt.Errorf("register %d: loads operand %d, which is not of shape %s", r, in.In, s.Loop.Shape)
			}
		case Apply:
			for _, a := range in.A[:in.Fn.Arity()] {
				if a < 0 || a >= r {
					return fmt.Errorf("register %d: uses register %d", r, a)
				}
			}
		case Index:
			if err := axisIn(in.Axis, s.Loop.Shape); err != nil {
				return fmt.Errorf("register %d: %w", r, err)
			}
		}
	}
	if _, fused := s.Op.(Fused); fused && len(s.Results) == 0 {
		return errors.New("a loop without a result")
	}
	for i, r := range s.Results {
		if r < 0 || r >= len(s.Loop.Code) || !s.Out[i].Shape.Equal(s.Loop.Shape) || !s.Out[i].Contiguous() {
			return fmt.Errorf("result %d: register %d of shape %s to %v", i, r, s.Loop.Shape, s.Out[i])
		}
	}
	return nil
}

func (s *Step) verifyEpilogue() error {
	e := s.Epilogue
	for _, i := range [...]int{e.Bias, e.Mask} {
		if i < 0 || i >= max(1, len(s.In)) {
			return fmt.Errorf("the epilogue reads operand %d of %d", i, len(s.In))
		}
	}
	if e.Places && (len(s.Out) != 2 || s.Out[1].DType != I32 || !s.Out[1].Contiguous()) {
		return fmt.Errorf("places in %v", s.Out[1:])
	}
	if e.Losses && (len(s.Out) != 2 || !s.Out[1].Shape.Equal(s.In[1].Shape) || !s.Out[1].Contiguous()) {
		return fmt.Errorf("losses of labels %s in %v", s.In[1].Shape, s.Out[1:])
	}
	if e.Mask == 0 && !e.Sums && !e.Totals {
		return nil
	}
	masked, sums := s.Out[0], s.In[0].Shape[0]
	if e.Totals {
		if _, ok := s.Op.(MatMul); !ok || e.Mask == 0 || e.Sums || len(masked.Shape) != 2 || !masked.Contiguous() {
			return fmt.Errorf("totals of %v", masked)
		}
		sums = masked.Shape[1]
	}
	if _, ok := s.Op.(Conv2dGradW); ok {
		masked, sums = s.In[1], s.In[1].Shape[3]
	}
	if e.Mask != 0 && !s.In[e.Mask].Shape.Equal(masked.Shape) {
		return fmt.Errorf("a mask of shape %s for %v", s.In[e.Mask].Shape, masked)
	}
	if (e.Sums || e.Totals) && (len(s.Out) != 2 || s.Out[1].Shape.Size() != sums || !s.Out[1].Contiguous()) {
		return fmt.Errorf("%d sums in %v", sums, s.Out[1:])
	}
	return nil
}

// span is the range of bytes [lo, hi) that the operand touches or steps over.
func (o Operand) span() (lo, hi int) {
	n := o.DType.Size()
	if o.Shape.Size() == 0 {
		return o.Offset * n, o.Offset * n
	}
	hi = o.Offset + 1
	for i, d := range o.Shape {
		hi += (d - 1) * o.Strides[i]
	}
	return o.Offset * n, hi * n
}

func (o Operand) overlaps(x Operand) bool {
	a, b := o.span()
	c, d := x.span()
	return o.Region == x.Region && a < d && c < b
}

func (p *Program) verifyOperand(o Operand) error {
	if o.Region >= NumRegions || len(o.Shape) != len(o.Strides) {
		return fmt.Errorf("%v is malformed", o)
	}
	if lo, hi := o.span(); lo < 0 || int64(hi) > p.Bytes(o.Region) {
		return fmt.Errorf("%v touches bytes %d..%d of %d", o, lo, hi, p.Bytes(o.Region))
	}
	return nil
}
