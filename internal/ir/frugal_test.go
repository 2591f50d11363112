package ir

import (
	"slices"
	"testing"
)

// backward is forward and backward of some layers, n x n, on n samples: h[i+1] = relu(h[i] w[i]), and dw[i] = h[i]^T g[i]. With
// accumulate the gradients are added to what is there.
func backward(n, layers int, accumulate bool) (*Graph, [NumRegions]int) {
	g := new(Graph)
	slot := func(r Region, i int) *Slot {
		return &Slot{Region: r, Name: string(rune('a' + i)), Offset: i * n * n, Shape: Of(n, n)}
	}
	zero := g.BroadcastTo(g.Const(0), n, n)
	h, w := []*Value{g.Read(slot(Input, 0))}, make([]*Value, layers)
	for i := range layers {
		w[i] = g.Read(slot(Params, layers-1-i))
		h = append(h, g.Map(Max, g.MatMul(h[i], w[i]), zero))
	}
	d := h[layers]
	for i := layers - 1; i >= 0; i-- {
		s := slot(Grads, layers-1-i)
		dw := g.MatMul(g.T(h[i]), d)
		if accumulate {
			dw = g.Plus(g.Read(s), dw)
		}
		g.Store(s, dw)
		if i > 0 {
			d = g.Select(g.Map(Le, h[i], zero), zero, g.MatMul(d, g.T(w[i])))
		}
	}
	return g, [NumRegions]int{Params: layers * n * n, Grads: layers * n * n}
}

func TestFrugalTakesLess(t *testing.T) {
	const n, layers = 64, 8
	work := func(frugal, accumulate bool) int {
		g, size := backward(n, layers, accumulate)
		p, err := Compile("backward", size, Target{Frugal: frugal}, Part{Graph: g})
		if err != nil {
			t.Fatal(err)
		}
		return p.Size[Work] / (n * n)
	}
	// What forward leaves is alive when backward begins. Frugal, it lies where gradients come later, but for what the last of them
	// is made of; plain, a gradient by each layer's input is alive beside it.
	for _, c := range []struct {
		frugal, accumulate bool
		most               int // matrices
	}{{false, false, 2 * layers}, {true, true, layers + 1}, {true, false, 2}} {
		if got := work(c.frugal, c.accumulate); got > c.most || !c.frugal && got < layers {
			t.Errorf("frugal %t, accumulating %t: %d matrices of work memory, want at most %d", c.frugal, c.accumulate, got, c.most)
		}
	}
}

// TestSumsOverRanksKeepTheirOrder: one rank's share may be large enough for a frugal program, and another's not.
func TestSumsOverRanksKeepTheirOrder(t *testing.T) {
	for _, frugal := range []bool{false, true} {
		in, out := slotsOf(Input, "x a b", Of(3, 4), Of(4, 64), Of(4, 32)), slotsOf(Output, "a b", Of(1, 64), Of(1, 32))
		var g Graph
		for i, s := range out {
			g.Store(s, g.Add(AllReduceSum{}, nil, g.Reduce(Sum, g.MatMul(g.Read(in[0]), g.Read(in[1+i])), 0)))
		}
		p, err := Compile("sums", [NumRegions]int{}, Target{Frugal: frugal}, Part{Graph: &g})
		if err != nil {
			t.Fatal(err)
		}
		var sizes []int
		for _, s := range p.Steps {
			if _, ok := s.Op.(Collective); ok {
				sizes = append(sizes, s.In[0].Shape.Size())
			}
		}
		if !slices.Equal(sizes, []int{64, 32}) {
			t.Errorf("frugal %t: sums of %v elements, want those of 64 first", frugal, sizes)
		}
	}
}

func TestLoans(t *testing.T) {
	got := loans([]touch{
		{0, 10, 5, true}, {0, 4, 7, false}, // stored in first, then read
		{10, 20, 6, true}, {12, 13, 2, false}, // read first
		{20, 30, 3, true}, {25, 30, 4, true}, // stored in twice
		{30, 40, 9, true},
		{40, 50, 9, false},
	})
	if want := []loan{{0, 10, 5}, {20, 30, 3}, {30, 40, 9}}; !slices.Equal(got, want) {
		t.Fatalf("loans %v, want %v", got, want)
	}
	for _, c := range []struct {
		from, to, until int
		ok              bool
	}{{0, 10, 5, true}, {2, 8, 5, true}, {0, 11, 0, false}, {20, 40, 3, true}, {31, 40, 9, true}, {40, 41, 0, false}, {15, 18, 0, false}} {
		if until, ok := covered(got, c.from, c.to); ok != c.ok || until != c.until {
			t.Errorf("%d to %d: until %d, %t; want %d, %t", c.from, c.to, until, ok, c.until, c.ok)
		}
	}
}

// TestLend: no two buffers that are alive at the same time share a place, none is there when its place is called back, and the one that
// stays longest finds room.
func TestLend(t *testing.T) {
	list := []loan{{0, 128, 10}, {128, 256, 20}}
	buffers := []*buffer{
		{size: 128, start: 0, end: 9}, {size: 100, start: 0, end: 15}, {size: 64, start: 10, end: 19}, {size: 64, start: 16, end: 19}, {size: 64, start: 3, end: 20},
	}
	left := lend(buffers, list)
	if len(left) != 2 || left[0] != buffers[2] || left[1] != buffers[4] {
		t.Errorf("left %v", left)
	}
	for i, at := range map[int]int{0: 0, 1: 128, 3: 128} {
		if b := buffers[i]; !b.lent || b.offset != at {
			t.Errorf("buffer %d: %+v, want it at %d", i, *b, at)
		}
	}
}
