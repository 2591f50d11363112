package dp

import (
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// Timeline says what a step keeps in memory when, on the first rank of this process.
type Timeline struct {
	Plan *Plan
	// Steps are what its program does, one after the other; where a step is computed in parts, it is that of the part that takes most.
	Steps []string
	// Spans are the lives of activations and their gradients, in the order in which they are made.
	Spans []Span
	// Peak is the step at which the spans take most, of Bytes.
	Peak  int
	Bytes int64
}

// Span is the life of a value: it lies at an offset in the memory for activations, from the step that makes it to the last that needs it.
type Span struct {
	Offset, Bytes int64
	From, To      int // steps
}

// Timeline says what a step on a batch of that shape keeps in memory when, without running it.
func (t *DataParallel) Timeline(shape ...int) (*Timeline, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	plan, d, err := t.planOf(shape)
	if err != nil {
		return nil, err
	}
	prog := slices.MaxFunc(d.programs[0], func(a, b *ir.Program) int { return a.Size[ir.Work] - b.Size[ir.Work] })
	l := &Timeline{Plan: plan}
	for i := range prog.Steps {
		l.Steps = append(l.Steps, prog.Steps[i].Title())
	}
	live := make([]int64, len(prog.Steps)+1)
	for _, s := range prog.Spans() {
		l.Spans = append(l.Spans, Span{int64(s.Offset), int64(s.Bytes), s.From, s.To})
		live[s.From] += int64(s.Bytes)
		live[s.To+1] -= int64(s.Bytes)
	}
	now := int64(0)
	for i, change := range live {
		if now += change; now > l.Bytes {
			l.Peak, l.Bytes = i, now
		}
	}
	return l, nil
}
