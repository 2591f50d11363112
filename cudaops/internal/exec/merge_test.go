package exec

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// Two tasks that conflict keep their order, and each is done once.
func TestMergeKeepsTheOrderOfConflicts(t *testing.T) {
	joined, moved := 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		p, tasks := randomPlan(rng, 2+rng.IntN(40))
		tasks = tasks[1 : len(tasks)-1] // without the control block's
		draft := &module{}
		for i := range tasks {
			l := tasks[i].do.(launch)
			l.kernel, l.blocks = draft.kernel("k", "@"), 1+rng.IntN(2)
			tasks[i].do = l
		}
		b := &planner{plan: p}
		var got []task
		for _, g := range b.bundles(draft, tasks) {
			if len(g.tasks) > 1 {
				joined++
				if len(g.tasks) > mostMerged || slices.ContainsFunc(g.tasks, func(t task) bool { return t.do.(launch).blocks > 1 }) {
					t.Fatalf("seed %d: %v are one", seed, g.tasks)
				}
			}
			got = append(got, g.tasks...)
		}
		if len(got) != len(tasks) {
			t.Fatalf("seed %d: %d tasks became %d", seed, len(tasks), len(got))
		}
		at := make(map[int]int)
		for i, t := range got {
			at[t.step] = i
		}
		for i, x := range tasks {
			for _, y := range tasks[:i] {
				switch before := at[y.step] < at[x.step]; {
				case !before && b.conflict([]task{x}, []task{y}):
					t.Fatalf("seed %d: step %d now comes before %d", seed, x.step, y.step)
				case !before:
					moved++
				}
			}
		}
	}
	if joined == 0 || moved == 0 {
		t.Errorf("%d bundles, %d pairs in another order", joined, moved)
	}
}

func TestMerge(t *testing.T) {
	small := func(s *sketch, n int) {
		for range n {
			s.out(s.Map(ir.Exp, s.in(100)))
		}
	}
	for _, c := range []struct {
		name string
		draw func(s *sketch)
		want string // kernels of the tasks
	}{
		{"one", func(s *sketch) { small(s, 1) }, "fused0"},
		{"independent ones", func(s *sketch) { small(s, 2) }, "fused0 fused0"},
		{"one after the other", func(s *sketch) { s.out(s.Sum(s.Add(ir.Softmax{}, nil, s.in(4, 10)))) }, "softmax_sum0"},
		{"more than fit", func(s *sketch) {
			x := s.in(4, 4)
			for range mostMerged + 1 {
				x = s.Add(ir.Softmax{}, nil, x)
			}
			s.out(x)
		}, "softmax0 softmax1"},
		{"several blocks' work", func(s *sketch) { s.out(s.Sum(s.Add(ir.Softmax{}, nil, s.in(32, 32)))) }, "softmax_sum0"},
		{"another one between", func(s *sketch) {
			x := s.Add(ir.Softmax{}, nil, s.in(4, 10))
			s.out(x)
			s.out(s.Add(ir.Softmax{}, nil, s.in(64, 64)))
			s.out(s.Sum(x))
		}, "softmax_sum0 softmax1"},
		{"what a large one needs first", func(s *sketch) {
			x := s.Add(ir.Softmax{}, nil, s.in(8, 16))
			s.out(s.MatMul(x, s.in(16, 4)))
			s.out(s.Sum(x))
		}, "softmax0 matMul1 sum2"},
		{"large ones", func(s *sketch) {
			s.out(s.Map(ir.Exp, s.in(5000)))
			s.out(s.Map(ir.Sin, s.in(5000)))
		}, "fused0 fused1"},
		{"what the driver would set and copy", func(s *sketch) {
			s.out(s.Add(ir.Unslice{Start: []int{2}, Stop: []int{7}, Step: []int{1}}, ir.Of(9), s.in(5)))
		}, "fill_copy0"},
		{"products", func(s *sketch) {
			s.out(s.MatMul(s.in(4, 4), s.in(4, 4)))
			s.out(s.MatMul(s.in(4, 5), s.in(5, 4)))
		}, "matMul0 matMul1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSketch(t)
			c.draw(s)
			p := s.plan()
			var got []string
			for _, t := range p.segments[0].tasks {
				got = append(got, p.kernels[t.do.(launch).kernel])
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("got %q, want %q\n%s\n%s", got, c.want, p.program, p)
			}
		})
	}
}

// What a part of a kernel reads, a part before it may have written: no pointer is restricted then.
func TestMergedPartsAreNotRestricted(t *testing.T) {
	s := newSketch(t)
	s.out(s.Map(ir.Exp, s.in(100)))
	if text := s.plan().texts[0]; !strings.Contains(text, "__restrict__") {
		t.Errorf("nothing is restricted in\n%s", text)
	}
	s.out(s.Sum(s.Map(ir.Exp, s.Reduce(ir.Sum, s.in(4, 100), 1))))
	if text := s.plan().texts[1]; strings.Contains(text, "__restrict__") || strings.Count(text, "__syncthreads") != 1 {
		t.Errorf("restricted, or not one barrier, in\n%s", text)
	}
}
