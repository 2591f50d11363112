package lower_test

import (
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

type (
	f1 = func(a node) (node, error)
	f2 = func(a, b node) (node, error)
)

// on1 is f of a matrix with numbers in lo..hi.
func on1(f f1, lo, hi float64) func(b *build) node {
	return func(b *build) node { return b.must(f(b.v("x", lo, hi, 3, 4))) }
}

func on2(f f2, lo, hi float64, a, bShape []int) func(b *build) node {
	return func(b *build) node {
		return b.must(f(b.v("a", lo, hi, a...), b.v("b", lo, hi, bShape...)))
	}
}

func same(f func(a, b node, retSame bool) (node, error), retSame bool) f2 {
	return func(a, b node) (node, error) { return f(a, b, retSame) }
}

func along(f func(a node, along ...int) (node, error), axes ...int) f1 {
	return func(a node) (node, error) { return f(a, axes...) }
}

func sh(dims ...int) []int { return dims }

func TestUnary(t *testing.T) {
	for _, c := range []opCase{
		{name: "abs", f: on1(gorgonia.Abs, -2, 2)},
		{name: "sign", f: on1(gorgonia.Sign, -2, 2), noGrad: true},
		{name: "ceil", f: on1(gorgonia.Ceil, -2, 2), noGrad: true},
		{name: "floor", f: on1(gorgonia.Floor, -2, 2), noGrad: true},
		{name: "sin", f: on1(gorgonia.Sin, -2, 2)},
		{name: "cos", f: on1(gorgonia.Cos, -2, 2)},
		{name: "exp", f: on1(gorgonia.Exp, -2, 2)},
		{name: "ln", f: on1(gorgonia.Log, 0.2, 2)},
		// d/dx log2(x) = 1/(x ln 2); Gorgonia derives ln 2 / x.
		{name: "log2", f: on1(gorgonia.Log2, 0.2, 2), badGrad: true},
		{name: "neg", f: on1(gorgonia.Neg, -2, 2)},
		{name: "square", f: on1(gorgonia.Square, -2, 2)},
		{name: "sqrt", f: on1(gorgonia.Sqrt, 0.2, 2)},
		{name: "inverse", f: on1(gorgonia.Inverse, 0.5, 2)},
		// d/dx x^-1/2 = -y³/2; Gorgonia derives -1/(2y³).
		{name: "inverseSqrt", f: on1(gorgonia.InverseSqrt, 0.2, 2), badGrad: true},
		{name: "cube", f: on1(gorgonia.Cube, -2, 2)},
		{name: "tanh", f: on1(gorgonia.Tanh, -2, 2)},
		{name: "sigmoid", f: on1(gorgonia.Sigmoid, -2, 2)},
		{name: "log1p", f: on1(gorgonia.Log1p, -0.5, 2)},
		{name: "expm1", f: on1(gorgonia.Expm1, -2, 2)},
		{name: "softplus", f: on1(gorgonia.Softplus, -2, 2)},
		{name: "mish", f: on1(gorgonia.Mish, -2, 2)},
		{name: "rectify", f: on1(gorgonia.Rectify, -2, 2)},
		{name: "leaky", f: on1(func(a node) (node, error) { return gorgonia.LeakyRelu(a, 0.1) }, -2, 2)},
	} {
		t.Run(c.name, c.check)
	}
	// The same on a scalar.
	t.Run("scalar", opCase{f: func(b *build) node {
		return b.must(gorgonia.Tanh(b.must(gorgonia.Square(b.v("x", 0.5, 1)))))
	}}.check)
	// Gorgonia rewrites these while it builds.
	for _, c := range []opCase{
		{name: "log(1+x)", f: func(b *build) node {
			return b.must(gorgonia.Log(b.must(gorgonia.Add(b.c(1), b.v("x", 0.1, 1, 3)))))
		}},
		{name: "log(sigmoid(x))", f: func(b *build) node {
			return b.must(gorgonia.Log(b.must(gorgonia.Sigmoid(b.v("x", -3, 3, 5)))))
		}},
		{name: "1-sigmoid(x)", f: func(b *build) node {
			return b.must(gorgonia.Sub(b.c(1), b.must(gorgonia.Sigmoid(b.v("x", -3, 3, 5)))))
		}},
		{name: "exp(x)-1", f: func(b *build) node {
			return b.must(gorgonia.Sub(b.must(gorgonia.Exp(b.v("x", -1, 1, 5))), b.c(1)))
		}},
	} {
		t.Run(c.name, c.check)
	}
}

func TestBinary(t *testing.T) {
	fns := []struct {
		name   string
		f      f2
		noGrad bool
	}{
		{"add", gorgonia.Add, false},
		{"sub", gorgonia.Sub, false},
		{"mul", gorgonia.HadamardProd, false},
		{"div", gorgonia.HadamardDiv, false},
		{"pow", gorgonia.Pow, false},
		{"lt", same(gorgonia.Lt, true), true},
		{"gt", same(gorgonia.Gt, true), true},
		{"lte", same(gorgonia.Lte, true), true},
		{"gte", same(gorgonia.Gte, true), true},
		{"eq", same(gorgonia.Eq, true), true},
		{"ne", same(gorgonia.Ne, true), true},
		{"lt bool", same(gorgonia.Lt, false), true},
		{"gt bool", same(gorgonia.Gt, false), true},
		{"lte bool", same(gorgonia.Lte, false), true},
		{"gte bool", same(gorgonia.Gte, false), true},
		{"eq bool", same(gorgonia.Eq, false), true},
		{"ne bool", same(gorgonia.Ne, false), true},
		{"min", gorgonia.MinBetween, false},
		{"max", gorgonia.MaxBetween, false},
	}
	shapes := []struct {
		name string
		a, b []int
	}{
		{"tensors", sh(3, 4), sh(3, 4)},
		{"scalar left", nil, sh(3, 4)},
		{"scalar right", sh(3, 4), nil},
		{"scalars", nil, nil},
		{"ones", sh(1), sh(1)},
		{"vectors", sh(5), sh(5)},
		{"rank 3", sh(2, 3, 2), sh(2, 3, 2)},
	}
	for _, f := range fns {
		for _, s := range shapes {
			if (f.name == "min" || f.name == "max") && len(s.a) != len(s.b) {
				continue // they take equal shapes only
			}
			c := opCase{f: on2(f.f, 0.5, 2, s.a, s.b), noGrad: f.noGrad}
			// Gorgonia's MinBetween and MaxBetween do not run on scalars.
			c.noTape = (f.name == "min" || f.name == "max") && len(s.a) == 0
			t.Run(f.name+"/"+s.name, c.check)
		}
	}
	t.Run("equal elements", opCase{noGrad: true, f: func(b *build) node {
		x := b.v("x", 0, 1, 3)
		return b.must(gorgonia.Concat(0, b.must(gorgonia.Eq(x, x, true)), b.must(gorgonia.Lte(x, x, true)), b.must(gorgonia.Gt(x, x, true))))
	}}.check)
}

func TestProducts(t *testing.T) {
	batchedMul := func(transes ...bool) f2 {
		return func(a, b node) (node, error) { return gorgonia.BatchedMatMul(a, b, transes...) }
	}
	dot := func(a, b []int) f2 {
		return func(x, y node) (node, error) { return gorgonia.Tensordot(a, b, x, y) }
	}
	for _, c := range []opCase{
		{name: "matrices", f: on2(gorgonia.Mul, -1, 1, sh(3, 4), sh(4, 2))},
		{name: "matrix vector", f: on2(gorgonia.Mul, -1, 1, sh(3, 4), sh(4))},
		{name: "vector matrix", f: on2(gorgonia.Mul, -1, 1, sh(3), sh(3, 4))},
		{name: "vectors", f: on2(gorgonia.Mul, -1, 1, sh(4), sh(4))},
		{name: "scalar", f: on2(gorgonia.Mul, -1, 1, nil, sh(3, 4))},
		{name: "one row", f: on2(gorgonia.Mul, -1, 1, sh(1, 4), sh(4, 3))},
		{name: "one column", f: on2(gorgonia.Mul, -1, 1, sh(3, 4), sh(4, 1))},
		{name: "outer", f: on2(gorgonia.OuterProd, -1, 1, sh(3), sh(4)), noGrad: true},
		{name: "batched", f: on2(batchedMul(), -1, 1, sh(2, 3, 4), sh(2, 4, 2))},
		{name: "batched aT", f: on2(batchedMul(true), -1, 1, sh(2, 4, 3), sh(2, 4, 2))},
		{name: "batched bT", f: on2(batchedMul(false, true), -1, 1, sh(2, 3, 4), sh(2, 2, 4))},
		{name: "batched aT bT", f: on2(batchedMul(true, true), -1, 1, sh(2, 4, 3), sh(2, 2, 4))},
		{name: "batched rank 4", f: on2(batchedMul(), -1, 1, sh(2, 3, 2, 4), sh(2, 3, 4, 2))},
		{name: "tensordot", f: on2(dot(sh(1), sh(0)), -1, 1, sh(3, 4), sh(4, 2))},
		{name: "tensordot two", f: on2(dot(sh(0, 2), sh(2, 0)), -1, 1, sh(2, 3, 4), sh(4, 5, 2))},
		{name: "square outer", f: on2(gorgonia.OuterProd, -1, 1, sh(3), sh(3)), badGrad: true},
	} {
		t.Run(c.name, c.check)
	}
}

func TestReductions(t *testing.T) {
	for _, c := range []opCase{
		{name: "sum", f: on1(along(gorgonia.Sum), -1, 1)},
		{name: "sum 0", f: on1(along(gorgonia.Sum, 0), -1, 1)},
		{name: "sum 1", f: on1(along(gorgonia.Sum, 1), -1, 1)},
		{name: "mean", f: on1(along(gorgonia.Mean), -1, 1)},
		{name: "mean 0", f: on1(along(gorgonia.Mean, 0), -1, 1)},
		{name: "mean 1", f: on1(along(gorgonia.Mean, 1), -1, 1)},
		{name: "max", f: on1(along(gorgonia.Max), -1, 1)},
		{name: "max 0", f: on1(along(gorgonia.Max, 0), -1, 1)},
		{name: "max 1", f: on1(along(gorgonia.Max, 1), -1, 1)},
		{name: "sum 0 2 of 3", f: func(b *build) node { return b.must(gorgonia.Sum(b.v("x", -1, 1, 2, 3, 4), 0, 2)) }},
		{name: "sum 1 2 of 3", f: func(b *build) node { return b.must(gorgonia.Sum(b.v("x", -1, 1, 2, 3, 4), 1, 2)) }},
		{name: "sum 0 1 of 3", f: func(b *build) node { return b.must(gorgonia.Sum(b.v("x", -1, 1, 2, 3, 4), 0, 1)) }},
		{name: "mean of 3", f: func(b *build) node { return b.must(gorgonia.Mean(b.v("x", -1, 1, 2, 3, 4))) }},
		{name: "max 1 of 3", f: func(b *build) node { return b.must(gorgonia.Max(b.v("x", -1, 1, 2, 3, 4), 1)) }},
		{name: "sum of vector", f: func(b *build) node { return b.must(gorgonia.Sum(b.v("x", -1, 1, 5))) }},
		{name: "sum of column", f: func(b *build) node { return b.must(gorgonia.Sum(b.v("x", -1, 1, 5, 1))) }},
		{name: "sum of one", f: func(b *build) node { return b.must(gorgonia.Sum(b.v("x", -1, 1, 1))) }},
		{name: "log sum exp", f: func(b *build) node {
			x := b.v("x", -1, 1, 5)
			return b.must(gorgonia.Log(b.must(gorgonia.Sum(b.must(gorgonia.Exp(x))))))
		}},
		{name: "norm 2", f: func(b *build) node { return b.must(gorgonia.Norm(b.v("x", 0.1, 1, 3, 4), 1, 2)) }},
		{name: "norm 3", f: func(b *build) node { return b.must(gorgonia.Norm(b.v("x", 0.1, 1, 3, 4), 0, 3)) }},
		{name: "identity", noGrad: true, f: func(b *build) node {
			return b.must(gorgonia.ApplyOp(gorgonia.Iop{}, b.v("x", 0, 1)))
		}},
		{name: "sizeOf", noGrad: true, f: func(b *build) node { return b.must(gorgonia.SizeOf(1, b.v("x", 0, 1, 3, 4))) }},
	} {
		t.Run(c.name, c.check)
	}
}

func TestShapes(t *testing.T) {
	x := func(b *build) node { return b.v("x", -1, 1, 3, 4) }
	x3 := func(b *build) node { return b.v("x", -1, 1, 2, 3, 4) }
	cut := func(x func(*build) node, s ...tensor.Slice) func(b *build) node {
		return func(b *build) node { return b.must(gorgonia.Slice(x(b), s...)) }
	}
	bc := func(f func(a, b node, l, r []byte) (node, error), a, bs []int, l, r []byte) func(b *build) node {
		return func(b *build) node { return b.must(f(b.v("a", 0.5, 2, a...), b.v("b", 0.5, 2, bs...), l, r)) }
	}
	auto := func(f func(a, b node, l, r []byte) (node, error), a, bs []int) func(b *build) node {
		return func(b *build) node { return b.must(gorgonia.Auto(f, b.v("a", 0.5, 2, a...), b.v("b", 0.5, 2, bs...))) }
	}
	for _, c := range []opCase{
		{name: "reshape", f: func(b *build) node { return b.must(gorgonia.Reshape(x(b), tensor.Shape{2, 6})) }},
		{name: "ravel", f: func(b *build) node { return b.must(gorgonia.Ravel(x(b))) }},
		{name: "transpose", f: func(b *build) node { return b.must(gorgonia.Transpose(x(b))) }},
		{name: "transpose 3", f: func(b *build) node { return b.must(gorgonia.Transpose(x3(b), 2, 0, 1)) }},
		{name: "slice rows", f: cut(x, gorgonia.S(1, 3))},
		{name: "slice columns", f: cut(x, nil, gorgonia.S(1, 3))},
		{name: "slice both", f: cut(x, gorgonia.S(0, 2), gorgonia.S(1, 4))},
		{name: "slice one row", f: cut(x, gorgonia.S(1))},
		{name: "slice one column", f: cut(x, nil, gorgonia.S(2))},
		{name: "slice one element", f: cut(x, gorgonia.S(1), gorgonia.S(2))},
		{name: "slice step", f: cut(x, nil, gorgonia.S(0, 4, 2))},
		// Gorgonia says that 0:5:2 is two elements, and takes three; two it is.
		{name: "slice step uneven", noTape: true, f: func(b *build) node {
			return b.must(gorgonia.Slice(b.v("x", -1, 1, 3, 5), nil, gorgonia.S(0, 5, 2)))
		}},
		{name: "slice all", f: cut(x, nil, nil)},
		{name: "slice rank 3", f: cut(x3, nil, gorgonia.S(1), gorgonia.S(1, 3))},
		{name: "concat 0", f: func(b *build) node {
			return b.must(gorgonia.Concat(0, x(b), b.v("y", -1, 1, 2, 4)))
		}},
		{name: "concat 1", f: func(b *build) node {
			return b.must(gorgonia.Concat(1, x(b), b.v("y", -1, 1, 3, 1), b.v("z", -1, 1, 3, 2)))
		}},
		{name: "unconcat", f: func(b *build) node {
			parts, err := gorgonia.Unconcat(x(b), 1, 2)
			if err != nil {
				b.t.Fatal(err)
			}
			return b.must(gorgonia.HadamardProd(parts[0], parts[1]))
		}},
		{name: "broadcast add rows", f: bc(gorgonia.BroadcastAdd, sh(3, 4), sh(1, 4), nil, []byte{0})},
		{name: "broadcast add vector", f: bc(gorgonia.BroadcastAdd, sh(3, 4), sh(4), nil, []byte{0})},
		{name: "broadcast sub left", f: bc(gorgonia.BroadcastSub, sh(3, 1), sh(3, 4), []byte{1}, nil)},
		{name: "broadcast mul both", f: bc(gorgonia.BroadcastHadamardProd, sh(3, 1), sh(1, 4), []byte{1}, []byte{0})},
		{name: "broadcast div", f: bc(gorgonia.BroadcastHadamardDiv, sh(2, 3, 4), sh(1, 3, 1), nil, []byte{0, 2})},
		{name: "broadcast pow", f: bc(gorgonia.BroadcastPow, sh(3, 4), sh(1, 4), nil, []byte{0})},
		{name: "auto add", f: auto(gorgonia.BroadcastAdd, sh(3, 4), sh(1, 4))},
		{name: "auto mul", f: auto(gorgonia.BroadcastHadamardProd, sh(1, 4), sh(3, 4))},
		{name: "auto mul 4", f: auto(gorgonia.BroadcastHadamardProd, sh(2, 3, 2, 2), sh(1, 3, 1, 1))},
		{name: "by indices", f: func(b *build) node {
			return b.must(gorgonia.ByIndices(x(b), b.ints("i", 3, 5), 0))
		}},
		// Gorgonia adds up the wrong elements along axes other than 0.
		{name: "by indices 1", noTapeGrad: true, f: func(b *build) node {
			return b.must(gorgonia.ByIndices(x(b), b.ints("i", 4, 6), 1))
		}},
	} {
		t.Run(c.name, c.check)
	}
}

func TestLayers(t *testing.T) {
	img := func(b *build) node { return b.v("x", -1, 1, 2, 2, 5, 4) }
	conv := func(o, kh, kw int, pad, stride, dilation []int) func(b *build) node {
		return func(b *build) node {
			return b.must(gorgonia.Conv2d(img(b), b.v("w", -1, 1, o, 2, kh, kw), tensor.Shape{kh, kw}, pad, stride, dilation))
		}
	}
	pool := func(kh, kw int, pad, stride []int) func(b *build) node {
		return func(b *build) node { return b.must(gorgonia.MaxPool2D(img(b), tensor.Shape{kh, kw}, pad, stride)) }
	}
	for _, c := range []opCase{
		{name: "softmax", f: on1(along(gorgonia.SoftMax), -2, 2)},
		{name: "softmax 0", f: on1(along(gorgonia.SoftMax, 0), -2, 2)},
		{name: "softmax vector", f: func(b *build) node { return b.must(gorgonia.SoftMax(b.v("x", -2, 2, 5))) }},
		{name: "log softmax", f: on1(along(gorgonia.LogSoftMax), -2, 2)},
		{name: "log softmax 0", f: on1(along(gorgonia.LogSoftMax, 0), -2, 2)},
		{name: "log of softmax", f: func(b *build) node {
			return b.must(gorgonia.Log(b.must(gorgonia.SoftMax(b.v("x", -2, 2, 3, 4)))))
		}},
		{name: "cross entropy", f: func(b *build) node {
			logp := b.must(gorgonia.LogSoftMax(b.v("x", -2, 2, 3, 4)))
			hot := b.fixed("hot", 0, 1, 3, 4)
			return b.must(gorgonia.Neg(b.must(gorgonia.Mean(b.must(gorgonia.HadamardProd(logp, hot))))))
		}},
		{name: "binary cross entropy", f: func(b *build) node {
			p := b.must(gorgonia.Sigmoid(b.v("x", -2, 2, 5)))
			return b.must(gorgonia.Mean(b.must(gorgonia.BinaryXent(p, b.fixed("y", 0.1, 0.9, 5)))))
		}},
		{name: "softmax column", noTapeGrad: true, f: func(b *build) node { // its gradient runs along the other axis
			return b.must(gorgonia.SoftMax(b.v("x", -2, 2, 5, 1)))
		}},
		{name: "conv", f: conv(4, 3, 3, sh(0, 0), sh(1, 1), sh(1, 1))},
		{name: "conv padded", f: conv(4, 3, 2, sh(1, 1), sh(1, 1), sh(1, 1))},
		{name: "conv strided", f: conv(2, 2, 3, sh(1, 0), sh(2, 1), sh(1, 1))},
		{name: "conv dilated", f: conv(2, 2, 2, sh(1, 1), sh(1, 2), sh(2, 1))},
		{name: "im2col", f: func(b *build) node {
			return b.must(gorgonia.Im2Col(img(b), tensor.Shape{3, 2}, tensor.Shape{1, 0}, tensor.Shape{2, 1}, tensor.Shape{1, 2}))
		}},
		// Patches that are no convolution: summed, or multiplied the other way round.
		{name: "patches summed", f: func(b *build) node {
			col := b.must(gorgonia.Im2Col(img(b), tensor.Shape{2, 2}, tensor.Shape{0, 0}, tensor.Shape{2, 1}, tensor.Shape{1, 1}))
			rows := b.must(gorgonia.Reshape(col, tensor.Shape{2 * 2 * 3, 2 * 2 * 2}))
			return b.must(gorgonia.Sum(b.must(gorgonia.Square(rows)), 1))
		}},
		{name: "patches multiplied", f: func(b *build) node {
			col := b.must(gorgonia.Im2Col(img(b), tensor.Shape{2, 2}, tensor.Shape{0, 0}, tensor.Shape{2, 1}, tensor.Shape{1, 1}))
			rows := b.must(gorgonia.Reshape(col, tensor.Shape{2 * 2 * 3, 2 * 2 * 2}))
			return b.must(gorgonia.Mul(rows, b.v("w", -1, 1, 2*2*2, 2)))
		}},
		{name: "two convolutions of one image", f: func(b *build) node {
			k, one := tensor.Shape{3, 3}, sh(1, 1)
			p := b.must(gorgonia.Conv2d(img(b), b.v("v", -1, 1, 2, 2, 3, 3), k, one, one, one))
			q := b.must(gorgonia.Conv2d(img(b), b.v("w", -1, 1, 2, 2, 3, 3), k, one, one, one))
			return b.must(gorgonia.HadamardProd(p, q))
		}},
		{name: "max pool", f: pool(2, 2, sh(0, 0), sh(2, 2))},
		{name: "max pool padded", f: pool(3, 2, sh(1, 1), sh(1, 2))},
		{name: "upsample", f: func(b *build) node { return b.must(gorgonia.Upsample2D(img(b), 2)) }},
		{name: "global average pool", noGrad: true, f: func(b *build) node { return b.must(gorgonia.GlobalAveragePool2D(img(b))) }},
		{name: "batch norm 2", f: func(b *build) node { return batchNorm(b, b.v("x", -1, 1, 5, 3), 1, 3) }},
		{name: "batch norm 4", f: func(b *build) node { return batchNorm(b, img(b), 1, 2, 1, 1) }},
	} {
		t.Run(c.name, c.check)
	}
}

func batchNorm(b *build, x node, channels ...int) node {
	y, _, _, _, err := gorgonia.BatchNorm(x, b.v("scale", 0.5, 2, channels...), b.v("bias", -1, 1, channels...), 0.9, 1e-3)
	return b.must(y, err)
}
