package ir

import (
	"fmt"
	"math"
	"slices"
)

// emit writes the part's units and the copies at its end as steps.
func (p *part) emit() {
	for _, u := range p.order {
		switch op := u.op.(type) {
		case Fused:
			p.emitFused(u)
		case Reduce:
			p.emitReduce(u, op)
		case Copy:
			src := p.f.copySource(u)
			s := &Step{Op: Copy{}, Name: u.root.Name}
			p.in(s, src)
			s.Out = append(s.Out, p.operand(view{u.result, 0, src.shape, src.shape.Strides()}))
			p.add(s)
		case AllReduceSum:
			out := p.operand(wholeView(u.result))
			s := &Step{Op: Copy{}, Out: []Operand{out}, Name: u.root.Name}
			p.in(s, p.f.views[u.root.Args[0]])
			p.add(s)
			flat := Operand{out.Region, out.Offset, out.DType, Of(out.Shape.Size()), []int{1}}
			p.add(&Step{Op: Collective{Kind: AllReduce, ActiveOnly: !op.All && !p.p.Target.Everyone}, In: []Operand{flat}, Out: []Operand{flat}, Name: u.root.Name})
		default:
			s := &Step{Op: u.op, Name: u.root.Name}
			for _, a := range u.root.Args {
				s.In = append(s.In, p.operand(p.f.views[a]))
			}
			s.Out = append(s.Out, p.operand(wholeView(u.result)))
			if u.bias != nil {
				s.Epilogue.Bias = len(s.In)
				s.In = append(s.In, p.operand(*u.bias))
			}
			s.Epilogue.Relu = u.relu
			if u.mask != nil {
				s.Epilogue.Mask = len(s.In)
				s.In = append(s.In, p.operand(*u.mask))
			}
			if u.second != nil {
				s.Out = append(s.Out, p.operand(wholeView(u.second)))
				switch u.op.(type) {
				case Pool2d:
					s.Epilogue.Places = true
				case CrossEntropyGrad:
					s.Epilogue.Losses = true
				default:
					s.Epilogue.Sums, s.Epilogue.Totals = !u.totals, u.totals
				}
			}
			p.add(s)
		}
	}
	for _, st := range p.tail {
		s := &Step{Op: Copy{}, Name: st.Slot.Name}
		w := p.f.views[st.Value]
		p.in(s, w)
		s.Out = append(s.Out, Operand{st.Slot.Region, st.Slot.Offset, st.Slot.DType, w.shape.Clone(), w.shape.Strides()})
		p.add(s)
	}
}

func (p *part) add(s *Step) { p.p.Steps = append(p.p.Steps, *s) }

func (p *part) emitFused(u *unit) {
	l := &loopWriter{part: p, step: &Step{Op: u.op, Name: u.root.Name, Loop: &Loop{Shape: u.root.Shape.Clone()}}, unit: u, regs: map[*Value]int{}}
	for _, v := range u.members {
		r := l.reg(v)
		if slices.Contains(u.outs, v) {
			l.step.Results = append(l.step.Results, r)
			l.step.Out = append(l.step.Out, p.operand(wholeView(v)))
		}
	}
	if len(l.step.Results) > 0 { // a Rand's users draw it themselves
		p.add(l.step)
	}
}

func (p *part) emitReduce(u *unit, op Reduce) {
	arg := u.root.Args[0]
	l := &loopWriter{part: p, step: &Step{Op: op, Name: u.root.Name, Loop: &Loop{Shape: arg.Shape.Clone()}}, unit: u, regs: map[*Value]int{}}
	l.reg(arg)
	l.step.Out = append(l.step.Out, p.operand(wholeView(u.result)))
	p.add(l.step)
}

// loopWriter writes the code of one loop.
type loopWriter struct {
	*part
	step *Step
	unit *unit
	regs map[*Value]int
}

// reg returns the register that holds v, writing the code for it the first time.
func (l *loopWriter) reg(v *Value) int {
	if r, ok := l.regs[v]; ok {
		return r
	}
	if s, ok := l.f.scalar(l.unit, v); ok {
		return l.scalar(s)
	}
	var in Instr
	switch op := v.Op.(type) {
	case Const:
		in = Instr{Kind: Imm, X: float32(op.Value)}
	case Iota:
		in = Instr{Kind: Index, Axis: op.Axis}
	case Rand:
		in = Instr{Kind: Random, Rand: op}
	case Map:
		if l.f.unit[v] == l.unit {
			in = Instr{Kind: Apply, Fn: op.Fn}
			for i, a := range v.Args {
				in.A[i] = l.reg(a)
			}
			break
		}
		in = Instr{Kind: Load, In: l.in(l.step, l.f.views[v])}
	default:
		in = Instr{Kind: Load, In: l.in(l.step, l.f.views[v])}
	}
	return l.write(v, in)
}

// write adds the instruction that makes v, unless there is one, and returns its register.
func (l *loopWriter) write(v *Value, in Instr) int {
	if r, ok := l.regs[v]; ok {
		return r
	}
	l.step.Loop.Code = append(l.step.Loop.Code, in)
	l.regs[v] = len(l.step.Loop.Code) - 1
	return l.regs[v]
}

// in adds w to the step's operands, unless it is among them, and returns its index.
func (p *part) in(s *Step, w view) int {
	o := p.operand(w)
	for i, e := range s.In {
		if e.Region == o.Region && e.Offset == o.Offset && e.DType == o.DType && e.Shape.Equal(o.Shape) && slices.Equal(e.Strides, o.Strides) {
			return i
		}
	}
	s.In = append(s.In, o)
	return len(s.In) - 1
}

// operand is the place of a view.
func (p *part) operand(w view) Operand {
	o := Operand{DType: p.dtype(w.base), Shape: w.shape.Clone(), Strides: slices.Clone(w.strides), Offset: w.offset}
	switch op := w.base.Op.(type) {
	case Read:
		o.Region = op.Slot.Region
		o.Offset += op.Slot.Offset
		return o
	case Data:
		o.Region = Consts
		o.Offset += p.content(w.base, op.Content)
		return o
	case Const:
		if p.f.unit[w.base] == nil {
			o.Region = Consts
			o.Offset += p.content(w.base, &Content{Floats: slices.Repeat([]float32{float32(op.Value)}, w.base.Shape.Size())})
			return o
		}
	}
	pl, ok := p.places[w.base]
	if !ok {
		panic(fmt.Sprintf("ir: value %d (%s) has no place", w.base.ID, opName(w.base.Op)))
	}
	o.Region = pl.region
	o.Offset += pl.offset
	if pl.buf != nil {
		if pl.buf.lent {
			o.Region = Grads
		}
		o.Offset += pl.buf.offset * wordSize / o.DType.Size()
	}
	return o
}

// content puts a constant into the Consts region, once a graph, and returns its offset.
func (p *part) content(v *Value, c *Content) int {
	if pl, ok := p.places[v]; ok {
		return pl.offset
	}
	consts := &p.p.Consts
	*consts = append(*consts, make([]uint32, align(len(*consts))-len(*consts))...)
	p.places[v] = place{region: Consts, offset: len(*consts), dtype: v.DType}
	for _, x := range c.Floats {
		*consts = append(*consts, math.Float32bits(x))
	}
	for _, x := range c.Ints {
		*consts = append(*consts, uint32(x))
	}
	return p.places[v].offset
}
