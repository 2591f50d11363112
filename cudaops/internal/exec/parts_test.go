package exec

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// setLeastPart lets loops be cut into parts of so many bytes while a test runs.
func setLeastPart(t testing.TB, bytes int) {
	before := leastPart
	leastPart = bytes
	t.Cleanup(func() { leastPart = before })
}

// drawBackward draws a chain of n steps, each of which leaves a gradient of so many elements, in bf16, and parameters' update by all of them. Each step
// but the last reads the parameters of its gradient. scale makes a number of what all gradients are.
func drawBackward(s *sketch, n, elements int, scale func(grads *ir.Value) *ir.Value) {
	grads, params := s.slot(ir.Grads, ir.BF16, n*elements), s.slot(ir.Params, ir.F32, n*elements)
	of := func(all *ir.Slot, i int) *ir.Slot {
		return &ir.Slot{Region: all.Region, Name: "part", Offset: all.Offset + i*elements, Shape: ir.Of(elements), DType: all.DType}
	}
	v := s.in(elements)
	for i := range n {
		v = s.Map(ir.Tanh, s.Minus(v, s.Reduce(ir.Sum, v, 0)))
		s.Store(of(grads, i), s.Map(ir.RoundBF16, s.Scale(v, 2)))
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
	setLeastPart(t, 10*128) // bytes of an element, and elements
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
					got, parts = append(got, (t.on[0].to-t.on[0].from)/2), append(parts, i)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("parts of %v elements, want %v:\n%v", got, c.want, p)
			}
			maker := func(element int) int { // of a gradient
				at := span{base: ir.Grads, from: 2 * element, to: 2*element + 2}
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
	setLeastPart(t, 12*n)
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

// TestUpdateInParts: updates in parts come to the bits of an update by one loop, in a chain and in branches, on a card as on the fake one.
func TestUpdateInParts(t *testing.T) {
	openCard(t)
	updateInParts(t)
}

func updateInParts(t *testing.T) {
	const n, elements = 5, 1004 // no multiple of what a thread takes at once
	var first []float32
	for _, c := range []struct {
		branches    string
		least, want int
	}{{"on", leastPart, 0}, {"on", 10 * elements, 5}, {"off", 10 * elements, 5}, {"on", 20 * elements, 2}} {
		t.Setenv(BranchesVariable, c.branches)
		setLeastPart(t, c.least)
		s := newSketch(t)
		lr := s.slot(ir.Hyper, ir.F32)
		drawBackward(s, n, elements, func(*ir.Value) *ir.Value { return s.Read(lr) })
		p := s.compile()
		l := loadOn(t, p)
		parts := 0
		for _, t := range l.Exec.parts[0].tasks {
			if t.beside {
				parts++
			}
		}
		if parts != c.want {
			t.Fatalf("%+v: %d parts", c, parts)
		}
		x, w := &ir.Slot{Region: ir.Input, Shape: ir.Of(elements)}, &ir.Slot{Region: ir.Params, Shape: ir.Of(n * elements)}
		rng := rand.New(rand.NewPCG(1, 2))
		for _, slot := range []*ir.Slot{x, w} {
			list := make([]float32, slot.Shape.Size())
			for i := range list {
				list[i] = rng.Float32() - 0.5
			}
			l.write(t, slot, list)
		}
		l.write(t, lr, []float32{0.1})
		for range 6 {
			if err := l.Run(t.Context(), &ir.Runtime{}); err != nil {
				t.Fatal(err)
			}
		}
		got := l.read(t, w)
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) || slices.ContainsFunc(got, func(x float32) bool { return x != x }) {
			t.Errorf("%+v: other numbers than by one loop", c)
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
