package backendtest

import (
	"fmt"
	"math/rand/v2"

	"github.com/tandem-train/tandem/internal/ir"
)

// opCases: every op of a graph by itself, on odd shapes and on some that are large enough to be shared among threads.
func opCases() []testCase {
	cases := []testCase{
		{"const", func(b *draft) {
			b.bits = true
			b.out(b.Const(0.25))
			b.out(b.Const(-3, b.dims(3, 500)...))
			b.out(b.Const(2, 150, 150)) // too large for a constants region to be sensible
		}},
		{"data", func(b *draft) {
			b.bits = true
			x := make([]float32, 77)
			n := make([]int32, 77)
			for i := range x {
				x[i], n[i] = normal(b.rng), int32(b.rng.Uint32())
			}
			b.out(b.Data(x, 7, 11))
			b.out(b.Add(ir.Data{Content: &ir.Content{Ints: n}}, ir.Of(77)))
		}},
		{"iota", func(b *draft) {
			b.bits = true
			for rank := 1; rank <= 4; rank++ {
				for axis := range rank {
					b.out(b.Iota(axis, b.dims(rank, 3000)...))
				}
			}
		}},
		{"rand", func(b *draft) {
			b.bits = true
			b.out(b.Rand(3, 1000))
			b.out(b.Rand(1<<40, 5, 7, 3))
			b.out(b.Rand(3, 33, b.between(1, 400)))
			r := b.Rand(4, 6, 10) // read through a view, and as it is
			b.out(b.T(r))
			b.out(b.Map(ir.Lt, r, b.Const(0.5)))
		}},
		{"read and store", func(b *draft) {
			b.bits = true
			b.out(b.in(normal, 7, 5))
			b.out(b.ints(1000, 3))
			b.out(b.in(normal))
		}},
		{"reshape", func(b *draft) {
			b.bits = true
			x := b.in(normal, 4, 6, 10)
			b.out(b.Reshape(x, 240))
			b.out(b.Reshape(b.Transpose(x, 2, 0, 1), 8, 30)) // strides can't express it
			b.out(b.Reshape(b.in(normal, 1, 1), []int{}...))
		}},
		{"transpose", func(b *draft) {
			b.bits = true
			for rank := 1; rank <= 5; rank++ {
				x := b.in(normal, b.dims(rank, 3000)...)
				b.out(b.Transpose(x, b.rng.Perm(rank)...))
			}
			b.out(b.T(b.in(normal, 100, 131)))
			b.out(b.T(b.ints(9, 5, 3)))
		}},
		{"slice", func(b *draft) {
			b.bits = true
			for rank := 1; rank <= 5; rank++ {
				b.out(b.sliced(b.in(normal, b.dims(rank, 3000)...)))
			}
		}},
		{"broadcast", func(b *draft) {
			b.bits = true
			for rank := range 6 {
				shape := b.dims(rank, 3000)
				b.out(b.BroadcastTo(b.in(normal, b.narrowed(shape)...), shape...))
			}
		}},
		{"concat", func(b *draft) {
			b.bits = true
			for rank := 1; rank <= 4; rank++ {
				shape := b.dims(rank, 1000)
				axis := b.rng.IntN(rank)
				var args []*ir.Value
				for range b.between(1, 4) {
					shape[axis] = b.between(1, 9)
					args = append(args, b.in(normal, shape...))
				}
				b.out(b.Add(ir.Concat{Axis: axis}, nil, args...))
			}
			x := b.in(normal, 6, 4) // one argument twice, once through a view
			b.out(b.Add(ir.Concat{Axis: 1}, nil, x, b.T(b.in(normal, 5, 6)), x))
			b.out(b.Add(ir.Concat{Axis: 0}, nil, b.ints(9, 2, 3), b.ints(9, 1, 3)))
		}},
		{"unslice", func(b *draft) {
			b.bits = true
			for rank := 1; rank <= 5; rank++ {
				stop := b.dims(rank, 3000)
				start, step, shape := make([]int, rank), make([]int, rank), make([]int, rank)
				for i, d := range stop {
					start[i], step[i] = b.rng.IntN(d), b.between(1, 3)
					shape[i] = (d - start[i] + step[i] - 1) / step[i]
				}
				b.out(b.Add(ir.Unslice{Start: start, Stop: stop, Step: step}, nil, b.in(normal, shape...)))
			}
			op := ir.Unslice{Start: []int{1, 0}, Stop: []int{8, 9}, Step: []int{1, 2}}
			b.out(b.Add(op, nil, b.T(b.in(normal, 4, 6)))) // a view, shorter than what fits
		}},
		{"gather", func(b *draft) {
			b.bits = true
			b.out(b.Add(ir.Gather{}, nil, b.in(normal, 20, 7), b.ints(20, 5, 3)))
			b.out(b.Add(ir.Gather{}, nil, b.in(normal, 20), b.ints(20, 33)))
			b.out(b.Add(ir.Gather{}, nil, b.in(normal, 9, 2, 3), b.ints(9)))
			b.out(b.Add(ir.Gather{}, nil, b.ints(99, 9, 2), b.ints(9, 4)))
			b.out(b.Add(ir.Gather{}, nil, b.in(normal, 300, 64), b.ints(300, 500)))
		}},
		{"scatter add", func(b *draft) {
			b.out(b.Add(ir.ScatterAdd{Rows: 20}, nil, b.ints(20, 5, 3), b.in(normal, 5, 3, 7)))
			b.out(b.Add(ir.ScatterAdd{Rows: 3}, nil, b.ints(3, 40), b.in(normal, 40)))
			b.out(b.Add(ir.ScatterAdd{Rows: 50}, nil, b.ints(50), b.in(normal, 2, 3)))
			b.out(b.Add(ir.ScatterAdd{Rows: 100}, nil, b.ints(100, 700), b.in(normal, 700, 48)))
		}},
		{"argmax", func(b *draft) {
			for rank := 1; rank <= 4; rank++ {
				for axis := range rank {
					b.out(b.Add(ir.ArgMax{Axis: axis}, nil, b.inExact(steps, b.dims(rank, 2000)...)))
				}
			}
			b.out(b.Add(ir.ArgMax{Axis: 1}, nil, b.inExact(normal, 300, 10)))
			b.out(b.Add(ir.ArgMax{Axis: 0}, nil, b.inExact(normal, 3000)))
			all := b.inExact(func(*rand.Rand) float32 { return -1e30 }, 4, 19)
			b.out(b.Add(ir.ArgMax{Axis: 1}, nil, all))
		}},
		{"all-reduce of a rank alone", func(b *draft) {
			b.out(b.Add(ir.AllReduceSum{}, nil, b.in(normal, 5)))
			b.out(b.Add(ir.AllReduceSum{All: true}, nil, b.T(b.in(normal, 5, 3))))
			b.out(b.Scale(b.Add(ir.AllReduceSum{}, nil, b.Sum(b.in(normal, 9, 3), 0)), 0.5))
		}},
		{"softmax", func(b *draft) {
			for _, log := range []bool{false, true} {
				for _, shape := range [][]int{{1}, {10}, {64, 10}, {3, 5, 33}, {2, 1}, {7, 1030}, b.dims(3, 3000)} {
					y := b.Add(ir.Softmax{Log: log}, nil, b.in(wide, shape...))
					b.out(y)
					b.out(b.Add(ir.SoftmaxGrad{Log: log}, nil, y, b.in(normal, shape...)))
				}
			}
		}},
		{"softmax of large numbers", func(b *draft) {
			big := func(rng *rand.Rand) float32 { return 1e4 * float32(rng.IntN(5)-2) }
			b.out(b.Add(ir.Softmax{}, nil, b.inExact(big, 9, 5)))
			b.out(b.Add(ir.Softmax{Log: true}, nil, b.inExact(big, 9, 5)))
		}},
	}
	for _, r := range []ir.Reduction{ir.Sum, ir.MaxOf, ir.MinOf} {
		cases = append(cases,
			testCase{r.String(), func(b *draft) {
				b.bits = r != ir.Sum
				for rank := 1; rank <= 5; rank++ {
					for range 3 {
						x := b.in(normal, b.dims(rank, 2000)...)
						axes := b.rng.Perm(rank)[:b.between(1, rank)]
						b.out(b.Reduce(r, x, axes...))
					}
				}
				for _, shape := range [][]int{{100, 77}, {3, 1500}, {1500, 3}, {16, 16, 17}} {
					x := b.in(normal, shape...)
					for axis := range shape {
						b.out(b.Reduce(r, x, axis))
					}
					b.out(b.Reduce(r, x))
					b.out(b.Reduce(r, b.T(x), 0))
				}
			}},
			testCase{r.String() + " of a chain", func(b *draft) {
				x, y := b.in(normal, 60, 50), b.in(normal, 50)
				chain := b.Times(b.Map(ir.Tanh, b.Plus(x, y)), b.T(b.in(normal, 50, 60)))
				b.out(b.Reduce(r, chain, 0))
				b.out(b.Reduce(r, b.Map(ir.Square, x), 1))
				b.out(b.Reduce(r, b.Plus(b.BroadcastTo(y, 60, 50), b.Iota(0, 60, 50))))
			}},
			testCase{r.String() + " large", func(b *draft) {
				b.bits = r != ir.Sum
				x := b.in(normal, 257, 1031)
				b.out(b.Reduce(r, x, 0))
				b.out(b.Reduce(r, x, 1))
				b.out(b.Reduce(r, x))
			}})
	}
	cases = append(cases, testCase{"max with NaN", func(b *draft) {
		b.bits = true
		x := b.in(func(rng *rand.Rand) float32 {
			if rng.IntN(40) == 0 {
				return nan32
			}
			return normal(rng)
		}, 30, 70)
		b.out(b.Reduce(ir.MaxOf, x, 1))
		b.out(b.Reduce(ir.MinOf, x, 0))
	}})
	cases = append(cases, matMulCases()...)
	cases = append(cases, convCases(either)...)
	cases = append(cases, poolCases(either)...)
	cases = append(cases, testCase{"conv of views", convViews})
	return append(cases, lossCases()...)
}

