package backendtest

import (
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

var (
	nan32 = float32(math.NaN())
	inf32 = float32(math.Inf(1))
)

// viewCases: chains of views as operands of loops, reductions and stores.
func viewCases() []testCase {
	return []testCase{
		{"loop over views", func(b *draft) {
			for range 6 {
				rank := b.between(1, 5)
				shape := b.dims(rank, 2000)
				sum := b.in(normal, shape...)
				for range 4 {
					sum = b.Times(b.Shift(sum, 0.5), b.viewOf(shape))
				}
				b.out(sum)
			}
		}},
		{"reduction of views", func(b *draft) {
			for range 6 {
				rank := b.between(1, 5)
				shape := b.dims(rank, 2000)
				x := b.Plus(b.viewOf(shape), b.viewOf(shape))
				b.out(b.Reduce(ir.Sum, x, b.rng.Perm(rank)[:b.between(1, rank)]...))
				b.out(b.Reduce(ir.MaxOf, b.viewOf(shape), b.rng.Perm(rank)[:b.between(1, rank)]...))
			}
		}},
		{"store of views", func(b *draft) {
			b.bits = true
			for range 8 {
				b.out(b.viewOf(b.dims(b.between(0, 5), 2000)))
			}
		}},
		{"rows", func(b *draft) {
			// Ops that want contiguous arguments, given views.
			b.out(b.Add(ir.Softmax{}, nil, b.viewOf([]int{9, 20})))
			b.out(b.Add(ir.CrossEntropy{Ignore: -1}, nil, b.viewOf([]int{12, 5}), b.SliceAxis(b.ints(5, 30), 0, 7, 19), b.viewOf([]int{5})))
			b.out(b.Add(ir.Gather{}, nil, b.viewOf([]int{12, 5}), b.T(b.ints(12, 3, 4))))
			b.out(b.Add(ir.ScatterAdd{Rows: 6}, nil, b.SliceAxis(b.ints(6, 30), 0, 2, 14), b.viewOf([]int{12, 5})))
			b.out(b.Map(ir.Float, b.T(b.ints(1000, 8, 5))))
		}},
		{"one value through many views", func(b *draft) {
			x := b.Map(ir.Tanh, b.in(normal, 6, 6))
			b.out(b.Plus(x, b.T(x)))
			b.out(b.Plus(b.Reshape(x, 36), b.Reshape(b.T(x), 36)))
			b.out(b.Minus(b.SliceAxis(x, 0, 1, 6), b.SliceAxis(x, 0, 0, 5)))
			b.out(b.Plus(b.SliceAxis(x, 1, 2, 3), b.SliceAxis(x, 0, 2, 3)))
			b.out(b.MatMul(x, b.Map(ir.Relu, b.T(x))))
		}},
		{"empty", func(b *draft) {
			x := b.in(normal, 0, 5)
			b.out(b.Map(ir.Exp, x))
			b.out(b.Reduce(ir.Sum, x, 1))
			b.out(b.Reduce(ir.Sum, x, 0)) // five zeros
			b.out(b.Add(ir.Concat{Axis: 0}, nil, x, b.in(normal, 2, 5)))
			b.out(b.MatMul(x, b.in(normal, 5, 3)))
			b.out(b.MatMul(b.T(x), x)) // zeros
		}},
	}
}

// viewOf gives a value of that shape through one or more views of an input.
func (b *draft) viewOf(shape []int) *ir.Value {
	rank := len(shape)
	switch b.rng.IntN(5) {
	case 0: // transposed
		perm, from := b.rng.Perm(rank), make([]int, rank)
		for i, p := range perm {
			from[p] = shape[i]
		}
		return b.Transpose(b.in(normal, from...), perm...)
	case 1: // a slice, with steps
		op := ir.Slice{Start: make([]int, rank), Stop: make([]int, rank), Step: make([]int, rank)}
		from := make([]int, rank)
		for i, d := range shape {
			op.Start[i], op.Step[i] = b.between(0, 2), b.between(1, 2)
			op.Stop[i] = op.Start[i] + (d-1)*op.Step[i] + 1
			from[i] = op.Stop[i] + b.between(0, 2)
		}
		return b.Add(op, nil, b.in(normal, from...))
	case 2: // repeated
		return b.BroadcastTo(b.in(normal, b.narrowed(shape)...), shape...)
	case 3: // the transpose of something repeated
		perm, from := b.rng.Perm(rank), make([]int, rank)
		for i, p := range perm {
			from[p] = shape[i]
		}
		return b.Transpose(b.BroadcastTo(b.in(normal, b.narrowed(from)...), from...), perm...)
	}
	return b.Reshape(b.in(normal, ir.Shape(shape).Size()), shape...)
}

// programCases: what training steps are made of.
func programCases() []testCase {
	return []testCase{
		{"mlp step", mlpStep},
		{"cnn step", cnnStep},
		{"deep cnn", deepCNN},
		{"attention", attention},
		{"normalisations", normalisations},
		{"adam", adam},
		{"relu's gradient", reluGrads},
		{"update in place", func(b *draft) {
			w := b.filled(ir.Params, normal, ir.F32, 70, 3)
			m := b.filled(ir.State, normal, ir.F32, 70, 3)
			g := b.in(normal, 70, 3)
			lr := b.Read(b.filled(ir.Hyper, positive, ir.F32))
			mv := b.Plus(b.Scale(b.Read(m), 0.5), g)
			b.Store(m, mv)
			b.Store(w, b.Minus(b.Read(w), b.Times(lr, mv)))
			b.out(b.Sum(b.Map(ir.Square, b.Read(w)))) // of the old parameters
		}},
		{"numbers within loops", func(b *draft) {
			rate, old := b.filled(ir.State, positive, ir.F32), b.filled(ir.State, positive, ir.F32, 3)
			w := b.filled(ir.Params, normal, ir.F32, 40)
			x, y := b.in(normal, 40), b.in(normal, 6, 50)
			// Of one that is about to change, of an element, of a sum, and of another number that is kept, too.
			slow := b.Map(ir.Neg, b.Read(rate))
			second := b.Map(ir.Sqrt, b.SliceAxis(b.Read(old), 0, 1, 2))
			norm := b.Map(ir.Sqrt, b.Sum(b.Map(ir.Square, x)))
			clip := b.Map(ir.Min, b.Over(b.Const(1), norm), b.Const(1))
			b.out(clip)
			b.out(b.Times(y, b.Times(clip, second)))
			b.out(b.Reduce(ir.Sum, b.Times(b.Times(y, slow), b.Minus(clip, slow)), 1))
			// Of what a loop makes once more, and what was moved of the first.
			one := b.Reshape(clip, 1)
			b.out(b.Minus(b.Add(ir.Gather{}, nil, one, b.ints(1, 1)), one))
			b.Store(w, b.Plus(b.Read(w), b.Times(b.Times(x, clip), slow)))
			b.Store(rate, b.Scale(b.Read(rate), 0.5))
			b.Store(old, b.Plus(b.Read(old), b.Over(b.Const(1), b.SliceAxis(b.Read(old), 0, 2, 3))))
			// Of what a loop of its own makes.
			v := b.Map(ir.Tanh, x)
			b.out(b.Times(v, b.Map(ir.Neg, b.SliceAxis(v, 0, 39, 40))))
			b.out(v)
			// Of the parameters themselves, which change in the loop.
			b.next()
			first := b.Map(ir.Exp, b.SliceAxis(b.Read(w), 0, 0, 1))
			b.Store(w, b.Times(b.Read(w), first))
		}},
		{"flat update", func(b *draft) {
			// Gradients go to slots; the update sees both arenas as one vector each, gaps (NaN here) included.
			x := b.in(normal, 9, 6)
			var params []*ir.Slot
			for _, shape := range [][]int{{4, 6}, {4}, {1}} {
				params = append(params, b.filled(ir.Params, normal, ir.F32, shape...))
			}
			b.size[ir.Grads] = b.size[ir.Params]
			grad := func(i int, v *ir.Value) {
				b.Store(&ir.Slot{Region: ir.Grads, Name: "grad", Offset: params[i].Offset, Shape: params[i].Shape}, v)
			}
			y := b.Times(b.Plus(b.MatMul(x, b.T(b.Read(params[0]))), b.Read(params[1])), b.Read(params[2]))
			grad(0, b.T(b.MatMul(b.T(x), y)))
			grad(1, b.Sum(y, 0))
			grad(2, b.Reshape(b.Sum(b.Map(ir.Square, y)), 1))
			b.next()
			w := &ir.Slot{Region: ir.Params, Name: "all", Shape: ir.Of(b.size[ir.Params])}
			g := &ir.Slot{Region: ir.Grads, Name: "all", Shape: w.Shape}
			b.Store(w, b.Minus(b.Read(w), b.Scale(b.Read(g), 0.25)))
			b.next()
			b.out(b.Read(params[0]))
		}},
		{"update that its readers outlive", func(b *draft) {
			// The new w is needed elsewhere, and so is the old one, transposed.
			w := b.filled(ir.Params, normal, ir.F32, 9, 9)
			old := b.Read(w)
			updated := b.Plus(b.Scale(old, 0.5), b.T(old))
			b.Store(w, updated)
			b.out(b.MatMul(updated, old))
			b.out(b.Plus(b.T(updated), old))
		}},
		{"swap", func(b *draft) {
			b.bits = true
			x := b.filled(ir.State, normal, ir.F32, 33)
			y := b.filled(ir.State, normal, ir.F32, 33)
			z := b.filled(ir.State, normal, ir.F32, 33)
			b.Store(x, b.Read(y))
			b.Store(y, b.Read(z))
			b.Store(z, b.Read(x))
		}},
		{"shift within a region", func(b *draft) {
			// Overlapping slots: the sources of one store are the targets of others.
			b.bits = true
			all := b.filled(ir.Buffers, normal, ir.F32, 40)
			part := func(from, n int) *ir.Slot {
				return &ir.Slot{Region: ir.Buffers, Name: "part", Offset: all.Offset + from, Shape: ir.Of(n)}
			}
			b.Store(part(0, 30), b.Read(part(10, 30)))
			b.Store(part(30, 10), b.Read(part(0, 10)))
		}},
		{"one value to many slots", func(b *draft) {
			x := b.Map(ir.Exp, b.in(normal, 5, 7))
			for range 3 {
				b.out(x)
			}
			b.out(b.T(x))
			b.out(b.Reshape(x, 35))
			b.Store(b.slot(ir.Grads, ir.F32, 5, 7), x)
		}},
		{"long chain", func(b *draft) {
			x := b.in(normal, 3000)
			y := x
			for i := range 40 {
				y = b.Plus(b.Scale(y, 0.7), b.Times(b.Map(ir.Sin, x), b.Const(float64(i)/40)))
				if i%13 == 5 {
					b.out(y) // results in the middle of a loop
				}
			}
			b.out(y)
		}},
		{"values used far apart", func(b *draft) {
			// Many values alive at once, ending in an order other than that of their making.
			x := b.in(normal, 20, 20)
			var kept []*ir.Value
			y := x
			for range 8 {
				y = b.Scale(b.MatMul(y, x), 0.2)
				kept = append(kept, y)
			}
			sum := b.Const(0, 20, 20)
			for _, i := range b.rng.Perm(len(kept)) {
				sum = b.MatMul(b.Scale(b.Plus(sum, kept[i]), 0.2), x)
			}
			b.out(sum)
		}},
		{"parts in order", func(b *draft) {
			// Each part reads what those before it stored; a collective of a rank alone changes nothing.
			g := b.slot(ir.Grads, ir.F32, 50)
			w := b.filled(ir.Params, normal, ir.F32, 50)
			b.Store(g, b.Map(ir.Tanh, b.Plus(b.Read(w), b.in(normal, 50))))
			b.parts = append(b.parts, ir.Part{Collective: &ir.Collective{Kind: ir.AllReduce}, On: g})
			b.next()
			b.Store(g, b.Scale(b.Read(g), 2))
			b.next()
			b.Store(w, b.Minus(b.Read(w), b.Read(g)))
			b.out(b.Read(g))
		}},
		{"dropout", func(b *draft) {
			x := b.in(normal, 12, 30)
			keep := b.Map(ir.Ge, b.Rand(7, 12, 30), b.Const(0.25))
			mask := b.Scale(keep, 1/0.75)
			b.out(b.Times(x, mask))
			b.out(b.Sum(b.Times(b.in(normal, 12, 30), mask), 0))
		}},
	}
}

// mlpStep is a training step: two linear layers, cross entropy, gradients, momentum.
func mlpStep(b *draft) {
	n, in, hidden, classes := b.between(1, 70), b.between(5, 60), b.between(3, 50), b.between(2, 11)
	w1, b1 := b.filled(ir.Params, normal, ir.F32, hidden, in), b.filled(ir.Params, normal, ir.F32, hidden)
	w2, b2 := b.filled(ir.Params, normal, ir.F32, classes, hidden), b.filled(ir.Params, normal, ir.F32, classes)
	params := []*ir.Slot{w1, b1, w2, b2}
	var grads []*ir.Slot
	for _, p := range params {
		grads = append(grads, b.slot(ir.Grads, ir.F32, p.Shape...))
	}
	x, labels := b.in(normal, n, in), b.ints(classes, n)
	labels = b.Add(ir.CheckIndex{Bound: classes, Ignore: -100, What: "label"}, nil, labels)
	h := b.Map(ir.Tanh, b.Scale(b.Plus(b.MatMul(x, b.T(b.Read(w1))), b.Read(b1)), 1/math.Sqrt(float64(in))))
	logits := b.Plus(b.MatMul(h, b.T(b.Read(w2))), b.Read(b2))
	ones := b.Const(1, classes)
	loss := b.Add(ir.CrossEntropy{Ignore: -100}, nil, logits, labels, ones)
	b.out(b.Scale(b.Sum(loss), 1/float64(n)))
	dlogits := b.Add(ir.CrossEntropyGrad{Ignore: -100}, nil, logits, labels, ones, b.Const(1/float64(n), n))
	b.Store(grads[2], b.MatMul(b.T(dlogits), h))
	b.Store(grads[3], b.Sum(dlogits, 0))
	dh := b.MatMul(dlogits, b.Read(w2))
	dh = b.Scale(b.Times(dh, b.Minus(b.Const(1), b.Map(ir.Square, h))), 1/math.Sqrt(float64(in)))
	b.Store(grads[0], b.T(b.MatMul(b.T(x), dh))) // as Gorgonia differentiates
	b.Store(grads[1], b.Sum(dh, 0))
	b.next()
	lr := b.Read(b.filled(ir.Hyper, positive, ir.F32))
	for i, p := range params {
		m := b.filled(ir.State, normal, ir.F32, p.Shape...)
		v := b.Plus(b.Scale(b.Read(m), 0.9), b.Read(grads[i]))
		b.Store(m, v)
		b.Store(p, b.Minus(b.Read(p), b.Times(lr, v)))
	}
}

// reluGrads are products with relu's gradient as their mask, and with the sums of a gradient beside them, and those that look alike.
func reluGrads(b *draft) {
	n, in, hidden, out := b.between(1, 70), b.between(1, 40), 4*b.between(1, 30), b.between(1, 20)
	// Few values in what makes the masks, so that no rounding flips one: libraries may round a product before they add a bias.
	x, w, bias := b.inExact(steps, n, in), b.inExact(steps, hidden, in), b.inExact(steps, hidden)
	v, up := b.in(normal, out, hidden), b.in(normal, n, out)
	y := b.Map(ir.Relu, b.Plus(b.MatMul(x, b.T(w)), bias))
	masked := func(dy *ir.Value) *ir.Value { return b.Map(ir.Where, b.Map(ir.Le, y, b.Const(0)), b.Const(0), dy) }
	dy := masked(b.MatMul(up, v))
	b.out(b.MatMul(b.T(up), y))
	b.out(b.Sum(up, 0))
	b.out(b.MatMul(b.T(dy), x))
	b.out(b.Sum(dy, 0))
	b.out(b.MatMul(dy, w))
	b.out(b.Scale(masked(b.MatMul(b.in(normal, n, in), b.T(w))), 0.5)) // in a loop
	z := b.T(masked(b.MatMul(b.in(normal, n, 3), b.in(normal, 3, hidden))))
	b.out(b.MatMul(z, b.BroadcastTo(b.T(b.Reduce(ir.Sum, z, 1)), n, hidden))) // the product needs the sums
}

// cnnStep is convolution, relu, pooling, a linear layer, and the gradients of all.
func cnnStep(b *draft) {
	n, c, o, h := b.between(1, 5), b.between(1, 3), b.between(2, 8), 2*b.between(4, 7)
	win, pool := square(3, 1, 1, 1, 1), square(2, 2, 0, 1, 1)
	x := b.in(normal, n, c, h, h)
	k := b.filled(ir.Params, normal, ir.F32, o, c, 3, 3)
	bias := b.filled(ir.Params, normal, ir.F32, o)
	y := b.Map(ir.Relu, b.Plus(b.Add(ir.Conv2d{Conv: win}, nil, x, b.Read(k)), b.Reshape(b.Read(bias), o, 1, 1)))
	p := b.Add(ir.Pool2d{Mode: ir.AvgPool, Pool: pool}, nil, y)
	flat := b.Reshape(p, n, o*h/2*h/2)
	w := b.filled(ir.Params, normal, ir.F32, 4, flat.Shape[1])
	out := b.MatMul(flat, b.T(b.Read(w)))
	b.out(out)
	dout := b.in(normal, n, 4)
	b.Store(b.slot(ir.Grads, ir.F32, 4, flat.Shape[1]), b.MatMul(b.T(dout), flat))
	dp := b.Reshape(b.MatMul(dout, b.Read(w)), p.Shape...)
	dy := b.Add(ir.Pool2dGrad{Mode: ir.AvgPool, Pool: pool, In: [4]int(y.Shape)}, nil, dp)
	// The mask is a function of an input, so that no rounding flips it.
	dy = b.Times(dy, b.Map(ir.Gt, b.inExact(steps, y.Shape...), b.Const(0)))
	b.Store(b.slot(ir.Grads, ir.F32, o, c, 3, 3), b.Add(ir.Conv2dGradW{Conv: win}, nil, x, dy))
	b.Store(b.slot(ir.Grads, ir.F32, o), b.Sum(dy, 0, 2, 3))
	b.out(b.Add(ir.Conv2dGradX{Conv: win, In: [4]int(x.Shape)}, nil, b.Read(k), dy))
}

// deepCNN is two convolutions, of which the second has several channels, ReLU, max pooling, dropout, a linear layer, and the gradients of all: with
// fewer images than the linear layer has rows, and with more.
func deepCNN(b *draft) {
	// Few values in the input and the filters: sums are exact, so no rounding flips a mask.
	n, c, h := []int{2, 9}[b.rng.IntN(2)], b.between(1, 3), 2*b.between(4, 6)
	win, pool := square(3, 1, 0, 1, 1), square(2, 2, 0, 1, 1)
	x := b.inExact(steps, n, c, h, h)
	filters := func(shape ...int) (*ir.Slot, *ir.Value) {
		s := b.filled(ir.Params, steps, ir.F32, shape...)
		b.exact[s] = true
		return s, b.Read(s)
	}
	k1, w1 := filters(4, c, 3, 3)
	k2, w2 := filters(8, 4, 3, 3)
	b1, bias1 := filters(4)
	b2, bias2 := filters(8)
	layer := func(x, w, bias *ir.Value) *ir.Value {
		return b.Map(ir.Relu, b.Plus(b.Add(ir.Conv2d{Conv: win}, nil, x, w), b.Reshape(bias, bias.Shape[0], 1, 1)))
	}
	y1 := layer(x, w1, bias1)
	y2 := layer(y1, w2, bias2)
	p := b.Add(ir.Pool2d{Mode: ir.MaxPool, Pool: pool}, nil, y2)
	drop := b.Map(ir.Lt, b.Rand(5, p.Shape...), b.Const(0.25))
	flat := b.Reshape(b.Select(drop, b.Const(0), b.Scale(p, 1/0.75)), n, p.Shape[1:].Size())
	w3 := b.filled(ir.Params, normal, ir.F32, 5, flat.Shape[1])
	b.out(b.MatMul(flat, b.T(b.Read(w3))))

	dout := b.in(normal, n, 5)
	b.Store(b.slot(ir.Grads, ir.F32, w3.Shape...), b.MatMul(b.T(dout), flat))
	dp := b.Reshape(b.MatMul(dout, b.Read(w3)), p.Shape...)
	dp = b.Select(drop, b.Const(0), b.Scale(dp, 1/0.75))
	dy2 := b.Add(ir.Pool2dGrad{Mode: ir.MaxPool, Pool: pool}, nil, y2, dp)
	back := func(dy, y, x *ir.Value, w, bias *ir.Slot) *ir.Value {
		dy = b.Select(b.Map(ir.Le, y, b.Const(0)), b.Const(0), dy)
		b.Store(b.slot(ir.Grads, ir.F32, w.Shape...), b.Add(ir.Conv2dGradW{Conv: win}, nil, x, dy))
		b.Store(b.slot(ir.Grads, ir.F32, bias.Shape...), b.Sum(dy, 0, 2, 3))
		return dy
	}
	dy2 = back(dy2, y2, y1, k2, b2)
	dy1 := b.Add(ir.Conv2dGradX{Conv: win, In: [4]int(y1.Shape)}, nil, w2, dy2)
	back(dy1, y1, x, k1, b1)
}

// attention: embedding, heads by views, softmax by hand and by op.
func attention(b *draft) {
	n, t, heads, d := b.between(1, 3), b.between(2, 9), 2, b.between(2, 8)
	table := b.in(normal, 30, heads*d)
	x := b.Add(ir.Gather{}, nil, table, b.ints(30, n, t))
	project := func() *ir.Value {
		y := b.MatMul(b.Reshape(x, n*t, heads*d), b.Scale(b.in(normal, heads*d, heads*d), 0.3))
		return b.Reshape(b.Transpose(b.Reshape(y, n, t, heads, d), 0, 2, 1, 3), n*heads, t, d)
	}
	q, k, v := project(), project(), project()
	scores := b.Scale(b.MatMul(q, b.T(k)), 1/math.Sqrt(float64(d)))
	causal := b.Map(ir.Le, b.Iota(1, t, t), b.Iota(0, t, t))
	scores = b.Select(causal, scores, b.Const(-1e9))
	p := b.Add(ir.Softmax{}, nil, scores)
	e := b.Map(ir.Exp, b.Minus(scores, b.Reduce(ir.MaxOf, scores, 2)))
	b.out(b.Over(e, b.Reduce(ir.Sum, e, 2)))
	y := b.Transpose(b.Reshape(b.MatMul(p, v), n, heads, t, d), 0, 2, 1, 3)
	b.out(b.Reshape(y, n, t, heads*d))
}

// normalisations: by batch, with running statistics in place, and by row, each with two passes over its input.
func normalisations(b *draft) {
	n, c, h := b.between(2, 6), b.between(1, 5), b.between(2, 9)
	x := b.in(normal, n, c, h, h)
	count := float64(n * h * h)
	mean := b.Scale(b.Reduce(ir.Sum, x, 0, 2, 3), 1/count)
	centred := b.Minus(x, mean)
	variance := b.Scale(b.Reduce(ir.Sum, b.Map(ir.Square, centred), 0, 2, 3), 1/count)
	inv := b.Map(ir.Rsqrt, b.Shift(variance, 1e-5))
	gamma, beta := b.filled(ir.Params, positive, ir.F32, c), b.filled(ir.Params, normal, ir.F32, c)
	channel := func(s *ir.Slot) *ir.Value { return b.Reshape(b.Read(s), c, 1, 1) }
	b.out(b.Plus(b.Times(b.Times(centred, inv), channel(gamma)), channel(beta)))
	for _, stat := range []*ir.Value{mean, variance} {
		running := b.filled(ir.Buffers, positive, ir.F32, c)
		b.Store(running, b.Plus(b.Scale(b.Read(running), 0.9), b.Scale(b.Reshape(stat, c), 0.1)))
	}
	rows := b.Reshape(x, n, c*h*h)
	mu := b.Scale(b.Reduce(ir.Sum, rows, 1), 1/float64(c*h*h))
	dev := b.Minus(rows, mu)
	b.out(b.Times(dev, b.Map(ir.Rsqrt, b.Shift(b.Scale(b.Reduce(ir.Sum, b.Map(ir.Square, dev), 1), 1/float64(c*h*h)), 1e-5))))
}

// adam updates a flat arena: one loop with three results in place and scalars that depend on the step.
func adam(b *draft) {
	n := b.between(3000, 5000)
	w, g := b.filled(ir.Params, normal, ir.F32, n), b.filled(ir.Grads, normal, ir.F32, n)
	m, v := b.filled(ir.State, normal, ir.F32, n), b.filled(ir.State, positive, ir.F32, n)
	lr, step := b.Read(b.filled(ir.Hyper, positive, ir.F32)), b.Read(b.filled(ir.Hyper, positive, ir.F32))
	norm := b.Map(ir.Sqrt, b.Sum(b.Map(ir.Square, b.Read(g))))
	clip := b.Map(ir.Min, b.Const(1), b.Over(b.Const(10), b.Shift(norm, 1e-6)))
	grad := b.Times(b.Read(g), clip)
	m1 := b.Plus(b.Scale(b.Read(m), 0.9), b.Scale(grad, 0.1))
	v1 := b.Plus(b.Scale(b.Read(v), 0.99), b.Scale(b.Map(ir.Square, grad), 0.01))
	correct := func(beta float64) *ir.Value { return b.Minus(b.Const(1), b.Map(ir.Pow, b.Const(beta), step)) }
	mhat, vhat := b.Over(m1, correct(0.9)), b.Over(v1, correct(0.99))
	b.Store(m, m1)
	b.Store(v, v1)
	b.Store(w, b.Minus(b.Read(w), b.Times(lr, b.Over(mhat, b.Shift(b.Map(ir.Sqrt, vhat), 1e-8)))))
	b.out(norm)
}
