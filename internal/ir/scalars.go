package ir

// A loop that needs a number which a few operations make of others, such as a learning rate's negative or what gradients are divided by, makes it
// itself: that costs it nothing, and what would be a step of one element, which others wait for, is none.

// scalar finds the number behind an argument of u's loop, if the loop is to make it itself: a value of one element that another loop makes of
// numbers. It may be one that the loop has made already, and that is seen in another shape: what loops make is not in memory while they run.
func (f *fuser) scalar(u *unit, a *Value) (s *Value, ok bool) {
	if _, reduces := u.op.(Reduce); !reduces && !isFused(u) {
		return nil, false
	}
	s = f.views[a].base
	return s, (f.unit[s] != u || s != a) && f.isScalar(s)
}

// isScalar reports whether v is made of numbers in memory and constants by elementwise operations alone.
func (f *fuser) isScalar(v *Value) bool {
	if _, ok := v.Op.(Map); !ok || v.Shape.Size() != 1 || f.unit[v] == nil || !isFused(f.unit[v]) {
		return false
	}
	for _, a := range v.Args {
		switch base := f.views[a].base; base.Op.(type) {
		case Iota, Rand:
			return false
		case Map:
			if f.unit[base] != nil && isFused(f.unit[base]) && !f.isScalar(base) {
				return false
			}
		}
	}
	return true
}

// scalarLoads adds to list what making a scalar reads from memory.
func (f *fuser) scalarLoads(s *Value, list []view) []view {
	for _, a := range s.Args {
		w := f.views[a]
		switch _, constant := w.base.Op.(Const); {
		case constant:
		case f.isScalar(w.base):
			list = f.scalarLoads(w.base, list)
		default:
			list = append(list, w)
		}
	}
	return list
}

// loopShape is the shape that u's loop runs over.
func (f *fuser) loopShape(u *unit) Shape {
	if isFused(u) {
		return u.root.Shape
	}
	return u.root.Args[0].Shape
}

// scalar writes the code for a scalar that the loop makes itself.
func (l *loopWriter) scalar(s *Value) int {
	if r, ok := l.regs[s]; ok {
		return r
	}
	in := Instr{Kind: Apply, Fn: s.Op.(Map).Fn}
	for i, a := range s.Args {
		w := l.f.views[a]
		switch c, constant := w.base.Op.(Const); {
		case constant:
			in.A[i] = l.write(w.base, Instr{Kind: Imm, X: float32(c.Value)})
		case l.f.isScalar(w.base):
			in.A[i] = l.scalar(w.base)
		default:
			in.A[i] = l.write(a, Instr{Kind: Load, In: l.in(l.step, w.repeated(l.step.Loop.Shape))})
		}
	}
	return l.write(s, in)
}
