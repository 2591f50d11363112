package lower_test

import (
	"errors"
	"fmt"
	"hash"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/lower"
)

// evalOf lowers one node of a float32 graph and evaluates it.
func (b *build) evalOf(nodes ...node) [][]float64 {
	b.t.Helper()
	l, err := b.lower(nodes)
	if err != nil {
		b.t.Fatal(err)
	}
	return l.eval(b.t, b.data.m)
}

// TestAt stands alone because Gorgonia's machine gives the whole tensor for At.
func TestAt(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	got := b.evalOf(b.must(gorgonia.At(b.v("x", -1, 1, 3, 4), 1, 2)))
	near(t, "x[1,2]", got[0], b.data.m["x"][6:7], 0)
}

func TestConstants(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	view, err := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6})).Slice(nil, gorgonia.S(1, 3))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		value any
		want  []float64
		op    ir.Op
	}{
		{float32(2.5), []float64{2.5}, ir.Const{}},
		{true, []float64{1}, ir.Const{}},
		{7, []float64{7}, ir.Data{}},
		{int32(-7), []float64{-7}, ir.Data{}},
		{int64(70), []float64{70}, ir.Data{}},
		{tensor.New(tensor.WithShape(3), tensor.WithBacking([]float32{1, 2, 3})), []float64{1, 2, 3}, ir.Data{}},
		{tensor.New(tensor.WithShape(3), tensor.WithBacking([]float32{2, 2, 2})), []float64{2, 2, 2}, ir.Const{}},
		{tensor.New(tensor.WithShape(2), tensor.WithBacking([]int{3, 4})), []float64{3, 4}, ir.Data{}},
		{tensor.New(tensor.WithShape(2), tensor.WithBacking([]int64{3, 4})), []float64{3, 4}, ir.Data{}},
		{tensor.New(tensor.WithShape(2), tensor.WithBacking([]int32{3, 4})), []float64{3, 4}, ir.Data{}},
		{tensor.New(tensor.WithShape(2), tensor.WithBacking([]bool{true, false})), []float64{1, 0}, ir.Data{}},
		{view, []float64{2, 3, 5, 6}, ir.Data{}},
	} {
		l, err := b.lower(gorgonia.Nodes{gorgonia.NewConstant(c.value)})
		if err != nil {
			t.Errorf("%T %v: %v", c.value, c.value, err)
			continue
		}
		if got := l.eval(t, nil)[0]; !slices.Equal(got, c.want) {
			t.Errorf("%T %v became %v", c.value, c.value, got)
		}
		if got, want := fmt.Sprintf("%T", l.outs[0].Op), fmt.Sprintf("%T", c.op); got != want {
			t.Errorf("%T %v became a %s, not a %s", c.value, c.value, got, want)
		}
	}
}

func TestIntegersConvert(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	x := b.must(gorgonia.ConvType(b.ints("i", 9, 4), tensor.Int, tensor.Float32))
	near(t, "float(i)", b.evalOf(b.must(gorgonia.Mul(x, b.c(0.5))))[0], scaled(b.data.m["i"], 0.5), 0)
}

func scaled(x []float64, by float64) []float64 {
	out := slices.Clone(x)
	for i := range out {
		out[i] *= by
	}
	return out
}

// Dropout can't be compared with Gorgonia's, whose numbers are its own and whose gradient divides by the wrong probability.
func TestDropout(t *testing.T) {
	drop := func(p float64) func(b *build) node {
		return func(b *build) node {
			return b.must(gorgonia.Dropout(b.must(gorgonia.Square(b.v("x", 0.5, 2, 8, 6))), p))
		}
	}
	for _, p := range []float64{0, 0.3, 0.5, 1} {
		t.Run(fmt.Sprint(p), opCase{f: drop(p), noTape: true}.check)
	}
	t.Run("two", opCase{noTape: true, f: func(b *build) node {
		return b.must(gorgonia.Dropout(b.must(gorgonia.Tanh(drop(0.5)(b))), 0.2))
	}}.check)

	b := newBuild(t, tensor.Float32, newData())
	y := b.must(gorgonia.Dropout(b.fixed("x", 1, 1, 200, 100), 0.25))
	kept := 0
	for _, v := range b.evalOf(y)[0] {
		switch {
		case v == 0:
		case math.Abs(v-1/0.75) < 1e-6:
			kept++
		default:
			t.Fatalf("an element became %v", v)
		}
	}
	if kept < 14700 || kept > 15300 { // five standard deviations
		t.Errorf("%d of 20000 were kept, not about 15000 (seed %d)", kept, seed)
	}

	if err := y.Op().(gorgonia.TrainModeOp).SetTraining(false); err != nil {
		t.Fatal(err)
	}
	near(t, "in evaluation", b.evalOf(y)[0], b.data.m["x"], 0)
}

