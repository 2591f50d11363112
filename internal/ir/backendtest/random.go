package backendtest

import (
	"fmt"
	"math"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// randomCases are graphs drawn at random: what fusing, views, sharing and planning make of ops in any company.
func randomCases() []testCase {
	var cases []testCase
	n := 60
	if testing.Short() {
		n = 10
	}
	for i := range n {
		cases = append(cases, testCase{fmt.Sprintf("graph %d", i), drawGraph})
	}
	return cases
}

// drawGraph draws a graph whose every value stays tame, so that float32 can follow float64.
func drawGraph(b *draft) {
	for {
		fresh := &draft{rng: b.rng, half: b.half, fill: map[*ir.Slot]domain{}, exact: map[*ir.Slot]bool{}}
		fresh.next()
		(&artist{draft: fresh}).draw()
		if fresh.tame() {
			*b = *fresh
			return
		}
	}
}

// tame reports whether all values, on an example, are finite and below 1e4.
func (b *draft) tame() bool {
	var before image
	for r := range before {
		before[r] = make([]uint32, b.size[r])
	}
	for _, s := range b.slots {
		for i := s.Offset; i < s.End(); i++ {
			before[s.Region][i] = word(s.DType, float64(b.fill[s](b.rng)))
		}
	}
	e := b.env(&ir.Runtime{}, before)
	ok := true
	e.Round = func(_ *ir.Value, x []float64) {
		for _, v := range x {
			ok = ok && math.Abs(v) < 1e4
		}
	}
	for _, p := range b.parts {
		if p.Graph != nil && p.Graph.Err() != nil {
			return true // conforms reports it
		}
	}
	return ref.Eval(e, b.parts...) == nil && ok
}

// artist draws a graph from the values it has made so far.
type artist struct {
	*draft
	values []*ir.Value // f32
	params []*ir.Slot
}

func (a *artist) draw() {
	size := []int{60, 300, 2500}[a.rng.IntN(3)]
	for range a.between(1, 3) {
		a.keep(a.in(normal, a.dims(a.between(1, 4), size)...))
	}
	for range a.between(1, 3) {
		p := a.filled(ir.Params, normal, ir.F32, a.dims(a.between(1, 3), size)...)
		a.params = append(a.params, p)
		a.keep(a.Read(p))
	}
	for range a.between(10, 60) {
		a.keep(a.step(a.values[a.rng.IntN(len(a.values))]))
	}
	a.stores()
}

// keep adds v to the values to draw from, unless it has grown too large.
func (a *artist) keep(v *ir.Value) {
	if v != nil && v.Shape.Size() <= 20000 {
		a.values = append(a.values, v)
	}
}

// step makes a new value from v and others.
func (a *artist) step(v *ir.Value) *ir.Value {
	n := len(v.Shape)
	switch a.rng.IntN(20) {
	case 0, 1, 2:
		return a.unary(v)
	case 3, 4, 5, 6:
		return a.binary(v, a.partner(v))
	case 7:
		return a.Select(a.inExact(steps, a.narrowed(v.Shape)...), v, a.partner(v))
	case 8, 9:
		return a.reduced(v)
	case 10, 11:
		return a.product(v)
	case 12, 13, 14:
		return a.view(v)
	case 15:
		if n == 0 {
			return nil
		}
		axis := a.rng.IntN(n)
		other := a.view(v)
		if len(other.Shape) != n || !v.Shape.Equal(a.with(other.Shape, axis, v.Shape[axis])) {
			other = a.unary(v)
		}
		return a.Add(ir.Concat{Axis: axis}, nil, v, other)
	case 16:
		stop, start, step := v.Shape.Clone(), make([]int, n), make([]int, n)
		for i, d := range v.Shape {
			start[i], step[i] = a.between(0, 1), a.between(1, 2)
			stop[i] = start[i] + (d-1)*step[i] + a.between(1, 2)
		}
		return a.Add(ir.Unslice{Start: start, Stop: stop, Step: step}, nil, v)
	case 17:
		return a.rows(v)
	case 18:
		switch a.rng.IntN(4) {
		case 0:
			return a.Const(a.rng.NormFloat64(), v.Shape...)
		case 1:
			return a.Rand(uint64(a.rng.IntN(3)), v.Shape...)
		case 2:
			if n > 0 {
				return a.Scale(a.Iota(a.rng.IntN(n), v.Shape...), 0.125)
			}
		}
		return a.Add(ir.AllReduceSum{}, nil, v)
	}
	return a.window(v)
}

func (a *artist) with(s ir.Shape, axis, extent int) ir.Shape {
	s = s.Clone()
	s[axis] = extent
	return s
}

func (a *artist) unary(v *ir.Value) *ir.Value {
	switch f := []ir.Fn{ir.Neg, ir.Abs, ir.Tanh, ir.Sigmoid, ir.Softplus, ir.Relu, ir.Sin, ir.Cos, ir.Erf, ir.Exp, ir.Log, ir.Sqrt, ir.Square}[a.rng.IntN(13)]; f {
	case ir.Exp:
		return a.Map(f, a.Map(ir.Tanh, v))
	case ir.Log, ir.Sqrt:
		return a.Map(f, a.Shift(a.Map(ir.Square, v), 0.5))
	case ir.Square:
		return a.Scale(a.Map(f, v), 0.25)
	default:
		return a.Map(f, v)
	}
}

func (a *artist) binary(v, w *ir.Value) *ir.Value {
	if a.rng.IntN(2) == 0 {
		v, w = w, v
	}
	switch a.rng.IntN(7) {
	case 0, 1:
		return a.Plus(v, w)
	case 2:
		return a.Minus(v, w)
	case 3, 4:
		return a.Scale(a.Times(v, w), 0.5)
	case 5:
		return a.Map([]ir.Fn{ir.Max, ir.Min}[a.rng.IntN(2)], v, w)
	}
	return a.Over(v, a.Shift(a.Map(ir.Abs, w), 0.75))
}

// partner finds or makes a value that broadcasts with v.
func (a *artist) partner(v *ir.Value) *ir.Value {
	for range 4 {
		w := a.values[a.rng.IntN(len(a.values))]
		if s, err := ir.BroadcastShapes(v.Shape, w.Shape); err == nil && s.Size() <= 20000 {
			return w
		}
	}
	switch a.rng.IntN(4) {
	case 0:
		return a.Const(a.rng.NormFloat64())
	case 1:
		return a.Read(a.filled(ir.Hyper, normal, ir.F32))
	case 2:
		return a.in(normal, a.narrowed(v.Shape)...)
	}
	return a.unary(v)
}

func (a *artist) reduced(v *ir.Value) *ir.Value {
	n := len(v.Shape)
	if n == 0 {
		return nil
	}
	axes := a.rng.Perm(n)[:a.between(1, n)]
	r := a.Reduce(ir.Reduction(a.rng.IntN(3)), v, axes...)
	r = a.Scale(r, 1/math.Sqrt(float64(v.Shape.Size()/max(1, r.Shape.Size()))))
	switch a.rng.IntN(3) {
	case 0:
		return a.Squeeze(r, axes...)
	case 1:
		return a.Minus(v, r) // both the value and its reduction, as in a normalisation
	}
	return r
}

// product multiplies v, as a matrix, with weights or another view of itself.
func (a *artist) product(v *ir.Value) *ir.Value {
	n := len(v.Shape)
	if n == 0 {
		return nil
	}
	if n == 3 && a.rng.IntN(2) == 0 {
		return a.Scale(a.MatMul(v, a.T(v)), 1/float64(v.Shape[2]))
	}
	k := v.Shape[n-1]
	m := a.Reshape(v, v.Shape.Size()/k, k)
	if a.rng.IntN(3) == 0 {
		m = a.T(m)
		k = m.Shape[1]
	}
	if a.rng.IntN(4) == 0 {
		return a.Scale(a.MatMul(m, a.T(m)), 1/float64(k))
	}
	cols := a.between(1, 30)
	w := a.in(normal, k, cols)
	if a.rng.IntN(2) == 0 {
		w = a.T(a.in(normal, cols, k))
	}
	y := a.MatMul(m, a.Scale(w, 1/math.Sqrt(float64(k))))
	if a.rng.IntN(2) == 0 {
		y = a.Plus(y, a.in(normal, cols))
	}
	if a.rng.IntN(2) == 0 {
		y = a.Map(ir.Relu, y)
	}
	return y
}

// view looks at v in another way; the elements may be fewer.
func (a *artist) view(v *ir.Value) *ir.Value {
	n := len(v.Shape)
	switch a.rng.IntN(4) {
	case 0:
		return a.Transpose(v, a.rng.Perm(n)...)
	case 1:
		return a.sliced(v)
	case 2:
		shape := append(ir.Of(a.between(1, 3)), v.Shape...)
		return a.BroadcastTo(v, shape...)
	}
	return a.Reshape(v, a.factors(v.Shape.Size())...)
}

// factors is a random shape of that size.
func (a *artist) factors(size int) []int {
	var shape []int
	for d := 2; d <= 7 && len(shape) < 4; d++ {
		if size%d == 0 && a.rng.IntN(2) == 0 {
			shape = append(shape, d)
			size /= d
		}
	}
	shape = append(shape, size)
	a.rng.Shuffle(len(shape), func(i, j int) { shape[i], shape[j] = shape[j], shape[i] })
	return shape
}

// rows draws an op on rows.
func (a *artist) rows(v *ir.Value) *ir.Value {
	n := len(v.Shape)
	if n == 0 {
		return nil
	}
	switch a.rng.IntN(4) {
	case 0:
		y := a.Add(ir.Softmax{}, nil, v)
		return a.Add(ir.SoftmaxGrad{}, nil, y, a.BroadcastTo(a.in(normal, v.Shape[n-1]), v.Shape...))
	case 1:
		return a.Scale(a.Add(ir.Softmax{Log: true}, nil, v), 0.25)
	case 2:
		return a.Add(ir.Gather{}, nil, v, a.ints(v.Shape[0], a.dims(a.between(0, 2), 20)...))
	}
	rows := a.between(1, 8)
	return a.Scale(a.Add(ir.ScatterAdd{Rows: rows}, nil, a.ints(rows, v.Shape[0]), v), 0.5)
}

// window convolves or pools v, as images.
func (a *artist) window(v *ir.Value) *ir.Value {
	size := v.Shape.Size()
	if size < 4 || size > 3000 {
		return a.unary(v)
	}
	h := 1
	for d := 2; d*d <= size; d++ {
		if size%d == 0 {
			h = d
		}
	}
	x := a.Reshape(v, 1, 1, h, size/h)
	w := square(1, 1, 0, 1, 1)
	for d := range 2 {
		w.Kernel[d] = a.between(1, min(3, x.Shape[2+d]))
		w.Stride[d] = a.between(1, 2)
		w.Padding[d] = a.rng.IntN(w.Kernel[d]/2 + 1)
	}
	if a.rng.IntN(2) == 0 {
		return a.Add(ir.Pool2d{Mode: ir.PoolMode(a.rng.IntN(3)), Pool: w}, nil, x)
	}
	y := a.Add(ir.Conv2d{Conv: w}, nil, x, a.Scale(a.in(normal, 2, 1, w.Kernel[0], w.Kernel[1]), 0.5))
	return a.Map(ir.Relu, a.Plus(y, a.in(normal, 2, 1, 1)))
}

// stores ends the graph: outputs, gradients, and parameters updated in place; often a second graph that reads what the
// first stored.
func (a *artist) stores() {
	for range a.between(1, 4) {
		a.out(a.values[a.rng.IntN(len(a.values))])
	}
	a.out(a.values[len(a.values)-1])
	var grads []*ir.Slot
	for _, p := range a.params {
		// Something that depends on much, in the parameter's shape.
		v := a.values[a.rng.IntN(len(a.values))]
		g := a.Plus(a.Scale(a.Read(p), 0.1), a.Scale(a.Sum(v), 1/float64(v.Shape.Size())))
		switch a.rng.IntN(3) {
		case 0:
			a.Store(p, a.Minus(a.Read(p), a.Scale(g, 0.5)))
			grads = append(grads, nil)
		default:
			s := a.slot(ir.Grads, ir.F32, p.Shape...)
			a.Store(s, g)
			grads = append(grads, s)
		}
	}
	if a.rng.IntN(2) == 0 {
		return
	}
	a.next()
	lr := a.Read(a.filled(ir.Hyper, positive, ir.F32))
	for i, p := range a.params {
		if grads[i] != nil {
			a.Store(p, a.Minus(a.Read(p), a.Times(lr, a.Read(grads[i]))))
		}
	}
}
