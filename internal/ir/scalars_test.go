package ir

import "testing"

// What a step makes of numbers is part of the loops that use it; only what is kept is a step of its own.
func TestLoopsMakeNumbers(t *testing.T) {
	slot := func(r Region, name string, offset int, dims ...int) *Slot {
		return &Slot{Region: r, Name: name, Offset: offset, Shape: Of(dims...)}
	}
	var g Graph
	lr, samples := g.Read(slot(Hyper, "lr", 0)), g.Read(slot(Input, "samples", 0))
	w, loss := slot(Params, "w", 0, 100), slot(Output, "loss", 0)
	share := g.Over(g.Const(8), samples)
	scale := g.Select(g.Map(Gt, samples, g.Const(0)), share, g.Const(0))
	g.Store(w, g.Minus(g.Read(w), g.Times(g.Times(g.Read(slot(Input, "g", 32, 100)), scale), g.Map(Neg, lr))))
	g.Store(loss, g.Times(g.Read(slot(Input, "sum", 192)), share))
	p, err := Compile("update", [NumRegions]int{Params: 100}, Target{}, Part{Graph: &g})
	if err != nil {
		t.Fatal(err)
	}
	if got := kinds(p); got != "Fused Fused" || p.Size[Work] != 0 {
		t.Errorf("%d words to work in, steps %s:\n%v", p.Size[Work], got, p)
	}
}

// A loop that makes a number may need it in another shape as well, and does not look for it in memory, where it is not yet.
func TestLoopsSeeTheirNumbersInOtherShapes(t *testing.T) {
	for name, other := range map[string]func(g *Graph, v *Value) *Value{
		"transposed": func(g *Graph, v *Value) *Value { return g.Transpose(v, 1, 0) },
		"reshaped":   func(g *Graph, v *Value) *Value { return g.Reshape(g.Reshape(v, 1, 1, 1), 1, 1) },
	} {
		var g Graph
		x := g.Map(Neg, g.Read(&Slot{Region: Input, Name: "x", Shape: Of(1, 1)}))
		g.Store(&Slot{Region: Output, Name: "negative", Shape: Of(1, 1)}, x)
		g.Store(&Slot{Region: Output, Name: "sign", Offset: 1, Shape: Of(1, 1)}, g.Over(x, g.Map(Abs, other(&g, x))))
		p, err := Compile("sign", [NumRegions]int{Input: 1, Output: 2}, Target{}, Part{Graph: &g})
		if err != nil {
			t.Fatal(err)
		}
		if kinds(p) != "Fused" || len(p.Steps[0].In) != 1 || p.Steps[0].In[0].Region != Input {
			t.Errorf("%s: want one step that reads the input alone:\n%v", name, p)
		}
	}
}
