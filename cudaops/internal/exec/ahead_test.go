package exec

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// drawNet draws what training a small network has: convolutions with all of their gradients, products, and steps that are neither.
func drawNet(s *sketch) *ir.Program {
	win := ir.Window{Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1, ChannelsLast: true}
	x, k := s.in(64, 26, 26, 32), s.in(64, 3, 3, 32)
	y := s.Map(ir.Relu, s.Plus(s.Add(ir.Conv2d{Conv: win}, nil, x, k), s.in(64)))
	s.out(y)
	s.out(s.Add(ir.Conv2dGradX{Conv: win, In: [4]int(x.Shape)}, nil, k, s.in(64, 24, 24, 64)))
	s.out(s.Add(ir.Conv2dGradW{Conv: win}, nil, x, s.in(64, 24, 24, 64)))
	h := s.Map(ir.Relu, s.Plus(s.MatMul(s.in(64, 512), s.T(s.in(512, 512))), s.in(512)))
	s.out(s.Add(ir.Softmax{}, nil, s.MatMul(h, s.T(s.in(10, 512)))))
	s.out(s.Sum(s.Map(ir.Exp, h), 0))
	p, err := ir.Compile("net", s.size, ir.Target{TF32: true}, s.parts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// What trials run, and what a program is made of when they are over, whichever way has won: all of it has been foreseen.
func TestForeseen(t *testing.T) {
	p := drawNet(newSketch(t))
	rest, trials, err := foreseen(p, false, func(b *planner, s *ir.Step) ([]way, error) { return b.ways(s, hopper), nil })
	if err != nil {
		t.Fatal(err)
	}
	sources := slices.Concat(rest, trials)
	for range 20 {
		products := 0
		plan, err := newPlan(p, assumed{func(b *planner, s *ir.Step) (way, error) {
			products++
			ways := b.ways(s, hopper)
			if len(ways) < 2 {
				t.Errorf("%s has %d ways", opName(s.Op), len(ways))
			}
			return ways[rand.IntN(len(ways))], nil
		}}, false)
		if err != nil {
			t.Fatal(err)
		}
		if products != 5 {
			t.Fatalf("%d products, want 5", products)
		}
		for i, source := range plan.sources() {
			if !slices.Contains(sources, source) {
				t.Errorf("source %d of %d has not been foreseen:\n%s", i, len(plan.sources()), source)
			}
		}
	}
}

// Where all is decided, what is left to compile before the program itself is what does not depend on the ways.
func TestForeseenWithoutTrials(t *testing.T) {
	p := drawNet(newSketch(t))
	open := func(b *planner, s *ir.Step) ([]way, error) { return b.ways(s, hopper)[1:2], nil }
	rest, trials, err := foreseen(p, false, open)
	if err != nil || len(rest) != 1 || len(trials) > 0 {
		t.Fatalf("%d sources and %d for trials, %v", len(rest), len(trials), err)
	}
	plan, err := newPlan(p, assumed{func(b *planner, s *ir.Step) (way, error) { return b.ways(s, hopper)[1], nil }}, false)
	if err != nil || !slices.Contains(plan.sources(), rest[0]) {
		t.Errorf("the program has no such source, %v", err)
	}
}