func matMulCases() []testCase {
	// product multiplies operands of which each may be a transposed view.
	product := func(b *draft, m, k, n int, ta, tb bool) *ir.Value {
		operand := func(rows, cols int, t bool) *ir.Value {
			if t {
				return b.T(b.in(normal, cols, rows))
			}
			return b.in(normal, rows, cols)
		}
		return b.MatMul(operand(m, k, ta), operand(k, n, tb))
	}
	var cases []testCase
	for i, name := range []string{"plain", "left transposed", "right transposed", "both transposed"} {
		cases = append(cases, testCase{"matmul " + name, func(b *draft) {
			for _, s := range [][3]int{{1, 1, 1}, {1, 7, 1}, {7, 1, 5}, {1, 300, 40}, {40, 300, 1}, {13, 17, 19}, {64, 64, 64}, {33, 257, 31}} {
				b.out(product(b, s[0], s[1], s[2], i&1 != 0, i&2 != 0))
			}
			for range 4 {
				b.out(product(b, b.between(1, 70), b.between(1, 70), b.between(1, 70), i&1 != 0, i&2 != 0))
			}
		}}, testCase{"matmul large " + name, func(b *draft) {
			b.large = true
			b.out(product(b, 193, 411, 150, i&1 != 0, i&2 != 0))
			b.out(product(b, 17, 1025, 260, i&1 != 0, i&2 != 0))
			b.out(product(b, 600, 9, 530, i&1 != 0, i&2 != 0))
		}})
	}
	return append(cases,
		testCase{"matmul batched", func(b *draft) {
			b.out(b.MatMul(b.in(normal, 3, 5, 7), b.in(normal, 3, 7, 9)))
			b.out(b.MatMul(b.T(b.in(normal, 3, 5, 7)), b.in(normal, 3, 5, 9)))
			b.out(b.MatMul(b.in(normal, 1, 5, 7), b.T(b.in(normal, 1, 4, 7))))
			// Heads of attention: the batch dimension is not the outermost in memory, and one side repeats.
			q := b.Transpose(b.in(normal, 20, 4, 8), 1, 0, 2)
			b.out(b.MatMul(q, b.Transpose(b.in(normal, 20, 4, 8), 1, 2, 0)))
			b.out(b.MatMul(q, b.BroadcastTo(b.in(normal, 8, 6), 4, 8, 6)))
		}},
		testCase{"matmul of slices", func(b *draft) {
			x := b.in(normal, 40, 50)
			b.out(b.MatMul(b.SliceAxis(x, 1, 3, 20), b.SliceAxis(x, 0, 10, 27)))
			y := b.sliced(x)
			b.out(b.MatMul(y, b.BroadcastTo(b.in(normal, 1, 12), y.Shape[1], 12)))
			b.out(b.MatMul(b.BroadcastTo(b.in(normal, 8, 1), 8, 40), x))
		}},
		testCase{"matmul with epilogue", func(b *draft) {
			for _, s := range [][3]int{{1, 5, 3}, {33, 20, 65}, {130, 40, 70}} {
				bias := b.in(normal, s[2])
				b.out(b.Plus(product(b, s[0], s[1], s[2], false, true), bias))
				b.out(b.Map(ir.Relu, b.Plus(bias, product(b, s[0], s[1], s[2], false, false))))
				b.out(b.Map(ir.Relu, product(b, s[0], s[1], s[2], true, false)))
				b.out(b.Plus(product(b, s[0], s[1], s[2], false, false), b.in(normal, s[0], 1))) // no bias: along the rows
				pre := b.Plus(product(b, s[0], s[1], s[2], false, false), bias)                  // both are wanted
				b.out(pre)
				b.out(b.Map(ir.Relu, pre))
			}
			b.out(b.Plus(product(b, 1, 5, 3, false, true), product(b, 1, 4, 3, false, true))) // each is a vector that the other might add
			b.out(b.Map(ir.Relu, b.Plus(b.MatMul(b.in(normal, 3, 5, 7), b.in(normal, 3, 7, 9)), b.in(normal, 9))))
		}},
		testCase{"matmul of itself", func(b *draft) {
			x := b.in(normal, 30, 30)
			b.out(b.MatMul(x, x))
			b.out(b.MatMul(x, b.T(x)))
		}})
}