func TestRandomNodes(t *testing.T) {
	// A graph each: Gorgonia takes random nodes of one shape for the same node.
	u, n := newBuild(t, tensor.Float32, newData()), newBuild(t, tensor.Float32, newData())
	got := [][]float64{
		u.evalOf(gorgonia.UniformRandomNode(u.g, tensor.Float32, -1, 3, 300, 100))[0],
		n.evalOf(gorgonia.GaussianRandomNode(n.g, tensor.Float32, 2, 0.5, 300, 100))[0],
	}
	for i, want := range []struct{ mean, std float64 }{{1, 4 / math.Sqrt(12)}, {2, 0.5}} {
		var sum, squares float64
		for _, x := range got[i] {
			sum, squares = sum+x, squares+x*x
		}
		n := float64(len(got[i]))
		mean := sum / n
		std := math.Sqrt(squares/n - mean*mean)
		if math.Abs(mean-want.mean) > 6*want.std/math.Sqrt(n) || math.Abs(std-want.std) > 0.03*want.std {
			t.Errorf("%d: mean %.4f and deviation %.4f, not %.4f and %.4f (seed %d)", i, mean, std, want.mean, want.std, seed)
		}
	}
	if lo, hi := slices.Min(got[0]), slices.Max(got[0]); lo < -1 || hi >= 3 {
		t.Errorf("uniform numbers from %v to %v, not within [-1,3)", lo, hi)
	}
}

func TestBatchNormEvaluation(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	x := b.v("x", -1, 1, 4, 2)
	y, _, _, op, err := gorgonia.BatchNorm(x, b.fixed("scale", 1, 1, 1, 2), b.fixed("bias", 0, 0, 1, 2), 0.9, 0.25)
	if err != nil {
		t.Fatal(err)
	}
	grads, err := gorgonia.Grad(b.must(gorgonia.Sum(y)), x)
	if err != nil {
		t.Fatal(err)
	}
	if err := op.SetTraining(false); err != nil {
		t.Fatal(err)
	}
	var un *lower.UnsupportedError
	if _, err := b.lower(gorgonia.Nodes{y}); !errors.As(err, &un) || !strings.Contains(un.Why, "no running statistics") {
		t.Errorf("without statistics: %v", err)
	}
	stat := func(x ...float32) tensor.Tensor { return tensor.New(tensor.WithShape(2), tensor.WithBacking(x)) }
	if err := op.SetStats(stat(0.5, -0.5), stat(0.75, 3.75)); err != nil {
		t.Fatal(err)
	}
	got := b.evalOf(y, grads[0])
	var want, dx []float64
	for i := 0; i < 8; i += 2 { // deviations 1 and 2
		want = append(want, b.data.m["x"][i]-0.5, (b.data.m["x"][i+1]+0.5)/2)
		dx = append(dx, 1, 0.5)
	}
	near(t, "y", got[0], want, 1e-6)
	near(t, "dx", got[1], dx, 1e-6)
}

// ownOp is an op of ours: it doubles. Everything but Lower is inherited from a Gorgonia op of the same shape.
type ownOp struct {
	gorgonia.Iop
	wrong bool // gives a value of another shape
	fail  bool // reports an error
}

func (ownOp) Type() hm.Type           { return hm.NewFnType(hm.TypeVariable('a'), hm.TypeVariable('a')) }
func (o ownOp) String() string        { return fmt.Sprintf("Double%v%v", o.wrong, o.fail) }
func (o ownOp) WriteHash(h hash.Hash) { h.Write([]byte(o.String())) }
func (o ownOp) Lower(g *ir.Graph, args []*ir.Value) *ir.Value {
	if o.fail {
		g.Fail(errors.New("nn: double: not today"))
	}
	if o.wrong {
		return g.Sum(args[0])
	}
	return g.Scale(args[0], 2)
}

// foreignOp is nobody's: it can run, but not be lowered.
type foreignOp struct{ gorgonia.Iop }

func (foreignOp) String() string { return "foreign" }

func (b *build) own(o ownOp, x node) node { return b.must(gorgonia.ApplyOp(o, x)) }

func TestOwnOps(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	x := b.v("x", -1, 1, 3)
	near(t, "double", b.evalOf(b.own(ownOp{}, x))[0], scaled(b.data.m["x"], 2), 0)
}

