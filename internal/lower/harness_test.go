package lower_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
	"github.com/tandem-train/tandem/internal/lower"
)

// The tests build every graph twice: in float64 for Gorgonia's tape machine, and in float32 for Lower, whose graph package ref
// evaluates in float64. Both see the same float32 numbers, so what differs is the arithmetic and the rounding of constants.

var seed = rand.Uint64()

func TestMain(m *testing.M) {
	fmt.Printf("seed %d\n", seed)
	os.Exit(m.Run())
}

type node = *gorgonia.Node

// data is the content of variables by name, made when a name is first used.
type data struct {
	rng *rand.Rand
	m   map[string][]float64
}

func newData() *data {
	return &data{rng: rand.New(rand.NewPCG(seed, 1)), m: map[string][]float64{}}
}

// build makes one of the two graphs.
type build struct {
	t    *testing.T
	g    *gorgonia.ExprGraph
	dt   tensor.Dtype
	data *data
	vars map[string]node
	wrt  gorgonia.Nodes
}

func newBuild(t *testing.T, dt tensor.Dtype, d *data) *build {
	return &build{t: t, g: gorgonia.NewGraph(), dt: dt, data: d, vars: map[string]node{}}
}

// must unwraps the result of a Gorgonia function.
func (b *build) must(n node, err error) node {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("building the %v graph: %v", b.dt, err)
	}
	return n
}

// fixed is a variable with numbers in lo..hi that no gradient is asked for.
func (b *build) fixed(name string, lo, hi float64, shape ...int) node {
	if n := b.vars[name]; n != nil {
		return n
	}
	if b.data.m[name] == nil {
		// One number from a part of each of n equal intervals, which leaves out its ends and middle: no two are nearly the same,
		// and none is nearly 0 when lo is -hi. So differences meet no kink.
		x := make([]float64, ir.Shape(shape).Size())
		for i, k := range b.data.rng.Perm(len(x)) {
			x[i] = float64(float32(lo + (hi-lo)*(float64(k)+0.05+0.3*b.data.rng.Float64())/float64(len(x))))
		}
		b.data.m[name] = x
	}
	n := gorgonia.NewTensor(b.g, b.dt, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name))
	b.vars[name] = n
	return n
}

// v is a variable with numbers in lo..hi.
func (b *build) v(name string, lo, hi float64, shape ...int) node {
	isNew := b.vars[name] == nil
	n := b.fixed(name, lo, hi, shape...)
	if isNew {
		b.wrt = append(b.wrt, n)
	}
	return n
}

// ints is a variable of integers below bound.
func (b *build) ints(name string, bound int, shape ...int) node {
	if b.data.m[name] == nil {
		x := make([]float64, ir.Shape(shape).Size())
		for i := range x {
			x[i] = float64(b.data.rng.IntN(bound))
		}
		b.data.m[name] = x
	}
	n := gorgonia.NewTensor(b.g, tensor.Int, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name))
	b.vars[name] = n
	return n
}

// c is a scalar constant.
func (b *build) c(x float64) node {
	if b.dt == tensor.Float32 {
		return gorgonia.NewConstant(float32(x))
	}
	return gorgonia.NewConstant(x)
}

// cost makes a scalar of out that every element of it moves differently.
func (b *build) cost(out node) node {
	shape := out.Shape()
	if out.IsScalar() {
		return b.must(gorgonia.HadamardProd(out, b.c(0.7)))
	}
	r := b.fixed("r", 0.5, 2, shape...)
	return b.must(gorgonia.Sum(b.must(gorgonia.HadamardProd(out, r))))
}