// window draws a geometry, not square in anything, and an input that it fits.
func (b *draft) window(kernel, dilation int) (w ir.Window, h, wd int) {
	w.Groups = 1
	var in [2]int
	for d := range 2 {
		w.Kernel[d] = b.between(1, kernel)
		w.Stride[d] = b.between(1, 3)
		w.Dilation[d] = b.between(1, dilation)
		w.Padding[d] = b.rng.IntN(w.Kernel[d]/2 + 1)
		in[d] = w.Dilation[d]*(w.Kernel[d]-1) + b.between(1, 12)
	}
	return w, in[0], in[1]
}

// conv stores a convolution and both its gradients.
func (b *draft) conv(w ir.Window, n, c, o, h, wd int) {
	shape := w.FromNCHW([4]int{n, c, h, wd})
	filters := w.FromNCHW([4]int{o, c / w.Groups, w.Kernel[0], w.Kernel[1]})
	x, k := b.in(normal, shape[:]...), b.in(normal, filters[:]...)
	y := b.Add(ir.Conv2d{Conv: w}, nil, x, k)
	dy := b.in(normal, y.Shape...)
	b.out(y)
	b.out(b.Add(ir.Conv2dGradX{Conv: w, In: shape}, nil, k, dy))
	b.out(b.Add(ir.Conv2dGradW{Conv: w}, nil, x, dy))
}

