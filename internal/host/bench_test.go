package host

import (
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// The interpreter against copying the same bytes: a loop that is bound by memory should come near it.
func BenchmarkLoop(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"cache", 1 << 14}, {"memory", 1 << 24}} {
		b.Run("copy/"+size.name, func(b *testing.B) {
			src, dst := floats(size.n), floats(size.n)
			b.SetBytes(int64(8 * size.n))
			for b.Loop() {
				copy(dst, src)
			}
		})
		for _, c := range []struct {
			name   string
			arrays int // read or written
			build  func(g *ir.Graph, s *slots, n int)
		}{
			{"add", 3, func(g *ir.Graph, s *slots, n int) {
				x, y := g.Read(s.slot(ir.Input, ir.F32, n)), g.Read(s.slot(ir.Input, ir.F32, n))
				g.Store(s.slot(ir.Output, ir.F32, n), g.Plus(x, y))
			}},
			{"bias relu", 2, func(g *ir.Graph, s *slots, n int) {
				x, y := g.Read(s.slot(ir.Input, ir.F32, n/256, 256)), g.Read(s.slot(ir.Input, ir.F32, 256))
				g.Store(s.slot(ir.Output, ir.F32, n/256, 256), g.Map(ir.Relu, g.Plus(x, y)))
			}},
			{"channels", 2, func(g *ir.Graph, s *slots, n int) {
				x, y := g.Read(s.slot(ir.Input, ir.F32, n/1024, 16, 64)), g.Read(s.slot(ir.Input, ir.F32, 16, 1))
				g.Store(s.slot(ir.Output, ir.F32, n/1024, 16, 64), g.Map(ir.Relu, g.Plus(x, y)))
			}},
			{"short rows", 2, func(g *ir.Graph, s *slots, n int) {
				x, y := g.Read(s.slot(ir.Input, ir.F32, n/8, 8)), g.Read(s.slot(ir.Input, ir.F32, 8))
				g.Store(s.slot(ir.Output, ir.F32, n/8, 8), g.Times(x, y))
			}},
			{"momentum", 5, func(g *ir.Graph, s *slots, n int) {
				p, v, d := s.slot(ir.Params, ir.F32, n), s.slot(ir.State, ir.F32, n), s.slot(ir.Grads, ir.F32, n)
				rate := g.Read(s.slot(ir.Hyper, ir.F32))
				m := g.Plus(g.Scale(g.Read(v), 0.9), g.Read(d))
				g.Store(v, m)
				g.Store(p, g.Minus(g.Read(p), g.Times(rate, m)))
			}},
			{"gelu", 2, func(g *ir.Graph, s *slots, n int) {
				x := g.Read(s.slot(ir.Input, ir.F32, n))
				y := g.Times(g.Scale(x, 0.5), g.Shift(g.Map(ir.Erf, g.Scale(x, 0.70710678)), 1))
				g.Store(s.slot(ir.Output, ir.F32, n), y)
			}},
			{"dropout", 2, func(g *ir.Graph, s *slots, n int) {
				x := g.Read(s.slot(ir.Input, ir.F32, n))
				kept := g.Map(ir.Lt, g.Rand(1, n), g.Const(0.5))
				g.Store(s.slot(ir.Output, ir.F32, n), g.Select(kept, g.Scale(x, 2), g.Const(0)))
			}},
			{"sum", 1, func(g *ir.Graph, s *slots, n int) {
				g.Store(s.slot(ir.Output, ir.F32), g.Sum(g.Read(s.slot(ir.Input, ir.F32, n))))
			}},
			{"sum columns", 1, func(g *ir.Graph, s *slots, n int) {
				g.Store(s.slot(ir.Output, ir.F32, 256), g.Sum(g.Read(s.slot(ir.Input, ir.F32, n/256, 256)), 0))
			}},
			{"sum short columns", 1, func(g *ir.Graph, s *slots, n int) {
				g.Store(s.slot(ir.Output, ir.F32, 8), g.Sum(g.Read(s.slot(ir.Input, ir.F32, n/8, 8)), 0))
			}},
			{"transpose", 2, func(g *ir.Graph, s *slots, n int) {
				g.Store(s.slot(ir.Output, ir.F32, n/128, 128), g.T(g.Read(s.slot(ir.Input, ir.F32, 128, n/128))))
			}},
		} {
			b.Run(c.name+"/"+size.name, func(b *testing.B) {
				var s slots
				g := &ir.Graph{}
				c.build(g, &s, size.n)
				r := newRig(b, 1, s, ir.Part{Graph: g})
				b.SetBytes(int64(4 * c.arrays * size.n))
				for b.Loop() {
					r.run(b)
				}
			})
		}
	}
}
