package backendtest

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// halfCases are the cases again for programs that round to halves: every float32 input is rounded, so that what a device with halves
// stores of it is one, and so are the operands of products. Numbers are held against ref's of the rounded graph.
func halfCases() []testCase {
	var cases []testCase
	random := randomCases()
	for _, half := range []ir.DType{ir.BF16, ir.F16} {
		list := slices.Concat(programCases(), random[:len(random)/5])
		if half == ir.BF16 || os.Getenv("TANDEM_TEST_LONG") != "" { // the two types differ in numbers, not in what is done with them
			list = slices.Concat(opCases(), viewCases(), list)
		}
		for _, c := range list {
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

// biased reports whether v is a product and a bias.
func biased(v *ir.Value) bool {
	if v.Op != ir.Op(ir.Map{Fn: ir.Add}) {
		return false
	}
	return slices.ContainsFunc(v.Args, func(a *ir.Value) bool {
		switch a.Op.(type) {
		case ir.MatMul, ir.Conv2d:
			return true
		}
		return false
	})
}

// rounded gives v as a half holds it, in a case of halves.
func (b *draft) rounded(v *ir.Value) *ir.Value {
	if !b.half.Half() {
		return v
	}
	f, _ := rounding(b.half)
	return b.Map(f, v)
}

// halfBits is how x, rounded, lies in memory as a half.
func halfBits(half ir.DType, x float64) uint16 {
	f, _ := rounding(half)
	x = f.Eval(x, 0, 0)
	bits := math.Float32bits(float32(x))
	if half == ir.BF16 {
		return uint16(bits >> 16)
	}
	sign := uint16(bits >> 16 & 0x8000)
	switch size := math.Abs(x); {
	case math.IsNaN(x):
		return 0x7fff
	case math.IsInf(x, 0):
		return sign | 0x7c00
	case size < 0x1p-14:
		return sign | uint16(math.Ldexp(size, 24))
	}
	return sign | uint16((bits>>23&255-112)<<10|bits>>13&1023)
}

// copyParams makes room behind the parameters for their copy in halves, where the target has one; see [ir.Target].
func (s *suite) copyParams(b *draft) {
	n := b.size[ir.Params]
	if b.half.Half() && n > 0 && s.targetOf(b).Halves {
		b.params = n
		b.size[ir.Params] = n + (n+1)/2
	}
}

// copied makes the copy of the parameters of an image.
func (b *draft) copied(params []uint32) {
	bytes := ir.Bytes(params[b.params:])
	for i, w := range params[:b.params] {
		binary.NativeEndian.PutUint16(bytes[2*i:], halfBits(b.half, number(ir.F32, w)))
	}
}

// checkCopy compares the copy of what has numbers with these.
func (b *draft) checkCopy(params []uint32) error {
	want := slices.Clone(params)
	b.copied(want)
	got, made := ir.Bytes(params[b.params:]), ir.Bytes(want[b.params:])
	for i, w := range params[:b.params] {
		if w != poison && binary.NativeEndian.Uint16(got[2*i:]) != binary.NativeEndian.Uint16(made[2*i:]) {
			return fmt.Errorf("params+%d: the copy of %v is %#x, want %#x", i, number(ir.F32, w), got[2*i:2*i+2], made[2*i:2*i+2])
		}
	}
	return nil
}

// targetOf is what a case's programs are compiled for.
func (s *suite) targetOf(b *draft) ir.Target {
	t := s.target
	if b.half.Half() {
		t.Half = b.half
		if traits := ir.TraitsOf(s.dev); traits != (ir.Traits{}) {
			t.Traits = traits
		}
		t.RoundedParams = 2 * b.params
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