func square(k, s, p, d, groups int) ir.Window {
	return ir.Window{Kernel: [2]int{k, k}, Stride: [2]int{s, s}, Padding: [2]int{p, p}, Dilation: [2]int{d, d}, Groups: groups}
}

// last is a window with channels last.
func last(w ir.Window) ir.Window {
	w.ChannelsLast = true
	return w
}

// either is a window as it is.
func either(w ir.Window) ir.Window { return w }

// convCases are convolutions whose windows lie as lay makes them.
func convCases(lay func(ir.Window) ir.Window) []testCase {
	var cases []testCase
	for i := range 8 {
		cases = append(cases, testCase{fmt.Sprintf("conv random %d", i), func(b *draft) {
			for range 3 {
				w, h, wd := b.window(4, 3)
				w.Padding[b.rng.IntN(2)] += b.rng.IntN(3)
				w.Groups = b.between(1, 3)
				b.conv(lay(w), b.between(1, 3), w.Groups*b.between(1, 4), w.Groups*b.between(1, 5), h, wd)
			}
		}})
	}
	return append(cases,
		testCase{"conv 1x1", func(b *draft) { b.conv(lay(square(1, 1, 0, 1, 1)), 2, 5, 7, 6, 9) }},
		testCase{"conv over the whole input", func(b *draft) { b.conv(lay(square(5, 1, 0, 1, 1)), 3, 2, 4, 5, 5) }},
		testCase{"conv depthwise", func(b *draft) { b.conv(lay(square(3, 1, 1, 1, 6)), 2, 6, 6, 9, 8) }},
		testCase{"conv mostly padding", func(b *draft) { b.conv(lay(square(3, 2, 4, 2, 1)), 1, 2, 3, 2, 3) }},
		testCase{"conv stride skips input", func(b *draft) { b.conv(lay(square(1, 3, 0, 1, 1)), 2, 3, 2, 8, 7) }},
		testCase{"conv large", func(b *draft) {
			b.large = true
			b.conv(lay(square(3, 1, 1, 1, 1)), 3, 5, 18, 28, 27)
			b.conv(lay(square(5, 2, 2, 1, 1)), 7, 1, 10, 28, 28)
		}},
		testCase{"conv with epilogue", func(b *draft) {
			w := lay(square(3, 1, 1, 1, 2))
			conv := func() *ir.Value {
				x, k := w.FromNCHW([4]int{3, 4, 7, 6}), w.FromNCHW([4]int{10, 2, 3, 3})
				return b.Add(ir.Conv2d{Conv: w}, nil, b.in(normal, x[:]...), b.in(normal, k[:]...))
			}
			s := w.FromNCHW([4]int{1, 10, 1, 1})
			bias := b.Reshape(b.in(normal, 10), s[:]...)
			b.out(b.Plus(conv(), bias))
			b.out(b.Map(ir.Relu, b.Plus(bias, conv())))
			b.out(b.Map(ir.Relu, conv()))
			none := w.FromNCHW([4]int{1, 1, 1, 6})
			b.out(b.Plus(conv(), b.in(normal, none[:]...))) // no bias: along the width
		}})
}

