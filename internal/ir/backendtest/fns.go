package backendtest

import (
	"math"
	"math/rand/v2"

	"github.com/tandem-train/tandem/internal/ir"
)

// fnDomains says what a function's arguments are drawn from where normal numbers will not do, by argument.
var fnDomains = map[ir.Fn][]domain{
	ir.Sqrt:  {positive},
	ir.Rsqrt: {positive},
	ir.Recip: {positive},
	ir.Log:   {positive},
	ir.Log1p: {positive},
	ir.Div:   {normal, positive},
	ir.Pow:   {positive, normal},
	ir.Sin:   {wide},
	ir.Cos:   {wide},
	ir.Sign:  {steps},
	ir.Floor: {wide},
	ir.Ceil:  {wide},
	ir.Gt:    {steps, steps},
	ir.Ge:    {steps, steps},
	ir.Lt:    {steps, steps},
	ir.Le:    {steps, steps},
	ir.Eq:    {steps, steps},
	ir.Ne:    {steps, steps},
	ir.Where: {steps, normal, normal},
}

func wide(rng *rand.Rand) float32 { return float32(10 * rng.NormFloat64()) }

// jumps lists the functions for which a rounding of an argument may change everything, and which are exact in turn.
func jumps(f ir.Fn) bool {
	switch f {
	case ir.Sign, ir.Floor, ir.Ceil, ir.Gt, ir.Ge, ir.Lt, ir.Le, ir.Eq, ir.Ne, ir.Max, ir.Min, ir.Relu, ir.Neg, ir.Abs, ir.Where, ir.Float, ir.RoundBF16, ir.RoundF16:
		return true
	}
	return false
}

// edges are arguments at which formulas break. Numbers near the limits of float32 are left out where the nearest float32 of
// the result hangs on a rounding.
func edges(f ir.Fn) [][3]float64 {
	inf, nan := math.Inf(1), math.NaN()
	one := []float64{0, 1, -1, 0.5, -0.5, 1e-3, -1e-3, 20, -20, 100, -100, inf, -inf, nan}
	switch f {
	case ir.Sin, ir.Cos:
		one = []float64{0, 1e-4, 1, -1, 3, 1.5, 300, -300, inf, -inf, nan}
	case ir.Square, ir.Abs, ir.Neg, ir.Floor, ir.Ceil, ir.Relu, ir.Sign:
		one = append(one, 1e18, -1e18, 2.5, -2.5, 1e-18)
	case ir.Log, ir.Sqrt, ir.Rsqrt, ir.Log1p, ir.Recip:
		one = append(one, 1e30, 1e-30, 1.0000001, 0.9999999, 1e-6)
	case ir.Exp, ir.Expm1, ir.Tanh, ir.Sigmoid, ir.Softplus, ir.Erf:
		one = append(one, 1e-6, -1e-6, 1e-2, 0.3, -0.3, 2, 3, -3, 8, -8, 80, -80)
	case ir.RoundBF16, ir.RoundF16:
		one = append(one, halfway...)
	case ir.Pow:
		one = []float64{0, 1, -1, 0.5, 2, -2, 3, inf, nan}
	}
	var out [][3]float64
	if f.Arity() == 1 {
		for _, a := range one {
			out = append(out, [3]float64{a})
		}
		return out
	}
	for _, a := range one {
		for _, b := range one {
			out = append(out, [3]float64{a, b, 7})
		}
	}
	return out
}

// halfway are numbers around those between two of a 16-bit type, and near the ends of their ranges.
var halfway = []float64{
	1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1.000002p-8, 1 + 0x0.ffffp-8, -1 - 0x1p-8, 1 + 0x1p-11, 1 + 0x3p-11, 1 + 0x1.0001p-11, 2047.5, 2048.5,
	65504, 65519, 65520, -65520, 65536, 0x1p-14, 0x1.ffcp-15, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x3p-25, -0x1p-25, 1e-9, 0x1.fep127, 0x1.fefp127, 0x1.ffp127, -0x1.ffp127,
	0x1p-126, 0x1p-133, 0x1p-134, 0x3p-134,
}

// fnCases: every scalar function on all ranks and on sizes around those that vector kernels and tiles end at, and at its edges.
func fnCases() []testCase {
	var cases []testCase
	for f := ir.Neg; f <= ir.Where; f++ {
		cases = append(cases, testCase{f.String(), func(b *draft) {
			b.bits = jumps(f)
			shapes := [][]int{{}, {1}, {7}, {16, 3}, {3, 1, 33}, {257}, {b.between(1000, 5000)}}
			for rank := range 6 {
				shapes = append(shapes, b.dims(rank, 500))
			}
			for _, shape := range shapes {
				b.out(b.Map(f, b.fnArgs(f, shape)...))
			}
		}})
		if f == ir.Float {
			continue
		}
		cases = append(cases, testCase{f.String() + " at edges", func(b *draft) {
			b.bits = jumps(f)
			points := edges(f)
			var args []*ir.Value
			for k := range f.Arity() {
				i := 0
				args = append(args, b.inExact(func(*rand.Rand) float32 {
					i++
					return float32(points[(i-1)%len(points)][k])
				}, len(points)))
			}
			b.out(b.Map(f, args...))
		}})
	}
	return cases
}

// fnArgs are inputs for f.
func (b *draft) fnArgs(f ir.Fn, shape []int) []*ir.Value {
	if f == ir.Float {
		return []*ir.Value{b.ints(1<<20, shape...)}
	}
	var args []*ir.Value
	for k := range f.Arity() {
		d := normal
		if ds := fnDomains[f]; ds != nil {
			d = ds[k]
		}
		args = append(args, b.inExact(d, shape...))
	}
	return args
}
