package ir

import (
	"strings"
	"testing"
)

// slotsOf lays the given shapes one after the other in a region.
func slotsOf(r Region, names string, shapes ...Shape) []*Slot {
	var out []*Slot
	off := 0
	for i, name := range strings.Fields(names) {
		out = append(out, &Slot{Region: r, Name: name, Offset: off, Shape: shapes[i]})
		off = align(off + shapes[i].Size())
	}
	return out
}

func end(slots []*Slot) int { return align(slots[len(slots)-1].End()) }

// trainingStep is one linear layer with relu, squared loss and momentum: a forward and backward graph, a collective, an
// update.
func trainingStep(t *testing.T) *Program {
	t.Helper()
	shapes := []Shape{Of(5, 3), Of(5)}
	p := slotsOf(Params, "w b", shapes...)
	d := slotsOf(Grads, "w b", shapes...)
	x := &Slot{Region: Input, Name: "x", Shape: Of(4, 3)}
	loss := &Slot{Region: Output, Name: "loss", Shape: Of()}
	n := end(p)

	var g Graph
	g.SetScope("fc")
	w, b, in := g.Read(p[0]), g.Read(p[1]), g.Read(x)
	y := g.Map(Relu, g.Plus(g.MatMul(in, g.T(w)), b))
	g.SetScope("loss")
	g.Store(loss, g.Sum(g.Map(Square, y)))
	dy := g.Times(g.Scale(y, 2), g.Map(Gt, y, g.Const(0)))
	g.Store(d[0], g.T(g.MatMul(g.T(in), dy)))
	g.Store(d[1], g.Sum(dy, 0))

	var u Graph
	flat := func(r Region, name string) *Slot { return &Slot{Region: r, Name: name, Shape: Of(n)} }
	fp, fg, fm := flat(Params, "all"), flat(Grads, "all"), flat(State, "momentum")
	lr := u.Read(&Slot{Region: Hyper, Name: "lr", Shape: Of()})
	m := u.Plus(u.Scale(u.Read(fm), 0.9), u.Read(fg))
	u.Store(fm, m)
	u.Store(fp, u.Minus(u.Read(fp), u.Times(lr, m)))

	prog, err := Compile("train", [NumRegions]int{Params: n, Grads: n, State: n}, Target{},
		Part{Graph: &g}, Part{Collective: &Collective{Kind: AllReduce}, On: fg}, Part{Graph: &u})
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

func kinds(p *Program) string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, opName(s.Op))
	}
	return strings.Join(out, " ")
}

func TestTrainingStepFuses(t *testing.T) {
	p := trainingStep(t)
	want := "MatMul Reduce Fused MatMul Collective Fused"
	if got := kinds(p); got != want {
		t.Errorf("steps are %s, want %s\n%s", got, want, p)
	}
	first := p.Steps[0]
	if first.Epilogue.Bias == 0 || !first.Epilogue.Relu {
		t.Errorf("the first product takes in neither bias nor relu:\n%s", p)
	}
	if dw := p.Steps[3]; !dw.Epilogue.Sums || len(dw.Out) != 2 {
		t.Errorf("the product for the weight's gradient does not make the bias's:\n%s", p)
	}
	update := p.Steps[len(p.Steps)-1]
	if len(update.Out) != 2 || update.Out[0].Region != State || update.Out[1].Region != Params {
		t.Errorf("the update is not one loop in place:\n%s", p)
	}
	for _, s := range p.Steps {
		for _, o := range s.Out {
			if o.Region == Grads && opName(s.Op) == "Copy" {
				t.Errorf("a gradient is copied:\n%s", p)
			}
		}
	}
	mem := p.Memory()
	if mem.Parameters != 512 || mem.Gradients != 512 || mem.OptimizerState != 512 {
		t.Errorf("memory is %+v", mem)
	}
	if want := roundUp(int64(p.Size[Work])*4, AllocUnit); mem.Activations != want {
		t.Errorf("activations take %d, want %d", mem.Activations, want)
	}
}