func TestErrors(t *testing.T) {
	img := func(b *build) node { return b.v("x", -1, 1, 2, 3, 6, 6) }
	for _, c := range []struct {
		name  string
		f     func(b *build) node
		typed bool
		want  []string
	}{
		{"no rule", func(b *build) node { return b.must(gorgonia.Sparsemax(b.v("x", 0, 1, 3, 4))) }, true,
			[]string{"sparsemaxOp", "use SoftMax"}},
		{"foreign op", func(b *build) node { return b.must(gorgonia.ApplyOp(foreignOp{}, b.v("x", 0, 1, 3))) }, true,
			[]string{"foreignOp", "a Lower method"}},
		{"dropped scalar", func(b *build) node { return b.must(gorgonia.Dropout(b.v("x", 0, 1), 0.5)) }, true,
			[]string{"differ between ranks"}},
		{"deep below", func(b *build) node {
			return b.must(gorgonia.Neg(b.must(gorgonia.Sparsemax(b.v("x", 0, 1, 3, 4)))))
		}, true, []string{"sparsemaxOp"}},
		{"average pool", func(b *build) node {
			return b.must(gorgonia.AveragePool2D(img(b), tensor.Shape{2, 2}, sh(0, 0), sh(2, 2)))
		}, true,
			[]string{"AvgPool", "nn.AvgPool2d"}},
		{"uneven padding", func(b *build) node {
			return b.must(gorgonia.MaxPool2D(img(b), tensor.Shape{2, 2}, sh(0, 1, 0, 1), sh(2, 2)))
		}, true,
			[]string{"MaxPool", "[0 0]", "[1 1]"}},
		{"much padding", func(b *build) node { return b.must(gorgonia.MaxPool2D(img(b), tensor.Shape{2, 2}, sh(2, 2), sh(2, 2))) }, true,
			[]string{"half the kernel [2 2]"}},
		{"statement", func(b *build) node {
			var v gorgonia.Value
			return gorgonia.Read(b.v("x", 0, 1, 3), &v)
		}, true, []string{"readOp", "ask for the node that it reads"}},
		{"assignment", func(b *build) node { return gorgonia.Set(b.v("x", 0, 1, 3), b.v("y", 0, 1, 3)) }, true,
			[]string{"letOp"}},
		{"binomial", func(b *build) node { return gorgonia.BinomialRandomNode(b.g, b.dt, 3, 0.5, 4) }, true,
			[]string{"binomial"}},
		{"random scalar", func(b *build) node { return gorgonia.UniformRandomNode(b.g, b.dt, 0, 1) }, true,
			[]string{"differ between ranks"}},
		{"probability", func(b *build) node { return b.must(gorgonia.Dropout(b.v("x", 0, 1, 3), 1.5)) }, true,
			[]string{"1.5", "0..1"}},
		{"float to int", func(b *build) node { return b.must(gorgonia.ConvType(b.v("x", 0, 1, 3), b.dt, tensor.Int)) }, true,
			[]string{"only integers convert"}},
		{"large integer", func(b *build) node { return gorgonia.NewConstant(1 << 40) }, false,
			[]string{"1099511627776", "32 bits"}},
		{"constant type", func(b *build) node { return gorgonia.NewConstant(byte(3)) }, true,
			[]string{"uint8", "float32 or int"}},
		{"wrong shape of ours", func(b *build) node { return b.own(ownOp{wrong: true}, b.v("x", 0, 1, 3)) }, false,
			[]string{"Doubletruefalse", "[3]", "[]"}},
		{"error of ours", func(b *build) node { return b.own(ownOp{fail: true}, b.v("x", 0, 1, 3)) }, false,
			[]string{"Doublefalsetrue", "not today"}},
		{"nil", func(b *build) node { return nil }, false, []string{"output 0 is nil"}},
		{"input taken away", func(b *build) node {
			x := b.v("x", 0, 1, 3)
			if _, err := gorgonia.Grad(b.must(gorgonia.Sum(x)), x); err != nil {
				b.t.Fatal(err)
			}
			// Gorgonia knows its own constant one only, which Grad has brought.
			one := slices.IndexFunc(b.g.AllNodes(), func(n node) bool { return n.Name() == "1" })
			sum := b.must(gorgonia.Add(b.g.AllNodes()[one], x))
			double := b.must(gorgonia.Mul(sum, b.c(2)))
			b.must(gorgonia.Log(sum)) // becomes log1p(x), and sum is gone
			return double
		}, false, []string{"removed its input 0", "build that input anew"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBuild(t, tensor.Float32, newData())
			n := c.f(b)
			_, err := b.lower(gorgonia.Nodes{n})
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range append(c.want, "lower: ") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			var un *lower.UnsupportedError
			if got := errors.As(err, &un); got != c.typed {
				t.Errorf("%q: an UnsupportedError: %v", err, got)
			} else if got && c.name != "deep below" && un.Node != n.Name() {
				t.Errorf("%q names node %q, not %q", err, un.Node, n.Name())
			}
		})
	}
}

