package ref_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// gradientCase is an op, its gradient op by argument number by, and the shapes of its arguments.
type gradientCase struct {
	op      ir.Op
	by      int
	shapes  []ir.Shape
	ints    map[int]int // arguments that are indices, and their bound
	grad    ir.Op
	gradArg func(args []*ir.Value, y, dy *ir.Value) []*ir.Value
	spread  bool // elements far from each other, so that no maximum changes
}

// check compares grad with central differences of L = sum(op(args) * dy), which for these smooth or piecewise linear
// functions leave an error near 1e-9 in float64.
func (c gradientCase) check(t *testing.T, rng *rand.Rand) {
	t.Helper()
	var g ir.Graph
	var slots []*ir.Slot
	var args []*ir.Value
	n := 0
	add := func(name string, shape ir.Shape, dtype ir.DType) *ir.Value {
		s := &ir.Slot{Region: ir.Input, Name: name, Offset: n, Shape: shape, DType: dtype}
		slots = append(slots, s)
		n = s.End()
		return g.Read(s)
	}
	for i, s := range c.shapes {
		dtype := ir.F32
		if c.ints[i] > 0 {
			dtype = ir.I32
		}
		args = append(args, add(fmt.Sprint("arg", i), s, dtype))
	}
	y := g.Add(c.op, nil, args...)
	dy := add("dy", y.Shape, ir.F32)
	loss := g.Sum(g.Times(y, dy))
	grad := g.Add(c.grad, nil, c.gradArg(args, y, dy)...)
	if err := g.Err(); err != nil {
		t.Fatal(err)
	}
	e := ref.NewEnv([ir.NumRegions]int{ir.Input: n})
	for i, s := range slots {
		x := e.At(s)
		order := rng.Perm(len(x))
		for j := range x {
			switch {
			case c.ints[i] > 0:
				x[j] = float64(rng.IntN(c.ints[i]))
			case c.spread && i == c.by:
				x[j] = float64(order[j])
			default:
				x[j] = rng.NormFloat64()
			}
		}
	}
	values := func() [][]float64 {
		v, err := ref.Values(e, &g)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	got := values()[grad.ID]
	x := e.At(slots[c.by])
	if len(got) != len(x) {
		t.Fatalf("gradient has %d elements, the argument %d", len(got), len(x))
	}
	const h = 1e-5
	for i := range x {
		old := x[i]
		x[i] = old + h
		up := values()[loss.ID][0]
		x[i] = old - h
		down := values()[loss.ID][0]
		x[i] = old
		want := (up - down) / (2 * h)
		if math.Abs(got[i]-want) > 1e-7*(1+math.Abs(want)) {
			t.Errorf("%T %+v of %v: element %d: got %v, by differences %v", c.grad, c.grad, c.shapes, i, got[i], want)
			return
		}
	}
}

// fresh returns new random numbers; the seed is in the log of a failing test.
func fresh(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func randomWindow(rng *rand.Rand) (w ir.Window, in [2]int) {
	w.Groups = 1
	for d := range 2 {
		w.Kernel[d] = 1 + rng.IntN(3)
		w.Stride[d] = 1 + rng.IntN(3)
		w.Dilation[d] = 1 + rng.IntN(2)
		w.Padding[d] = rng.IntN(w.Kernel[d]/2 + 1)
		in[d] = w.Dilation[d]*(w.Kernel[d]-1) + 1 + rng.IntN(4)
	}
	return w, in
}

func TestConvGradients(t *testing.T) {
	rng := fresh(t)
	for range 30 {
		w, in := randomWindow(rng)
		w.Padding[rng.IntN(2)] += rng.IntN(3) // convolutions may pad more than half the kernel
		w.Groups = 1 + rng.IntN(2)
		c, o := w.Groups*(1+rng.IntN(2)), w.Groups*(1+rng.IntN(2))
		x := ir.Of(1+rng.IntN(2), c, in[0], in[1])
		k := ir.Of(o, c/w.Groups, w.Kernel[0], w.Kernel[1])
		base := gradientCase{op: ir.Conv2d{Conv: w}, shapes: []ir.Shape{x, k}}
		byX, byW := base, base
		byX.grad = ir.Conv2dGradX{Conv: w, In: [4]int(x)}
		byX.gradArg = func(a []*ir.Value, _, dy *ir.Value) []*ir.Value { return []*ir.Value{a[1], dy} }
		byX.check(t, rng)
		byW.by, byW.grad = 1, ir.Conv2dGradW{Conv: w}
		byW.gradArg = func(a []*ir.Value, _, dy *ir.Value) []*ir.Value { return []*ir.Value{a[0], dy} }
		byW.check(t, rng)
	}
}

func TestPoolGradients(t *testing.T) {
	rng := fresh(t)
	for i := range 60 {
		mode := ir.PoolMode(i % 4)
		w, in := randomWindow(rng)
		if mode != ir.MaxPool {
			w.Dilation = [2]int{1, 1}
		}
		x := ir.Of(1+rng.IntN(2), 1+rng.IntN(2), in[0], in[1])
		c := gradientCase{shapes: []ir.Shape{x}, spread: true}
		op := ir.Pool2d{Mode: mode, Pool: w}
		grad := ir.Pool2dGrad{Mode: mode, Pool: w}
		c.gradArg = func(a []*ir.Value, _, dy *ir.Value) []*ir.Value { return []*ir.Value{a[0], dy} }
		if mode != ir.MaxPool {
			grad.In = [4]int(x)
			c.gradArg = func(_ []*ir.Value, _, dy *ir.Value) []*ir.Value { return []*ir.Value{dy} }
		}
		if mode == ir.AdaptiveAvgPool {
			op.Pool, grad.Pool = ir.Window{}, ir.Window{}
			op.OutHW = [2]int{1 + rng.IntN(4), 1 + rng.IntN(4)}
			grad.OutHW = op.OutHW
		}
		c.op, c.grad = op, grad
		c.check(t, rng)
	}
}

func TestRowGradients(t *testing.T) {
	rng := fresh(t)
	for i := range 20 {
		log := i%2 == 0
		shape := ir.Of(1+rng.IntN(3), 1+rng.IntN(5))
		gradientCase{
			op: ir.Softmax{Log: log}, shapes: []ir.Shape{shape}, grad: ir.SoftmaxGrad{Log: log},
			gradArg: func(_ []*ir.Value, y, dy *ir.Value) []*ir.Value { return []*ir.Value{y, dy} },
		}.check(t, rng)

		smoothing := float64(i%3) * 0.1
		ignore := []int{-100, 0}[i%2]
		gradientCase{
			op:     ir.CrossEntropy{Smoothing: smoothing, Ignore: ignore},
			shapes: []ir.Shape{shape, shape[:1], shape[1:]},
			ints:   map[int]int{1: shape[1]},
			grad:   ir.CrossEntropyGrad{Smoothing: smoothing, Ignore: ignore},
			gradArg: func(a []*ir.Value, _, dy *ir.Value) []*ir.Value {
				return []*ir.Value{a[0], a[1], a[2], dy}
			},
		}.check(t, rng)
	}
}

func TestMoveGradients(t *testing.T) {
	rng := fresh(t)
	for range 20 {
		table := ir.Of(1+rng.IntN(4), 1+rng.IntN(3))
		gradientCase{
			op: ir.Gather{}, shapes: []ir.Shape{table, ir.Of(2, 1+rng.IntN(3))}, ints: map[int]int{1: table[0]},
			grad:    ir.ScatterAdd{Rows: table[0]},
			gradArg: func(a []*ir.Value, _, dy *ir.Value) []*ir.Value { return []*ir.Value{a[1], dy} },
		}.check(t, rng)

		shape := ir.Of(1+rng.IntN(3), 1+rng.IntN(6))
		start := []int{rng.IntN(shape[0]), rng.IntN(shape[1])}
		step := []int{1 + rng.IntN(2), 1 + rng.IntN(3)}
		stop := []int{shape[0], start[1] + rng.IntN(shape[1]-start[1]+1)}
		gradientCase{
			op: ir.Slice{Start: start, Stop: stop, Step: step}, shapes: []ir.Shape{shape},
			grad:    ir.Unslice{Start: start, Stop: shape, Step: step},
			gradArg: func(_ []*ir.Value, _, dy *ir.Value) []*ir.Value { return []*ir.Value{dy} },
		}.check(t, rng)
	}
}