// TestLossesWithTheirGradient: cross entropies and their gradient are one step, unless one needs the other, or they are of different things.
func TestLossesWithTheirGradient(t *testing.T) {
	logits, labels := &Slot{Region: Input, Shape: Of(8, 3)}, &Slot{Region: Input, Offset: 24, Shape: Of(8), DType: I32}
	losses, grad := &Slot{Region: Output, Shape: Of(8)}, &Slot{Region: Output, Offset: 8, Shape: Of(8, 3)}
	for _, c := range []struct {
		name string
		make func(g *Graph, x, y, w *Value) (loss, up *Value)
		want string
	}{
		{"together", func(g *Graph, x, y, w *Value) (loss, up *Value) {
			return g.Add(CrossEntropy{Ignore: 1}, nil, x, y, w), g.Const(1, 8)
		}, "CrossEntropyGrad"},
		{"the gradient of a function of the losses", func(g *Graph, x, y, w *Value) (loss, up *Value) {
			l := g.Add(CrossEntropy{Ignore: 1}, nil, x, y, w)
			return l, g.Map(Tanh, l)
		}, "CrossEntropy Fused CrossEntropyGrad"},
		{"another smoothing", func(g *Graph, x, y, w *Value) (loss, up *Value) {
			return g.Add(CrossEntropy{Ignore: 1, Smoothing: 0.5}, nil, x, y, w), g.Const(1, 8)
		}, "CrossEntropy CrossEntropyGrad"},
		{"other weights", func(g *Graph, x, y, w *Value) (loss, up *Value) {
			return g.Add(CrossEntropy{Ignore: 1}, nil, x, y, g.Data([]float32{1, 2, 3}, 3)), g.Const(1, 8)
		}, "CrossEntropy CrossEntropyGrad"},
	} {
		var g Graph
		x, y, w := g.Read(logits), g.Read(labels), g.Const(1, 3)
		loss, up := c.make(&g, x, y, w)
		g.Store(losses, loss)
		g.Store(grad, g.Add(CrossEntropyGrad{Ignore: 1}, nil, x, y, w, up))
		p, err := Compile(c.name, [NumRegions]int{Input: 32, Output: 32}, Target{}, Part{Graph: &g})
		if err != nil {
			t.Fatal(err)
		}
		if got := kinds(p); got != c.want {
			t.Errorf("%s: steps are %s, want %s\n%s", c.name, got, c.want, p)
		}
		if last := p.Steps[len(p.Steps)-1]; last.Epilogue.Losses != (len(p.Steps) == 1) || len(p.Steps) == 1 && last.Out[1].Region != Output {
			t.Errorf("%s: the losses are not beside their gradient:\n%s", c.name, p)
		}
	}
}

func TestStoreThatSwapsSlots(t *testing.T) {
	a := &Slot{Region: Params, Name: "a", Shape: Of(8)}
	b := &Slot{Region: Params, Name: "b", Offset: 64, Shape: Of(8)}
	var g Graph
	g.Store(a, g.Read(b))
	g.Store(b, g.Read(a))
	p, err := Compile("swap", [NumRegions]int{Params: 128}, Target{}, Part{Graph: &g})
	if err != nil {
		t.Fatal(err)
	}
	if got := kinds(p); got != "Copy Copy Copy Copy" {
		t.Errorf("steps are %s", got)
	}
}

