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
