package exec

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

func TestStoredSums(t *testing.T) {
	openCard(t)
	storedSums(t)
}

// storedSums checks what a product with a mask leaves in halves, and the sums of its columns, which are made on the way. The numbers are small and whole, so that
// all of them are exact.
func storedSums(t *testing.T) {
	for _, size := range [][2]int{{1100, 136}, {1203, 52}, {700, 30}, {5, 8}, {257, 1}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const next, in = 3, 4
			n, out := size[0], size[1]
			s := newSketch(t)
			g, w := s.slot(ir.Input, ir.F32, n, next), s.slot(ir.Params, ir.F32, next, out)
			h, x := s.slot(ir.Input, ir.F32, n, out), s.slot(ir.Input, ir.F32, n, in)
			dw, sums := s.slot(ir.Output, ir.F32, out, in), s.slot(ir.Output, ir.F32, out)
			dy := s.Select(s.Map(ir.Le, s.Read(h), s.Const(0)), s.Const(0), s.MatMul(s.Read(g), s.Read(w)))
			s.Store(dw, s.MatMul(s.T(dy), s.Read(x)))
			s.Store(sums, s.Sum(dy, 0))
			p, err := ir.Compile("sums", s.size, ir.Target{Half: ir.BF16, Traits: Traits}, s.parts...)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(p.Steps, func(s ir.Step) bool { return s.Epilogue.Totals }) {
				t.Fatalf("no product makes the sums of its columns:\n%v", p)
			}
			l := loadOn(t, p)
			rng := rand.New(rand.NewPCG(5, uint64(rand.Uint32())))
			fill := func(s *ir.Slot) []float32 {
				x := make([]float32, s.Shape.Size())
				for i := range x {
					x[i] = float32(rng.IntN(7) - 3)
				}
				l.write(t, s, x)
				return x
			}
			gs, ws, hs, xs := fill(g), fill(w), fill(h), fill(x)
			wantDW, wantSums := make([]float32, out*in), make([]float32, out)
			for i := range n {
				for o := range out {
					if hs[i*out+o] <= 0 {
						continue
					}
					dy := float32(0)
					for k := range next {
						dy += gs[i*next+k] * ws[k*out+o]
					}
					wantSums[o] += dy
					for j := range in {
						wantDW[o*in+j] += dy * xs[i*in+j]
					}
				}
			}
			poison := slices.Repeat([]float32{float32(math.NaN())}, out*in)
			l.write(t, dw, poison)
			l.write(t, sums, poison[:out])
			if err := l.Run(context.Background(), &ir.Runtime{}); err != nil {
				t.Fatal(err)
			}
			if got := l.read(t, sums); !slices.Equal(got, wantSums) {
				t.Errorf("the sums are %v, want %v", got, wantSums)
			}
			if got := l.read(t, dw); !slices.Equal(got, wantDW) {
				t.Errorf("of what is masked %v follows, want %v", got, wantDW)
			}
		})
	}
}

// The next product waits for a mask, and not for the sums that are made beside it.
func TestSumsAreApart(t *testing.T) {
	s := newSketch(t)
	g, h := s.in(1100, 20), s.in(1100, 136)
	dy := s.Select(s.Map(ir.Le, h, s.Const(0)), s.Const(0), s.MatMul(g, s.in(20, 136)))
	s.out(s.MatMul(dy, s.in(136, 8)))
	s.out(s.Sum(dy, 0))
	p, err := ir.Compile("sums", s.size, ir.Target{Half: ir.BF16, Traits: Traits}, s.parts...)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := newPlan(p, none{}, false)
	if err != nil {
		t.Fatal(err)
	}
	of := make([][]int, len(p.Steps)) // tasks, by step
	tasks := plan.segments[0].tasks
	for i, task := range tasks {
		of[task.step] = append(of[task.step], i)
	}
	step := slices.IndexFunc(p.Steps, func(s ir.Step) bool { return s.Epilogue.Totals })
	last := slices.IndexFunc(p.Steps, func(s ir.Step) bool { return s.Out[0].Shape.Equal(ir.Of(1100, 8)) })
	if step < 0 || last < 0 || len(of[step]) < 3 {
		t.Fatalf("no pass with sums in parts:\n%v\n%v", p, of)
	}
	made := of[step]
	mask, parts := made[len(made)-2], made[len(made)-1]
	after := plan.dependencies(tasks)[of[last][0]]
	if !slices.Contains(after, mask) || slices.Contains(after, parts) {
		t.Errorf("the next product waits for tasks %v, want %d among them and %d not", after, mask, parts)
	}
}
