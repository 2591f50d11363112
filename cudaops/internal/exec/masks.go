package exec

import (
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// The gradient of an activation is made by a product, masked where the activation was not above 0, and then summed for the gradient of a bias. What masks it reads
// all of it, and may do more than that.

// masker finds the task that masks what a step made, where that is a matrix the other way round, which has not changed since, and what was its mask.
func (b *planner) masker(o ir.Operand) (i int, mask ir.Operand, ok bool) {
	steps, on := b.program.Steps, extent(o)
	maker := b.step - 1
	for maker >= 0 && !overwrites(&steps[maker], on) {
		maker--
	}
	if maker < 0 || steps[maker].Epilogue.Mask == 0 {
		return 0, mask, false
	}
	made := steps[maker].Out[0]
	mask = steps[maker].In[steps[maker].Epilogue.Mask]
	if len(made.Shape) != 2 || at(made) != at(o) || made.Strides[0] != o.Strides[1] || made.Strides[1] != o.Strides[0] || mask.Strides[1] != 1 {
		return 0, mask, false
	}
	i = slices.IndexFunc(b.tasks, func(t task) bool { return t.step == maker && t.masks })
	return i, mask, i >= 0
}

// overwrites reports whether a step writes to a place.
func overwrites(s *ir.Step, on span) bool {
	return slices.ContainsFunc(s.Out, func(o ir.Operand) bool { return extent(o).overlaps(on) })
}

// sumMasked adds up the rows of a matrix that is masked the other way round where it is masked, in parts, so that it need not be read again. It reports whether it
// could, and there are parts.
func (b *planner) sumMasked(sums *ir.Step) bool {
	a := sums.In[0]
	i, _, ok := b.masker(a)
	if !ok {
		return false
	}
	masking := &b.tasks[i]
	masked := b.program.Steps[masking.step].Plain()[1]
	for k, o := range masked.In {
		masked.In[k].Shape, masked.In[k].Strides = a.Shape, []int{o.Strides[1], o.Strides[0]}
	}
	on := operands(&masked)
	masked.Loop.Shape = a.Shape
	r := &reduction{planner: b, op: sums.Op.(ir.Reduce), loop: masked.Loop, in: masked.In, out: at(sums.Out[0]), split: true, put: 2}
	if r.sort(); !r.byColumns() {
		return false
	}
	first := len(b.tasks)
	_ = b.only(operands(sums)[1:], func() error { r.columns(); return nil })
	// The parts are made when it is masked, and must still be there.
	if len(b.tasks) != first+2 || !b.stays(masking.step) {
		b.tasks = b.tasks[:first]
		return false
	}
	masking = &b.tasks[i]
	masking.do, masking.masks, masking.on = b.tasks[first].do, false, append(on, b.tasks[first].on[1:]...)
	b.tasks = slices.Delete(b.tasks, first, first+1)
	return true
}

// stays reports whether no scratch that was taken since a step is another step's by now.
func (b *planner) stays(since int) bool {
	end := 0
	for _, own := range b.own[since : b.step+1] {
		if own.from < own.to {
			if own.from < end {
				return false
			}
			end = own.to
		}
	}
	return true
}
