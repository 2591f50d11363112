package ir

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata anew")

// golden compares text with a file of testdata. go test ./internal/ir -update writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

// layers is forward and backward of two linear layers with relu between them, as they come from a model.
func layers() *Graph {
	p := slotsOf(Params, "w1 b1 w2 b2", Of(6, 5), Of(6), Of(3, 6), Of(3))
	d := slotsOf(Grads, "w1 b1 w2 b2", Of(6, 5), Of(6), Of(3, 6), Of(3))
	g := &Graph{}
	x, y := g.Read(&Slot{Region: Input, Name: "x", Shape: Of(4, 5)}), g.Read(&Slot{Region: Input, Name: "y", Offset: 20, Shape: Of(4), DType: I32})
	w1, b1, w2, b2 := g.Read(p[0]), g.Read(p[1]), g.Read(p[2]), g.Read(p[3])
	g.SetScope("first")
	h := g.Map(Relu, g.Plus(g.MatMul(x, g.T(w1)), b1))
	g.SetScope("second")
	z := g.Plus(g.MatMul(h, g.T(w2)), b2)
	g.SetScope("loss")
	ones := g.Const(1, 3)
	g.Store(&Slot{Region: Output, Name: "loss", Shape: Of()}, g.Sum(g.Add(CrossEntropy{}, nil, z, y, ones)))
	dz := g.Add(CrossEntropyGrad{}, nil, z, y, ones, g.Const(0.25, 4))
	g.SetScope("second grad")
	g.Store(d[2], g.MatMul(g.T(dz), h))
	g.Store(d[3], g.Sum(dz, 0))
	dh := g.MatMul(dz, w2)
	g.SetScope("first grad")
	da := g.Select(g.Map(Le, h, g.Const(0)), g.Const(0), dh)
	g.Store(d[0], g.MatMul(g.T(da), x))
	g.Store(d[1], g.Sum(da, 0))
	return g
}

func TestRounding(t *testing.T) {
	g, err := Rounded(layers(), BF16)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "rounded.txt", g.String())
	again, err := Rounded(g, BF16)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(g.String(), again.String()); d != "" {
		t.Errorf("done again, the pass does more: %s", d)
	}
}

// A sample is rounded alike whether it comes alone or with others.
func TestRoundingOfOneRow(t *testing.T) {
	var ops [2][]string
	for n := range ops {
		p := slotsOf(Params, "w1 b1 w2 k1 c1 k2", Of(6, 5), Of(6), Of(3, 6), Of(4, 2, 1, 1), Of(4), Of(3, 4, 1, 1))
		g := &Graph{}
		out := func(at int, v *Value) {
			g.Store(&Slot{Region: Output, Name: "out", Offset: at, Shape: v.Shape}, v)
		}
		x := g.Read(&Slot{Region: Input, Name: "x", Shape: Of(n+1, 5)})
		out(0, g.MatMul(g.Map(Relu, g.Plus(g.MatMul(x, g.T(g.Read(p[0]))), g.Read(p[1]))), g.T(g.Read(p[2]))))
		win := Window{Kernel: [2]int{1, 1}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
		image := g.Read(&Slot{Region: Input, Name: "image", Offset: 10, Shape: Of(n+1, 2, 1, 1)})
		y := g.Plus(g.Add(Conv2d{win}, nil, image, g.Read(p[3])), g.Reshape(g.Read(p[4]), 4, 1, 1))
		out(6, g.Add(Conv2d{win}, nil, y, g.Read(p[5])))
		rounded, err := Rounded(g, BF16)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range rounded.Values {
			if _, ok := v.Op.(Broadcast); !ok {
				ops[n] = append(ops[n], opName(v.Op))
			}
		}
	}
	if d := cmp.Diff(ops[1], ops[0]); d != "" {
		t.Errorf("-of two, +of one: %s", d)
	}
}

// Where a device has them, what the pass has rounded lies in memory as halves.
func TestHalvesInMemory(t *testing.T) {
	size := [NumRegions]int{Params: 256, Grads: 256}
	for name, target := range map[string]Target{
		"halves.txt": {Half: F16, Traits: Traits{Halves: true}},
		"floats.txt": {Half: F16},
	} {
		p, err := Compile("train", size, target, Part{Graph: layers()})
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, p.String())
	}
}

// With a copy of the parameters in halves products read that, and who stores parameters stores the copy with them, in one loop.
func TestRoundedParams(t *testing.T) {
	const n = 256
	size := [NumRegions]int{Params: n + n/2, Grads: n}
	all := &Slot{Region: Params, Name: "all", Shape: Of(n)}
	u := &Graph{}
	u.Store(all, u.Minus(u.Read(all), u.Scale(u.Read(&Slot{Region: Grads, Name: "all", Shape: Of(n)}), 0.1)))
	target := Target{Half: BF16, RoundedParams: 2 * n, Traits: Traits{Halves: true}}
	p, err := Compile("train", size, target, Part{Graph: layers()}, Part{Graph: u}, Part{Graph: Touch(all)})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "copy.txt", p.String())
}

// The gradient of max-pooling and relu chooses among the elements of what comes before, so it is that which is rounded, once.
func TestRoundingGoesThroughChoices(t *testing.T) {
	g := &Graph{}
	read := func(name string, dims ...int) *Value {
		s := &Slot{Region: Input, Name: name, Shape: Of(dims...)}
		for _, v := range g.Values {
			if r, ok := v.Op.(Read); ok {
				s.Offset = r.Slot.End()
			}
		}
		return g.Read(s)
	}
	win := Window{Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
	pool := Window{Kernel: [2]int{2, 2}, Stride: [2]int{2, 2}, Dilation: [2]int{1, 1}}
	x, w, dy, mask := read("x", 2, 1, 8, 8), read("w", 4, 1, 3, 3), read("dy", 2, 36), read("mask", 2, 36)
	y := g.Map(Relu, g.Add(Conv2d{win}, nil, x, w))
	out := func(name string, at int, v *Value) {
		g.Store(&Slot{Region: Output, Name: name, Offset: at, Shape: v.Shape}, v)
	}
	flat := g.Reshape(g.Add(Pool2d{Mode: MaxPool, Pool: pool}, nil, y), 2, 36)
	out("y", 0, g.MatMul(flat, g.T(g.Times(dy, mask))))
	dp := g.Reshape(g.Times(dy, mask), 2, 4, 3, 3)
	da := g.Select(g.Map(Le, y, g.Const(0)), g.Const(0), g.Add(Pool2dGrad{Mode: MaxPool, Pool: pool}, nil, y, dp))
	out("dw", 16, g.Add(Conv2dGradW{win}, nil, x, da))
	out("db", 64, g.Sum(da, 0, 2, 3))
	got, err := Rounded(g, BF16)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "choices.txt", got.String())
}