// convViews are convolutions of what does not lie as they want it.
func convViews(b *draft) {
	x := b.Transpose(b.in(normal, 2, 7, 6, 4), 0, 3, 1, 2) // channels last in memory
	k := b.SliceAxis(b.in(normal, 9, 4, 3, 3), 0, 2, 7)
	b.out(b.Add(ir.Conv2d{Conv: square(3, 1, 0, 1, 1)}, nil, x, k))
}

// poolCases are poolings whose windows lie as lay makes them.
func poolCases(lay func(ir.Window) ir.Window) []testCase {
	// pool stores a pooling and its gradient. Few values in x: ties are common.
	pool := func(b *draft, op ir.Pool2d, n, c, h, w int) {
		op.Pool = lay(op.Pool)
		shape := op.Pool.FromNCHW([4]int{n, c, h, w})
		x := b.inExact(steps, shape[:]...)
		y := b.Add(op, nil, x)
		grad := ir.Pool2dGrad{Mode: op.Mode, Pool: op.Pool, OutHW: op.OutHW}
		args := []*ir.Value{x, b.in(normal, y.Shape...)}
		if op.Mode != ir.MaxPool {
			grad.In = shape
			args = args[1:]
		}
		b.out(y)
		b.out(b.Add(grad, nil, args...))
	}
	cases := []testCase{
		{"adaptive pool", func(b *draft) {
			for _, out := range [][2]int{{1, 1}, {3, 2}, {7, 7}, {5, 12}} {
				pool(b, ir.Pool2d{Mode: ir.AdaptiveAvgPool, OutHW: out}, 2, 3, 7, 10)
			}
			pool(b, ir.Pool2d{Mode: ir.AdaptiveAvgPool, OutHW: [2]int{4, 4}}, 1, 2, 3, 2) // more out than in
		}},
		{"max pool of NaN and infinities", func(b *draft) {
			odd := func(rng *rand.Rand) float32 { return []float32{1, 2, nan32, -inf32, inf32}[rng.IntN(5)] }
			b.out(b.Add(ir.Pool2d{Mode: ir.MaxPool, Pool: lay(square(2, 2, 0, 1, 1))}, nil, b.inExact(odd, 2, 3, 8, 8)))
		}},
	}
	for _, mode := range []ir.PoolMode{ir.MaxPool, ir.AvgPool, ir.AvgPoolNoPad} {
		dilation := 1
		if mode == ir.MaxPool {
			dilation = 2
		}
		cases = append(cases,
			testCase{mode.String() + " pool", func(b *draft) {
				for range 6 {
					w, h, wd := b.window(4, dilation)
					pool(b, ir.Pool2d{Mode: mode, Pool: w}, b.between(1, 3), b.between(1, 4), h, wd)
				}
				pool(b, ir.Pool2d{Mode: mode, Pool: square(2, 2, 0, 1, 1)}, 3, 5, 12, 12)
				pool(b, ir.Pool2d{Mode: mode, Pool: square(3, 2, 1, 1, 1)}, 2, 3, 9, 11)
			}},
			testCase{mode.String() + " pool large", func(b *draft) {
				b.large = true
				pool(b, ir.Pool2d{Mode: mode, Pool: square(2, 2, 0, 1, 1)}, 8, 16, 24, 26)
			}})
	}
	return cases
}

