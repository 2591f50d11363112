package exec

import (
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// drawBackward draws a chain of n steps, each of which leaves a gradient of so many elements, and parameters' update by all of them. Each step but
// the last reads the parameters of its gradient. scale makes a number of what all gradients are.
func drawBackward(s *sketch, n, elements int, scale func(grads *ir.Value) *ir.Value) {
	grads, params := s.slot(ir.Grads, ir.F32, n*elements), s.slot(ir.Params, ir.F32, n*elements)
	of := func(all *ir.Slot, i int) *ir.Slot {
		return &ir.Slot{Region: all.Region, Name: "part", Offset: all.Offset + i*elements, Shape: ir.Of(elements)}
	}
	v := s.in(elements)
	for i := range n {
		v = s.Map(ir.Tanh, s.Minus(v, s.Reduce(ir.Sum, v, 0)))
		s.Store(of(grads, i), s.Scale(v, 2))
		if i < n-1 {
			v = s.Times(v, s.Reduce(ir.Sum, s.Times(v, s.Read(of(params, i))), 0))
		}
	}
	s.next()
	g := s.Read(grads)
	s.Store(params, s.Minus(s.Read(params), s.Times(g, scale(g))))
}

// A loop has a part for what is ready at about the same time, which waits for no other; all of its elements are in one of them.
func TestParts(t *testing.T) {
	SetLeastPart(t, 12*128)
	const n = 4
	rate := func(s *sketch) func(*ir.Value) *ir.Value {
		lr := s.slot(ir.Hyper, ir.F32)
		return func(*ir.Value) *ir.Value { return s.Read(lr) }
	}
	for _, c := range []struct {
		name     string
		elements int
		scale    func(s *sketch) func(*ir.Value) *ir.Value
		want     []int // elements of parts
	}{
		{"one a gradient", 128, rate, []int{128, 128, 128, 128}},
		{"two gradients a part", 64, rate, []int{128, 128}},
		{"the rest is not small", 96, rate, []int{192, 192}},
		{"too little for two", 32, rate, nil},
		{"all wait for a number", 128, func(s *sketch) func(*ir.Value) *ir.Value {
			return func(g *ir.Value) *ir.Value { return s.Reduce(ir.MaxOf, g, 0) }
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSketch(t)
			drawBackward(s, n, c.elements, c.scale(s))
			p := s.plan()
			tasks := p.segments[0].tasks
			after := paths(func(i int) []int { return p.dependencies(tasks)[i] }, len(tasks))
			var got, parts []int
			for i, t := range tasks {
				if t.beside {
					got, parts = append(got, (t.on[0].to-t.on[0].from)/4), append(parts, i)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("parts of %v elements, want %v:\n%v", got, c.want, p)
			}
			maker := func(element int) int { // of a gradient
				at := span{base: ir.Grads, from: 4 * element, to: 4*element + 4}
				return slices.IndexFunc(tasks, func(t task) bool { return slices.ContainsFunc(p.spans(t), at.conflict) })
			}
			end := 0
			for k, i := range parts {
				last := maker(end + got[k] - 1)
				end += got[k]
				if !after[i][last] {
					t.Errorf("part %d may come before its gradient, of task %d:\n%v", k, last, p)
				}
				if k < len(parts)-1 && after[i][maker(end)] {
					t.Errorf("part %d waits for a gradient of the next, of task %d:\n%v", k, maker(end), p)
				}
				if k > 0 && after[i][parts[k-1]] {
					t.Errorf("part %d waits for the one before it", k)
				}
			}
			if len(parts) > 0 && end != n*c.elements {
				t.Errorf("the parts have %d elements of %d", end, n*c.elements)
			}
		})
	}
}

// A bucket's parameters are updated when its gradients have been summed, while cards sum the next.
func TestPartsOfBuckets(t *testing.T) {
	const n, buckets = 128, 3
	SetLeastPart(t, 12*n)
	p, _ := planBuckets(t, n, buckets)
	tasks := p.segments[0].tasks
	after := paths(func(i int) []int { return p.dependencies(tasks)[i] }, len(tasks))
	var sums, parts []int
	for i := range tasks {
		switch tasks[i].apart() {
		case together:
			sums = append(sums, i)
		case beside:
			parts = append(parts, i)
		}
	}
	if len(sums) != buckets || len(parts) != buckets {
		t.Fatalf("%d collectives and %d parts, want %d of both:\n%v", len(sums), len(parts), buckets, p)
	}
	for k, part := range parts {
		for b, sum := range sums {
			if after[part][sum] != (b <= k) {
				t.Errorf("part %d comes after collective %d: %v", k, b, after[part][sum])
			}
		}
	}
}

func TestLater(t *testing.T) {
	list := []stretch{{0, 10, -1}}
	for _, c := range []struct {
		lo, hi, task int
		want         []stretch
	}{
		{4, 8, 1, []stretch{{0, 4, -1}, {4, 8, 1}, {8, 10, -1}}},
		{0, 5, 0, []stretch{{0, 4, 0}, {4, 8, 1}, {8, 10, -1}}},
		{7, 10, 2, []stretch{{0, 4, 0}, {4, 7, 1}, {7, 10, 2}}},
		{3, 3, 5, []stretch{{0, 4, 0}, {4, 7, 1}, {7, 10, 2}}},
		{0, 10, 3, []stretch{{0, 10, 3}}},
	} {
		if list = later(list, c.lo, c.hi, c.task); !slices.Equal(list, c.want) {
			t.Errorf("after %d to %d wait for %d: %v, want %v", c.lo, c.hi, c.task, list, c.want)
		}
	}
}