// tape runs nodes on Gorgonia's own machine.
func (b *build) tape(nodes gorgonia.Nodes) [][]float64 {
	b.t.Helper()
	values := make([]gorgonia.Value, len(nodes))
	for i, n := range nodes {
		gorgonia.Read(n, &values[i])
	}
	for name, n := range b.vars {
		x := b.data.m[name]
		var v any = append([]float64(nil), x...)
		if n.Dtype() == tensor.Int {
			ints := make([]int, len(x))
			for i := range x {
				ints[i] = int(x[i])
			}
			v = ints
		}
		var err error
		if n.Dims() == 0 {
			err = gorgonia.Let(n, x[0])
		} else {
			err = gorgonia.Let(n, tensor.New(tensor.WithShape(n.Shape()...), tensor.WithBacking(v)))
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
	m := gorgonia.NewTapeMachine(b.g)
	if err := m.RunAll(); err != nil {
		b.t.Fatalf("tape machine: %v", err)
	}
	if err := m.Close(); err != nil {
		b.t.Fatal(err)
	}
	out := make([][]float64, len(nodes))
	for i, v := range values {
		out[i] = float64s(b.t, v)
	}
	return out
}

func float64s(t *testing.T, v gorgonia.Value) []float64 {
	if d, ok := v.(*tensor.Dense); ok && d.RequiresIterator() {
		v = d.Materialize().(gorgonia.Value)
	}
	truth := map[bool]float64{true: 1}
	switch x := v.Data().(type) {
	case float64:
		return []float64{x}
	case []float64:
		return append([]float64(nil), x...)
	case bool:
		return []float64{truth[x]}
	case []bool:
		var f []float64
		for _, e := range x {
			f = append(f, truth[e])
		}
		return f
	}
	t.Fatalf("a value of %T", v.Data())
	return nil
}

// lowered is the program of some nodes, ready to be evaluated on any data.
type lowered struct {
	g     *ir.Graph
	outs  []*ir.Value
	slots map[string]*ir.Slot
	size  int
}

func (b *build) lower(nodes gorgonia.Nodes) (*lowered, error) {
	l := &lowered{g: &ir.Graph{}, slots: map[string]*ir.Slot{}}
	var err error
	l.outs, err = lower.Lower(l.g, nodes, func(n node) (*ir.Value, error) {
		if l.slots[n.Name()] != nil {
			return nil, fmt.Errorf("asked for %s twice", n.Name())
		}
		s := &ir.Slot{Region: ir.Input, Name: n.Name(), Offset: l.size, Shape: ir.Shape(n.Shape())}
		if n.Dtype() == tensor.Int {
			s.DType = ir.I32
		}
		l.slots[n.Name()] = s
		l.size += s.Shape.Size()
		return l.g.Read(s), nil
	})
	return l, err
}

func (l *lowered) eval(t *testing.T, m map[string][]float64) [][]float64 {
	t.Helper()
	e := ref.NewEnv([ir.NumRegions]int{ir.Input: l.size})
	e.Runtime = ir.Runtime{Seed: seed, Step: 3}
	for name, s := range l.slots {
		copy(e.At(s), m[name])
	}
	all, err := ref.Values(e, l.g)
	if err != nil {
		t.Fatal(err)
	}
	out := make([][]float64, len(l.outs))
	for i, v := range l.outs {
		out[i] = all[v.ID]
	}
	return out
}

// compile checks that the passes accept the graph, with every output stored.
func (l *lowered) compile(t *testing.T) {
	t.Helper()
	n := 0
	for i, v := range l.outs {
		s := &ir.Slot{Region: ir.Output, Name: fmt.Sprint(i), Offset: n, Shape: v.Shape, DType: v.DType}
		n += v.Shape.Size()
		l.g.Store(s, v)
	}
	if _, err := ir.Compile(t.Name(), [ir.NumRegions]int{ir.Input: l.size, ir.Output: n}, ir.Target{}, ir.Part{Graph: l.g}); err != nil {
		t.Errorf("the graph does not compile: %v", err)
	}
}

// near fails the test unless got is want within tol, relative to the largest element of want or to 1e-3.
func near(t *testing.T, what string, got, want []float64, tol float64) {
	t.Helper()
	if d := distance(got, want); !(d <= tol) {
		t.Errorf("%s: off by %.3g (seed %d)\n got %.7g\nwant %.7g", what, d, seed, got, want)
	}
}

func distance(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	scale, worst := 1e-3, 0.
	for i := range want {
		scale = max(scale, math.Abs(want[i]))
		if math.IsNaN(want[i]) && math.IsNaN(got[i]) {
			continue
		}
		worst = max(worst, math.Abs(got[i]-want[i])) // NaN if one of them is
	}
	return worst / scale
}

// opCase is a function to lower with its gradient.
type opCase struct {
	name string
	f    func(b *build) node

	noGrad     bool // not differentiable
	noTape     bool // Gorgonia can't run it, or it is random: only the gradient is compared
	noTapeGrad bool // Gorgonia runs only the forward pass, or the gradient wrongly
	noDiff     bool // too large or too kinky for differences
	badGrad    bool // Gorgonia derives a wrong gradient, which is lowered as it stands
}

// check compares forward values and gradients with Gorgonia's machine, and gradients with differences of the lowered cost.
func (c opCase) check(t *testing.T) {
	d := newData()
	nodes := func(b *build, grad bool) gorgonia.Nodes {
		out := c.f(b)
		ns := gorgonia.Nodes{out}
		if grad {
			cost := b.cost(out)
			gs, err := gorgonia.Grad(cost, b.wrt...)
			if err != nil {
				t.Fatalf("Grad: %v", err)
			}
			ns = append(append(ns, cost), gs...)
		}
		return ns
	}
	b32 := newBuild(t, tensor.Float32, d)
	ns := nodes(b32, !c.noGrad)
	l, err := b32.lower(ns)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range ns {
		if !l.outs[i].Shape.Equal(ir.Shape(n.Shape())) {
			t.Errorf("%s: lowered to shape %v, the node has %v", n.Name(), l.outs[i].Shape, n.Shape())
		}
	}
	got := l.eval(t, d.m)
	defer l.compile(t) // last, as it adds stores

	if !c.noTape {
		b64 := newBuild(t, tensor.Float64, d)
		want := b64.tape(nodes(b64, !c.noGrad && !c.noTapeGrad))
		for i := range want {
			near(t, "against the tape machine: "+what(b32, i), got[i], want[i], 1e-5)
		}
	}
	if c.noGrad || c.noDiff {
		return
	}
	forward, err := b32.lower(ns[:2])
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range b32.wrt {
		want := differences(t, forward, d.m, w.Name())
		if c.badGrad {
			if distance(got[2+i], want) < 1e-2 {
				t.Errorf("the gradient by %s is right: Gorgonia has mended it", w.Name())
			}
			continue
		}
		near(t, "against differences: "+what(b32, 2+i), got[2+i], want, 1e-5)
	}
}

func what(b *build, i int) string {
	if i < 2 {
		return [...]string{"value", "cost"}[i]
	}
	return "gradient by " + b.wrt[i-2].Name()
}

// differences is the gradient of output 1, the cost, by central differences.
func differences(t *testing.T, l *lowered, m map[string][]float64, name string) []float64 {
	const h = 1e-5
	x := m[name]
	out := make([]float64, len(x))
	for i, x0 := range x {
		x[i] = x0 + h
		up := l.eval(t, m)[1][0]
		x[i] = x0 - h
		down := l.eval(t, m)[1][0]
		x[i] = x0
		out[i] = (up - down) / (2 * h)
	}
	return out
}