func TestSharedAndFolded(t *testing.T) {
	x := &Slot{Region: Input, Name: "x", Shape: Of(6)}
	out := slotsOf(Output, "a b", Of(6), Of(6))
	var g Graph
	r := g.Read(x)
	g.Store(out[0], g.Plus(g.Times(r, g.Const(1)), g.Map(Exp, r)))
	g.Store(out[1], g.Plus(g.Map(Exp, g.Neg(g.Neg(r))), g.Plus(r, g.Times(g.Const(0), g.Const(3)))))
	var checks []Check
	s, err := simplify(&g, &checks)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Values) != 3 {
		t.Errorf("want read, exp and one sum, got\n%s", s)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	x := &Slot{Region: Input, Name: "x", Shape: Of(4, 3)}
	for _, c := range []struct {
		name, want string
		build      func(g *Graph)
	}{
		{"product", "no product of [4,3] and [4,3]", func(g *Graph) { g.MatMul(g.Read(x), g.Read(x)) }},
		{"broadcast", "shapes [4,3] and [4] do not broadcast", func(g *Graph) { g.Plus(g.Read(x), g.Const(0, 4)) }},
		{"reshape", "[4,3] has 12 elements, [5] has 5", func(g *Graph) { g.Reshape(g.Read(x), 5) }},
		{"store", "x f32[4,3] takes a value of that shape", func(g *Graph) { g.Store(x, g.Const(0, 3)) }},
		{"stored twice", "overlaps", func(g *Graph) {
			o := &Slot{Region: Output, Name: "o", Shape: Of()}
			g.Store(o, g.Const(0))
			g.Store(o, g.Const(1))
		}},
		{"kernel", "larger than the padded input", func(g *Graph) {
			g.Add(Conv2d{Window{Kernel: [2]int{5, 5}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}}, nil, g.Const(0, 1, 1, 4, 4), g.Const(0, 1, 1, 5, 5))
		}},
	} {
		var g Graph
		g.SetScope("layer")
		c.build(&g)
		if err := g.Err(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "layer: ") {
			t.Errorf("%s: error is %v, want one with %q that names the layer", c.name, err, c.want)
		}
		if _, err := Compile("broken", [NumRegions]int{}, Target{}, Part{Graph: &g}); err == nil {
			t.Errorf("%s: a broken graph compiles", c.name)
		}
	}
}

