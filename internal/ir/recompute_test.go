package ir_test

import (
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// chain is the training graph of so many layers relu(x w), 64 wide, on 256 samples. The gradients are built from the first layer's on, as
// differentiation leaves them.
func chain(t *testing.T, layers int) *ir.Program {
	t.Helper()
	const width, samples = 64, 256
	g := &ir.Graph{}
	var size [ir.NumRegions]int
	size[ir.Params], size[ir.Grads] = layers*width*width, layers*width*width
	weight := func(r ir.Region, i int) *ir.Slot {
		return &ir.Slot{Region: r, Name: "w", Offset: i * width * width, Shape: ir.Of(width, width)}
	}
	y := []*ir.Value{g.Read(&ir.Slot{Region: ir.Input, Name: "x", Shape: ir.Of(samples, width)})}
	for i := range layers {
		y = append(y, g.Map(ir.Relu, g.MatMul(y[i], g.Read(weight(ir.Params, i)))))
	}
	grad := make([]*ir.Value, layers+1)
	grad[layers] = g.Scale(y[layers], 2)
	var back func(i int) *ir.Value // the gradient of what layer i gives, before relu
	back = func(i int) *ir.Value {
		if grad[i] == nil {
			grad[i] = g.MatMul(back(i+1), g.T(g.Read(weight(ir.Params, i))))
		}
		return g.Select(g.Map(ir.Gt, y[i], g.Const(0)), grad[i], g.Const(0))
	}
	for i := range layers {
		g.Store(weight(ir.Grads, i), g.MatMul(g.T(y[i]), back(i+1)))
	}
	p, err := ir.Compile("chain", size, ir.Target{Frugal: true}, ir.Part{Graph: g})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestBackwardKeepsLittle: beside the activations, two gradients are alive at a time, whatever the number of layers.
func TestBackwardKeepsLittle(t *testing.T) {
	for _, layers := range []int{4, 24} {
		if got, want := chain(t, layers).Bytes(ir.Work), int64(layers+2)*256*64*4; got > want {
			t.Errorf("%d layers: %d bytes between steps, want at most %d", layers, got, want)
		}
	}
}

// TestRecomputeReachesItsBudget with as few steps done again as that takes: of 24 layers, some 12 for half of the memory.
func TestRecomputeReachesItsBudget(t *testing.T) {
	p := chain(t, 24)
	if q := ir.Recompute(p, p.Bytes(ir.Work)); q != p {
		t.Error("a program that is small enough is changed")
	}
	before := p.String()
	for _, c := range []struct {
		percent int64
		again   int
	}{{90, 3}, {75, 8}, {50, 15}, {40, 18}} {
		q := ir.Recompute(p, p.Bytes(ir.Work)*c.percent/100)
		if err := q.Verify(); err != nil {
			t.Fatal(err)
		}
		if again := len(q.Steps) - len(p.Steps); q.Bytes(ir.Work) > p.Bytes(ir.Work)*c.percent/100 || again > c.again {
			t.Errorf("%d %%: %d of %d bytes, with %d steps again; want at most %d", c.percent, q.Bytes(ir.Work), p.Bytes(ir.Work), again, c.again)
		}
	}
	if q := ir.Recompute(p, 0); q.Bytes(ir.Work) > p.Bytes(ir.Work)*2/5 {
		t.Errorf("at the least %d of %d bytes", q.Bytes(ir.Work), p.Bytes(ir.Work))
	}
	if p.String() != before {
		t.Error("recomputing changes the program that it is given")
	}
}

// TestSpans: values never share bytes at a step, and most is kept at a time where the arena is full.
func TestSpans(t *testing.T) {
	p := chain(t, 6)
	spans := p.Spans()
	live := make([]int, len(p.Steps))
	for i, a := range spans {
		if a.From < 0 || a.To < a.From || a.To >= len(p.Steps) || a.Offset+a.Bytes > int(p.Bytes(ir.Work)) {
			t.Fatalf("span %+v of %d steps", a, len(p.Steps))
		}
		for _, b := range spans[:i] {
			if a.From <= b.To && b.From <= a.To && a.Offset < b.Offset+b.Bytes && b.Offset < a.Offset+a.Bytes {
				t.Errorf("spans %+v and %+v overlap", a, b)
			}
		}
		for at := a.From; at <= a.To; at++ {
			live[at] += a.Bytes
		}
	}
	if got := slices.Max(live); got != int(p.Bytes(ir.Work)) {
		t.Errorf("%d bytes at the peak of an arena of %d", got, p.Bytes(ir.Work))
	}
}
