package exec

import (
	"cmp"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// A product in parts of k leaves its parts to be added up, by a task of its own. Where that is a gradient, an update is what reads it, and comes right after it. So a loop over
// vectors adds up by itself what has not been read before, and stores the sum for whoever reads it later: one task on the longest path in place of two. What it
// does with those elements becomes a task of its own, as does what it does with the others between them.

// addition is a task that adds up elements lo to hi-1 of an operand of a loop.
type addition struct{ lo, hi, operand, task int }

// withSums plans a loop, which adds up what tasks before it would have, as far as it can.
func (b *planner) withSums(s *ir.Step) error {
	list := b.additions(s)
	if len(list) == 0 {
		return b.fused(s)
	}
	var pieces []*ir.Step
	done := 0
	until := func(end int) {
		if done < end {
			pieces = append(pieces, portion(s, done, end))
		}
	}
	for _, a := range list {
		until(a.lo)
		pieces = append(pieces, adding(portion(s, a.lo, a.hi), a.operand, b.tasks[a.task].sum))
		done = a.hi
	}
	until(s.Loop.Shape[0])
	for i := len(b.tasks) - 1; i >= 0; i-- {
		if slices.ContainsFunc(list, func(a addition) bool { return a.task == i }) {
			b.tasks = slices.Delete(b.tasks, i, i+1)
		}
	}
	for _, p := range pieces {
		if err := b.only(operands(p), func() error { return b.fused(p) }); err != nil {
			return err
		}
	}
	return nil
}

// additions lists the tasks that a loop can do by itself, in the order of their elements.
func (b *planner) additions(s *ir.Step) (list []addition) {
	if !overVectors(s) {
		return nil
	}
	for i, t := range b.tasks {
		if t.sum == nil || b.disturbed(i) {
			continue
		}
		sum := extent(t.sum.Out[0])
		overlap := func(o ir.Operand) bool { return extent(o).overlaps(sum) }
		k := slices.IndexFunc(s.In, overlap)
		if k < 0 || slices.ContainsFunc(s.In[k+1:], overlap) || slices.ContainsFunc(s.Out, overlap) {
			continue
		}
		all := extent(s.In[k])
		lo, hi := (sum.from-all.from)/wordBytes, (sum.to-all.from)/wordBytes
		if s.In[k].DType == ir.F32 && s.In[k].Strides[0] == 1 && all.from <= sum.from && sum.to <= all.to && lo%lanes == 0 && hi%lanes == 0 {
			list = append(list, addition{lo, hi, k, i})
		}
	}
	slices.SortFunc(list, func(a, b addition) int { return cmp.Compare(a.lo, b.lo) })
	done := 0
	return slices.DeleteFunc(list, func(a addition) bool {
		if a.lo < done {
			return true // no element is updated twice
		}
		done = a.hi
		return false
	})
}

// disturbed reports whether a task reads what an earlier one that adds up has made, or writes over what it reads, so that this can't come later.
func (b *planner) disturbed(adds int) bool {
	on := operands(b.tasks[adds].sum)
	return slices.ContainsFunc(b.tasks[adds+1:], func(t task) bool {
		return slices.ContainsFunc(b.spans(t), func(s span) bool { return slices.ContainsFunc(on, s.conflict) })
	})
}

// adding is a loop that adds up one of its operands by itself, and stores that as its last result.
func adding(s *ir.Step, operand int, sum *ir.Step) *ir.Step {
	a, loop := *s, *s.Loop
	a.In, a.Out, a.Results = append(slices.Clone(s.In), sum.In...), append(slices.Clone(s.Out), sum.Out...), nil
	loop.Code = slices.Clone(sum.Loop.Code)
	for i := range loop.Code {
		if c := &loop.Code[i]; c.Kind == ir.Load {
			c.In += len(s.In)
		}
	}
	total := sum.Results[0]
	register := make([]int, len(s.Loop.Code)) // by that in the loop as it was
	for i, c := range s.Loop.Code {
		if c.Kind == ir.Load && c.In == operand {
			register[i] = total
			continue
		}
		if c.Kind == ir.Apply {
			for k := range c.Fn.Arity() {
				c.A[k] = register[c.A[k]]
			}
		}
		register[i] = len(loop.Code)
		loop.Code = append(loop.Code, c)
	}
	for _, r := range s.Results {
		a.Results = append(a.Results, register[r])
	}
	a.Results, a.Loop = append(a.Results, total), &loop
	return &a
}