// placed stores the places of a max pooling, at times its values, too, and its gradient by the places.
func (b *draft) placed(w ir.Window, n, c, h, wd int) {
	w.Padding = [2]int{}
	pool := last(w)
	shape := pool.FromNCHW([4]int{n, c, h, wd})
	x := b.inExact(steps, shape[:]...)
	places := b.Add(ir.PoolPlaces{Pool: pool}, nil, x)
	b.out(places)
	if b.rng.IntN(2) == 0 {
		b.out(b.Add(ir.Pool2d{Mode: ir.MaxPool, Pool: pool}, nil, x))
	}
	dy := b.in(normal, n, places.Shape[1], places.Shape[2], c)
	b.out(b.Add(ir.Pool2dGrad{Mode: ir.MaxPool, Pool: pool, In: shape, Placed: true}, nil, places, dy))
}

// lastCases are ops with channels last.
func lastCases() []testCase {
	return append(append(convCases(last), poolCases(last)...),
		testCase{"places of max pool", func(b *draft) {
			for range 6 {
				w, h, wd := b.window(4, 2)
				b.placed(w, b.between(1, 3), 4*b.between(1, 3), h, wd)
			}
			b.placed(square(2, 2, 0, 1, 1), 3, 8, 12, 11)
			b.placed(square(3, 2, 0, 1, 1), 2, 4, 9, 11)
		}},
		testCase{"random numbers", func(b *draft) {
			b.bits = true
			b.out(b.Add(ir.Rand{Stream: 3, ChannelsLast: true}, ir.Of(3, 4, 5, 6)))
			b.out(b.Add(ir.Rand{Stream: 4, ChannelsLast: true}, ir.Of(5, 3, 2, 7)))
			b.out(b.Add(ir.Rand{Stream: 5, ChannelsLast: true}, ir.Of(2, 9)))
			// Rows of a multiple of four pixels.
			b.out(b.Add(ir.Rand{Stream: 6, ChannelsLast: true}, ir.Of(3, 5, 8, 12)))
			b.out(b.Select(b.Map(ir.Lt, b.Add(ir.Rand{Stream: 7, ChannelsLast: true}, ir.Of(70, 3, 4, 32)), b.Const(0.3)), b.Const(0), b.in(normal, 70, 3, 4, 32)))
		}})
}

