package exec

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// floats and integers make inputs of elements that a function gives.
type (
	floats   func(element func(i int) float32, dims ...int) *ir.Value
	integers func(element func(i int) int32, dims ...int) *ir.Value
)

// What kernels do only with more than the suite of backends gives them: long rows, long lists, sums in parts.
func TestLarge(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	masked := func(int) float32 {
		if rng.IntN(3) == 0 {
			return float32(math.Inf(-1))
		}
		return float32(5 * rng.NormFloat64())
	}
	whole := func(int) float32 { return float32(rng.IntN(17) - 8) } // sums of these are exact
	for _, c := range []struct {
		name      string
		tolerance float64
		draw      func(s *sketch, in floats, ints integers)
	}{
		{"softmax", 1e-6, func(s *sketch, in floats, _ integers) {
			for _, columns := range []int{513, 4096, 5000, 9001} {
				// The first numbers of every thread, and some whole rows but one number, are -inf.
				x := in(func(i int) float32 {
					if i%columns < 600 && i%columns != 3 || i < columns-1 {
						return float32(math.Inf(-1))
					}
					return masked(i)
				}, 5, columns)
				s.out(s.Add(ir.Softmax{}, nil, x))
			}
		}},
		{"cross entropy", 2e-5, func(s *sketch, in floats, ints integers) {
			normal := func(int) float32 { return float32(5 * rng.NormFloat64()) }
			for _, columns := range []int{4096, 7001} {
				args := []*ir.Value{in(normal, 6, columns), ints(func(i int) int32 { return int32(i * columns / 6) }, 6), s.Const(1, columns)}
				s.out(s.Add(ir.CrossEntropy{Ignore: -1}, nil, args...))
				s.out(s.Add(ir.CrossEntropyGrad{Ignore: -1, Smoothing: 0.1}, nil, append(args, s.Const(1, 6))...))
			}
		}},
		{"scatter add", 0, func(s *sketch, in floats, ints integers) {
			const n = 9000
			skewed := func(i int) int32 { return int32(min(rng.IntN(130), rng.IntN(130), i)) }
			s.out(s.Add(ir.ScatterAdd{Rows: 130}, nil, ints(skewed, n), in(whole, n, 40)))
			s.out(s.Add(ir.ScatterAdd{Rows: 3}, nil, ints(func(int) int32 { return 1 }, n), in(whole, n)))
			s.out(s.Add(ir.ScatterAdd{Rows: 20}, nil, ints(func(i int) int32 { return int32(i % 20) }, 300), in(whole, 300, 300)))
		}},
		{"sums", 0, func(s *sketch, in floats, _ integers) {
			x := in(whole, 20000, 12)
			s.out(s.Reduce(ir.Sum, x, 0))
			s.out(s.Reduce(ir.MaxOf, s.T(x), 1))
			s.out(s.Sum(x))
			s.out(s.Reduce(ir.Sum, in(whole, 3, 70001), 1))
			s.out(s.Reduce(ir.Sum, in(whole, 64, 5, 31, 31), 0, 2, 3))
			s.out(s.Reduce(ir.Sum, in(whole, 9000, 130), 0))
		}},
		{"pooling side by side", 0, func(s *sketch, in floats, _ integers) {
			for _, k := range []int{1, 2, 3} {
				win := ir.Window{Kernel: [2]int{k, 2}, Stride: [2]int{k, 2}, Dilation: [2]int{1, 1}}
				s.out(s.Add(ir.Pool2dGrad{Mode: ir.MaxPool, Pool: win}, nil, in(whole, 2, 3, 7, 9), in(whole, 2, 3, 7/k, 4)))
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSketch(t)
			fill := map[*ir.Slot][]float64{}
			in := func(f func(int) float32, dims ...int) *ir.Value {
				slot := s.slot(ir.Input, ir.F32, dims...)
				for i := range slot.Shape.Size() {
					fill[slot] = append(fill[slot], float64(f(i)))
				}
				return s.Read(slot)
			}
			ints := func(f func(int) int32, dims ...int) *ir.Value {
				slot := s.slot(ir.Input, ir.I32, dims...)
				for i := range slot.Shape.Size() {
					fill[slot] = append(fill[slot], float64(f(i)))
				}
				return s.Read(slot)
			}
			c.draw(s, in, ints)
			p := s.compile()
			l := loadOn(t, p)
			want := ref.NewEnv(p.Size)
			for slot, x := range fill {
				copy(want.At(slot), x)
				if slot.DType == ir.I32 {
					l.write(t, slot, narrow[int32](x))
				} else {
					l.write(t, slot, narrow[float32](x))
				}
			}
			if err := ref.Eval(want, s.parts...); err != nil {
				t.Fatal(err)
			}
			if err := l.Run(context.Background(), &ir.Runtime{}); err != nil {
				t.Fatal(err)
			}
			for _, st := range s.Stores {
				for i, got := range l.read(t, st.Slot) {
					if w := want.At(st.Slot)[i]; math.Abs(float64(got)-w) > c.tolerance*(1+math.Abs(w)) || math.IsNaN(float64(got)) != math.IsNaN(w) {
						t.Errorf("seed %d: %s %v: element %d is %v, want %v", seed, st.Slot.Name, st.Slot.Shape, i, got, w)
						break
					}
				}
			}
		})
	}
}

func narrow[T int32 | float32](x []float64) []T {
	out := make([]T, len(x))
	for i, v := range x {
		out[i] = T(v)
	}
	return out
}