// TestHalvesAreBroadcast as the words that they lie in, and nothing else is done with them.
func TestHalvesAreBroadcast(t *testing.T) {
	size := [NumRegions]int{Grads: 64}
	for _, c := range []struct {
		kind   CollectiveKind
		at, n  int
		wanted bool
	}{{BroadcastFrom, 32, 64, true}, {BroadcastFrom, 31, 64, false}, {BroadcastFrom, 32, 63, false}, {AllReduce, 32, 64, false}, {AllGather, 0, 64, false}} {
		on := &Slot{Region: Grads, Name: "g", Offset: c.at, Shape: Of(c.n), DType: BF16}
		p, err := Compile("exchange", size, Target{}, Part{Collective: &Collective{Kind: c.kind}, On: on})
		if !c.wanted {
			if err == nil || !strings.Contains(err.Error(), "halves can only be broadcast") {
				t.Errorf("%s of %d from %d on: %v", c.kind, c.n, c.at, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, want := p.Steps[0].Out[0].String(), "grads+16:f32[32]"; got != want {
			t.Errorf("the broadcast is of %s, want %s", got, want)
		}
	}
}

// BenchmarkCompile compiles a chain of as many layers as a large transformer has ops.
func BenchmarkCompile(b *testing.B) {
	const layers = 300
	build := func() *Graph {
		var g Graph
		h := g.Read(&Slot{Region: Input, Name: "x", Shape: Of(64, 32)})
		first := h
		for i := range layers {
			w := g.Read(&Slot{Region: Params, Name: "w", Offset: 1024 * i, Shape: Of(32, 32)})
			y := g.MatMul(h, w)
			h = g.Plus(h, g.Times(y, g.Map(Sigmoid, g.Scale(y, 1.7))))
			mean := g.Scale(g.Reduce(Sum, h, 1), 1./32)
			h = g.Minus(h, mean)
		}
		d := h
		for range layers {
			d = g.Times(d, g.Plus(g.Map(Tanh, d), first))
			d = g.MatMul(d, g.Const(1, 32, 32))
		}
		g.Store(&Slot{Region: Output, Name: "out", Shape: Of(64, 32)}, d)
		return &g
	}
	for b.Loop() {
		if _, err := Compile("chain", [NumRegions]int{Params: 1024 * layers}, Target{}, Part{Graph: build()}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestScalesJoin(t *testing.T) {
	x := &Slot{Region: Input, Name: "x", Shape: Of(2, 3)}
	lr := &Slot{Region: Hyper, Name: "lr", Shape: Of()}
	out := slotsOf(Output, "y z", Of(2, 3), Of(2, 3))
	var g Graph
	scaled := g.Times(g.Scale(g.Times(g.Read(x), g.Read(lr)), 3), g.Const(0.5))
	g.Store(out[0], scaled)
	// A product with another use is made once, for both.
	twice := g.Scale(g.Map(Exp, g.Read(x)), 3)
	g.Store(out[1], g.Plus(g.Scale(twice, 5), twice))
	var checks []Check
	s, err := simplify(&g, &checks)
	if err != nil {
		t.Fatal(err)
	}
	wide := 0
	for _, v := range s.Values {
		if isMap(v, Mul) && v.Shape.Size() > 1 {
			wide++
		}
	}
	if wide != 3 {
		t.Errorf("%d products of all elements, want 3:\n%s", wide, s)
	}
}

// A product takes in relu's gradient, unless a loop follows that can do it.
func TestProductsTakeMasks(t *testing.T) {
	draw := func(after Fn) *Program {
		in := func(offset int, dims ...int) *Slot {
			return &Slot{Region: Input, Name: "in", Offset: offset, Shape: Of(dims...)}
		}
		out := &Slot{Region: Output, Name: "out", Shape: Of(4, 5)}
		var g Graph
		y := g.Map(Relu, g.Read(in(0, 4, 5)))
		dx := g.Select(g.Map(Le, y, g.Const(0)), g.Const(0), g.MatMul(g.Read(in(64, 4, 3)), g.Read(in(128, 3, 5))))
		if after != Add {
			dx = g.Map(after, dx)
		}
		g.Store(out, dx)
		p, err := Compile("mask", [NumRegions]int{}, Target{}, Part{Graph: &g})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := draw(Add)
	if got := kinds(p); got != "Fused MatMul" || p.Steps[1].Epilogue.Mask == 0 || p.Steps[1].In[p.Steps[1].Epilogue.Mask].Offset != p.Steps[0].Out[0].Offset {
		t.Errorf("the product does not take in the mask:\n%s", p)
	}
	if got := kinds(draw(Exp)); got != "Fused MatMul Fused" && got != "MatMul Fused" {
		t.Errorf("steps are %s", got)
	}
}

// Behind a dropout, relu's gradient needs no more than what the dropout left, if that is in memory anyway and no number has become 0.
func TestDropoutsMaskIsItsResults(t *testing.T) {
	draw := func(scale float64, keep bool) *Program {
		slot := func(r Region, offset int) *Slot { return &Slot{Region: r, Name: "x", Offset: offset, Shape: Of(4, 64)} }
		var g Graph
		x := g.Map(Relu, g.Read(slot(Input, 0)))
		dropped := g.Map(Lt, g.Rand(1, 4, 64), g.Const(0.25))
		drop := func(v *Value) *Value { return g.Select(dropped, g.Const(0), g.Scale(v, scale)) }
		y := drop(x)
		if keep {
			g.Store(slot(Output, 0), y)
		}
		g.Store(slot(Output, 256), g.Select(g.Map(Le, x, g.Const(0)), g.Const(0), drop(g.Read(slot(Input, 256)))))
		p, err := Compile("dropout", [NumRegions]int{}, Target{}, Part{Graph: &g})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	wheres := func(p *Program) (n int) {
		for _, s := range p.Steps {
			for _, c := range s.Loop.Code {
				if c.Kind == Apply && c.Fn == Where {
					n++
				}
			}
		}
		return n
	}
	for _, c := range []struct {
		scale float64
		keep  bool
		want  int
	}{{4. / 3, true, 2}, {4. / 3, false, 2}, {0.5, true, 3}} {
		if p := draw(c.scale, c.keep); wheres(p) != c.want {
			t.Errorf("scaled by %v, kept %v: %d choices, want %d:\n%s", c.scale, c.keep, wheres(p), c.want, p)
		}
	}
}
