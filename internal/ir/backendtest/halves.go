package backendtest

import (
	"fmt"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// halfCases are the cases again for programs that round to halves: every float32 input is rounded, so that what a device with halves
// stores of it is one, and so are the operands of products. Numbers are held against ref's of the rounded graph.
func halfCases() []testCase {
	var cases []testCase
	random := randomCases()
	for _, half := range []ir.DType{ir.BF16, ir.F16} {
		for _, c := range slices.Concat(opCases(), viewCases(), programCases(), random[:len(random)/5]) {
			cases = append(cases, testCase{fmt.Sprintf("%s %s", half, c.name), func(b *draft) {
				b.half = half
				c.build(b)
			}})
		}
	}
	return cases
}

// rounding is the function that rounds to a half, and the step between two of its numbers from 1 on.
func rounding(half ir.DType) (f ir.Fn, step float64) {
	if half == ir.F16 {
		return ir.RoundF16, 0x1p-10
	}
	return ir.RoundBF16, 0x1p-7
}

// rounded gives v as a half holds it, in a case of halves.
func (b *draft) rounded(v *ir.Value) *ir.Value {
	if !b.half.Half() {
		return v
	}
	f, _ := rounding(b.half)
	return b.Map(f, v)
}

// targetOf is what a case's programs are compiled for.
func (s *suite) targetOf(b *draft) ir.Target {
	t := s.target
	if b.half.Half() {
		t.Half = b.half
		if traits := ir.TraitsOf(s.dev); traits != (ir.Traits{}) {
			t.Traits = traits
		}
	}
	return t
}

// meaning are the parts as programs compute them.
func (b *draft) meaning() ([]ir.Part, error) {
	parts := slices.Clone(b.parts)
	for i, p := range parts {
		if p.Graph == nil || !b.half.Half() {
			continue
		}
		g, err := ir.Rounded(p.Graph, b.half)
		if err != nil {
			return nil, err
		}
		parts[i].Graph = g
	}
	return parts, nil
}