func lossCases() []testCase {
	loss := func(b *draft, smoothing float64, ignore, n, c int) {
		b.floor = 1e-9 // the loss of one class is 0
		labels, weights, dloss := b.ints(c, n), b.in(positive, c), b.in(normal, n)
		x := [3]*ir.Value{b.in(normal, n, c), b.in(normal, n, c), b.in(normal, n, c)}
		for _, logits := range [...][2]*ir.Value{{x[0], x[0]}, {x[1], x[2]}} { // in one step, and in two
			b.out(b.Add(ir.CrossEntropy{Smoothing: smoothing, Ignore: ignore}, nil, logits[0], labels, weights))
			b.out(b.Add(ir.CrossEntropyGrad{Smoothing: smoothing, Ignore: ignore}, nil, logits[1], labels, weights, dloss))
		}
	}
	var cases []testCase
	for _, c := range []struct {
		name      string
		smoothing float64
		ignore    int
	}{{"", 0, -100}, {" smoothed", 0.1, -100}, {" ignoring a class", 0, 2}, {" smoothed, ignoring", 0.3, 0}} {
		cases = append(cases, testCase{"cross entropy" + c.name, func(b *draft) {
			loss(b, c.smoothing, c.ignore, 1, 1)
			loss(b, c.smoothing, c.ignore, 7, 3)
			loss(b, c.smoothing, c.ignore, 64, 10)
			loss(b, c.smoothing, c.ignore, 300, 101)
		}})
	}
	cases = append(cases, testCase{"cross entropy of sure answers", func(b *draft) {
		b.floor = 1e-15
		for _, c := range []int{2, 7, 40} {
			const n = 30
			right := make([]int32, n)
			for i := range right {
				right[i] = int32(i % c)
			}
			i := 0
			sure := func(rng *rand.Rand) float32 {
				z := 0.25 * normal(rng)
				if i/c%n%c == i%c {
					z += 16
				}
				i++
				return z
			}
			logits, labels, ones := b.in(sure, n, c), b.Add(ir.Data{Content: &ir.Content{Ints: right}}, ir.Of(n)), b.Const(1, c)
			b.out(b.Add(ir.CrossEntropy{Ignore: -1}, nil, logits, labels, ones))
			b.out(b.Add(ir.CrossEntropyGrad{Ignore: -1}, nil, logits, labels, ones, b.in(normal, n)))
		}
	}})
	return append(cases, testCase{"cross entropy with a negative label to ignore", func(b *draft) {
		// Labels -1..3.
		labels := b.Read(b.filled(ir.Input, func(rng *rand.Rand) float32 { return float32(rng.IntN(5) - 1) }, ir.I32, 40))
		logits, weights := b.in(normal, 40, 4), b.Const(1, 4)
		b.out(b.Add(ir.CrossEntropy{Ignore: -1}, nil, logits, labels, weights))
		b.out(b.Add(ir.CrossEntropyGrad{Ignore: -1}, nil, logits, labels, weights, b.Const(0.025, 40)))
	}})
}