func TestFloat64IsRefused(t *testing.T) {
	b := newBuild(t, tensor.Float64, newData())
	_, err := b.lower(gorgonia.Nodes{b.must(gorgonia.Square(b.v("x", 0, 1, 3)))})
	var un *lower.UnsupportedError
	if !errors.As(err, &un) || !strings.Contains(err.Error(), "float64") || !strings.Contains(err.Error(), "tensor.Float32") {
		t.Errorf("got %v", err)
	}
}

func TestLeafErrors(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	x := b.v("x", 0, 1, 3)
	broken := errors.New("no such slot")
	for _, c := range []struct {
		leaf func(g *ir.Graph) (*ir.Value, error)
		want string
	}{
		{func(*ir.Graph) (*ir.Value, error) { return nil, broken }, "no such slot"},
		{func(*ir.Graph) (*ir.Value, error) { return nil, nil }, "no value"},
		{func(g *ir.Graph) (*ir.Value, error) { return g.Const(0, 4), nil }, "[4]"},
	} {
		var g ir.Graph
		_, err := lower.Lower(&g, gorgonia.Nodes{x}, func(node) (*ir.Value, error) { return c.leaf(&g) })
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("got %v, want %q of node x", err, c.want)
		}
		if c.want == broken.Error() && !errors.Is(err, broken) {
			t.Errorf("%v does not wrap the leaf's error", err)
		}
	}
	var g ir.Graph
	g.Fail(broken)
	if _, err := lower.Lower(&g, gorgonia.Nodes{x}, nil); !errors.Is(err, broken) {
		t.Errorf("a graph in error: %v", err)
	}
}

// TestIndexOutOfRange: an index is checked when the step runs.
func TestIndexOutOfRange(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	l, err := b.lower(gorgonia.Nodes{b.must(gorgonia.ByIndices(b.v("x", 0, 1, 3, 2), b.ints("i", 3, 4), 0))})
	if err != nil {
		t.Fatal(err)
	}
	check := 0
	for _, v := range l.g.Values {
		if c, ok := v.Op.(ir.CheckIndex); ok && c.Bound == 3 && c.Verify([]int32{0, 2}) == nil && c.Verify([]int32{-1}) != nil {
			check++
		}
	}
	if check != 1 {
		t.Errorf("%d checks of indices below 3, not 1", check)
	}
}

// TestDeep: the walk does not recurse.
func TestDeep(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	n := b.v("x", 0, 1, 2)
	one := b.c(0.5)
	const depth = 3000
	for range depth {
		n = b.must(gorgonia.Add(n, one))
	}
	near(t, "sum", b.evalOf(n)[0], []float64{b.data.m["x"][0] + depth/2, b.data.m["x"][1] + depth/2}, 1e-9)
}

// TestNames: values carry the names of nodes, for dumps and errors.
func TestNames(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	y := b.must(gorgonia.Square(b.v("weights", 0, 1, 3)))
	gorgonia.WithName("energy")(y)
	grads, err := gorgonia.Grad(b.must(gorgonia.Sum(y)), b.wrt...)
	if err != nil {
		t.Fatal(err)
	}
	l, err := b.lower(append(gorgonia.Nodes{y}, grads...))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range l.g.Values {
		names = append(names, v.Name)
	}
	for _, want := range []string{"weights", "energy", "grad of weights"} {
		if !slices.Contains(names, want) {
			t.Errorf("no value is called %q: %q", want, names)
		}
	}
}

// Two uses of one node are one value, and shared constants too.
func TestShared(t *testing.T) {
	b := newBuild(t, tensor.Float32, newData())
	e := b.must(gorgonia.Exp(b.v("x", 0, 1, 3)))
	l, err := b.lower(gorgonia.Nodes{b.must(gorgonia.HadamardProd(e, e)), e})
	if err != nil {
		t.Fatal(err)
	}
	exps := 0
	for _, v := range l.g.Values {
		if m, ok := v.Op.(ir.Map); ok && m.Fn == ir.Exp {
			exps++
		}
	}
	if exps != 1 {
		t.Errorf("%d exponentials for one node", exps)
	}
}
