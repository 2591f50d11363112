package exec

import (
	"context"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// BenchmarkKernels runs single steps that memory limits, on a card: bytes are what the step must read and write.
func BenchmarkKernels(b *testing.B) {
	const n = 1 << 26
	win := ir.Window{Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}, Dilation: [2]int{1, 1}}
	for _, c := range []struct {
		name  string
		bytes int64
		draw  func(s *sketch)
	}{
		{"launch", 0, func(s *sketch) { s.out(s.Map(ir.Exp, s.in(4))) }},
		{"add", 12 * n, func(s *sketch) { s.out(s.Plus(s.in(n), s.in(n))) }},
		{"tanh", 8 * n, func(s *sketch) { s.out(s.Map(ir.Tanh, s.in(n))) }},
		{"bias", 8 * n, func(s *sketch) { s.out(s.Plus(s.in(n/1024, 1024), s.in(1024))) }},
		{"bias of odd rows", 8 * n / 1024 * 1023, func(s *sketch) { s.out(s.Plus(s.in(n/1024, 1023), s.in(1023))) }},
		{"dropout", 8 * n, func(s *sketch) {
			s.out(s.Times(s.in(n/1024, 1024), s.Map(ir.Ge, s.Rand(1, n/1024, 1024), s.Const(0.5))))
		}},
		{"adam", 28 * n / 4, func(s *sketch) {
			w, g := s.slot(ir.Params, ir.F32, n/4), s.slot(ir.Grads, ir.F32, n/4)
			m, v := s.slot(ir.State, ir.F32, n/4), s.slot(ir.State, ir.F32, n/4)
			step := s.Read(s.slot(ir.Hyper, ir.F32))
			m1 := s.Plus(s.Scale(s.Read(m), 0.9), s.Scale(s.Read(g), 0.1))
			v1 := s.Plus(s.Scale(s.Read(v), 0.99), s.Scale(s.Map(ir.Square, s.Read(g)), 0.01))
			s.Store(m, m1)
			s.Store(v, v1)
			s.Store(w, s.Minus(s.Read(w), s.Times(s.Map(ir.Pow, s.Const(0.9), step), s.Over(m1, s.Shift(s.Map(ir.Sqrt, v1), 1e-8)))))
		}},
		{"sum of all", 4 * n, func(s *sketch) { s.out(s.Sum(s.in(n))) }},
		{"sum of rows", 4 * n, func(s *sketch) { s.out(s.Reduce(ir.Sum, s.in(n/1024, 1024), 1)) }},
		{"sum of short rows", 4 * n, func(s *sketch) { s.out(s.Reduce(ir.Sum, s.in(n/64, 64), 1)) }},
		{"sum of columns", 4 * n, func(s *sketch) { s.out(s.Reduce(ir.Sum, s.in(n/1024, 1024), 0)) }},
		{"sum of few columns", 4 * n, func(s *sketch) { s.out(s.Reduce(ir.Sum, s.in(n/64, 64), 0)) }},
		{"sum of channels", 4 * n, func(s *sketch) { s.out(s.Reduce(ir.Sum, s.in(256, 64, 64, 64), 0, 2, 3)) }},
		{"softmax", 8 * n, func(s *sketch) { s.out(s.Add(ir.Softmax{}, nil, s.in(n/1024, 1024))) }},
		{"softmax of long rows", 8 * n, func(s *sketch) { s.out(s.Add(ir.Softmax{}, nil, s.in(n/32768, 32768))) }},
		{"softmax of 10", 80 * (n / 16), func(s *sketch) { s.out(s.Add(ir.Softmax{}, nil, s.in(n/16, 10))) }},
		{"transpose", 8 * n, func(s *sketch) { s.out(s.T(s.in(8192, 8192))) }},
		{"transpose of planes", 8 * n, func(s *sketch) { s.out(s.Transpose(s.in(256, 64, 64, 64), 0, 2, 3, 1)) }},
		{"max pool", 5 * n, func(s *sketch) { s.out(s.Add(ir.Pool2d{Mode: ir.MaxPool, Pool: win}, nil, s.in(256, 64, 64, 64))) }},
		{"max pool gradient", 9 * n, func(s *sketch) {
			s.out(s.Add(ir.Pool2dGrad{Mode: ir.MaxPool, Pool: win}, nil, s.in(256, 64, 64, 64), s.in(256, 64, 32, 32)))
		}},
		{"gather", 8 * n / 4, func(s *sketch) {
			s.out(s.Add(ir.Gather{}, nil, s.in(32768, 512), s.Read(s.slot(ir.Input, ir.I32, 32768))))
		}},
		{"scatter add", 8 * n / 4, func(s *sketch) {
			s.out(s.Add(ir.ScatterAdd{Rows: 32768}, nil, s.Add(ir.Data{Content: &ir.Content{Ints: spread(32768)}}, ir.Of(32768)), s.in(32768, 512)))
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newSketch(b)
			c.draw(s)
			l := loadOn(b, s.compile())
			run := func() {
				if err := l.Run(context.Background(), &ir.Runtime{}); err != nil {
					b.Fatal(err)
				}
			}
			run()
			run()
			b.SetBytes(c.bytes)
			for b.Loop() {
				run()
			}
		})
	}
}

// spread is a permutation of 0..n-1, n a power of two.
func spread(n int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(i * 12345 % n)
	}
	return x
}
