package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
	"github.com/tandem-train/tandem/nn/op"
)

// random is an array of normal numbers.
func random(rng *rand.Rand, dims ...int) array {
	a := array{shape: dims, data: make([]float64, ir.Shape(dims).Size())}
	for i := range a.data {
		a.data[i] = float64(float32(rng.NormFloat64()))
	}
	return a
}

// differences compares the gradients of sum(y dy) that backward has added with central differences, in float64. Of every
// variable some elements are tried.
func (e *experiment) differences(rng *rand.Rand, y, dy *gorgonia.Node) {
	e.t.Helper()
	e.outs["y"] = y
	eval := e.evaluator()
	loss := func() float64 {
		sum := 0.0
		for i, v := range eval()["y"] {
			sum += v * e.feeds[dy][i]
		}
		return sum
	}
	grads := eval()
	const h = 1e-5
	for n, x := range e.feeds {
		grad, ok := grads["grad."+n.Name()]
		if !ok {
			continue
		}
		for range min(8, len(x)) {
			i := rng.IntN(len(x))
			old := x[i]
			x[i] = old + h
			up := loss()
			x[i] = old - h
			down := loss()
			x[i] = old
			want := (up - down) / (2 * h)
			if !(math.Abs(grad[i]-want) <= 1e-6*max(1, math.Abs(want))) {
				e.t.Errorf("gradient of %s[%d] is %v, by differences %v", n.Name(), i, grad[i], want)
			}
		}
	}
}

// TestGradientsByDifferences checks every layer's gradients with random parameters, inputs and output gradients.
func TestGradientsByDifferences(t *testing.T) {
	for _, c := range []struct {
		name  string
		m     Module
		in    []int
		eval  bool
		whole int // if set, inputs are indices below it
	}{
		{name: "linear", m: Linear(4, 3), in: []int{5, 4}},
		{name: "linear sequence", m: Linear(4, 3), in: []int{2, 3, 4}},
		{name: "conv", m: Conv2d(4, 6, 3, Stride(2, 1), Padding(1), Groups(2)), in: []int{2, 4, 5, 6}},
		{name: "max pool", m: MaxPool2d(3, Stride(2), Padding(1)), in: []int{2, 3, 6, 5}},
		{name: "avg pool", m: AvgPool2d(3, Stride(2), Padding(1)), in: []int{2, 3, 6, 5}},
		{name: "avg pool real elements", m: AvgPool2d(3, Stride(2), Padding(1), ExcludePadding()), in: []int{2, 3, 6, 5}},
		{name: "adaptive pool", m: AdaptiveAvgPool2d(2, 3), in: []int{2, 3, 5, 4}},
		{name: "batch norm", m: BatchNorm1d(3), in: []int{6, 3}},
		{name: "batch norm of sequences", m: BatchNorm1d(3, NoAffine()), in: []int{4, 3, 5}},
		{name: "batch norm of images", m: BatchNorm2d(3, Eps(0.1)), in: []int{3, 3, 2, 2}},
		{name: "batch norm alone with sync", m: BatchNorm2d(3, Sync()), in: []int{3, 3, 2, 2}},
		{name: "batch norm in evaluation", m: BatchNorm2d(3), in: []int{3, 3, 2, 2}, eval: true},
		{name: "batch norm in evaluation without affine", m: BatchNorm2d(3, NoAffine()), in: []int{3, 3, 2, 2}, eval: true},
		{name: "batch norm in evaluation without statistics", m: BatchNorm2d(3, NoRunningStats()), in: []int{3, 3, 2, 2}, eval: true},
		{name: "layer norm", m: LayerNorm(5), in: []int{3, 5}},
		{name: "layer norm of images", m: LayerNorm(0, NormalizedShape(3, 4)), in: []int{2, 5, 3, 4}},
		{name: "layer norm without affine", m: LayerNorm(5, NoAffine()), in: []int{2, 3, 5}},
		{name: "dropout", m: Dropout(0.4), in: []int{6, 5}},
		{name: "dropout of all", m: Dropout(1), in: []int{2, 3}},
		{name: "dropout in evaluation", m: Sequential(Linear(4, 4), Dropout(0.4)), in: []int{2, 4}, eval: true},
		{name: "embedding", m: Embedding(5, 3), in: []int{4, 2}, whole: 5},
		{name: "embedding with padding", m: Embedding(5, 3, PaddingIdx(-1)), in: []int{4, 2}, whole: 4},
		{name: "relu", m: ReLU(), in: []int{4, 3}},
		{name: "gelu", m: GELU(), in: []int{4, 3}},
		{name: "gelu tanh", m: GELU(ApproximateTanh()), in: []int{4, 3}},
		{name: "silu", m: SiLU(), in: []int{4, 3}},
		{name: "sigmoid", m: Sigmoid(), in: []int{4, 3}},
		{name: "tanh", m: Tanh(), in: []int{4, 3}},
		{name: "softmax", m: Softmax(-1), in: []int{3, 4}},
		{name: "softmax along channels", m: Softmax(1), in: []int{2, 3, 2, 2}},
		{name: "log softmax", m: LogSoftmax(0), in: []int{3, 4}},
		{name: "flatten", m: Flatten(), in: []int{2, 3, 2}},
		{name: "residual", m: Residual(Linear(4, 5), Tanh(), Linear(5, 4)), in: []int{3, 4}},
		{name: "identity", m: Sequential(Identity(), Linear(2, 2)), in: []int{3, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			params, err := NamedParameters(c.m)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range params {
				if err := p.Parameter.SetData(narrowed(random(rng, p.Parameter.Shape()...).data)); err != nil {
					t.Fatal(err)
				}
			}
			bufs, err := NamedBuffers(c.m)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range bufs {
				for i := range b.Buffer.Data() {
					b.Buffer.Data()[i] = 0.5 + rng.Float32() // positive, as variances are
				}
			}
			e := newExperiment(t, c.m, !c.eval)
			in := random(rng, c.in...)
			if c.whole > 0 {
				in.ints = true
				for i := range in.data {
					in.data[i] = float64(rng.IntN(c.whole))
				}
			}
			x := e.input("x", in)
			y := e.forward(c.m, x)
			dy := e.input("dy", random(rng, y.Shape()...))
			if c.whole > 0 {
				e.backward(y, dy)
			} else {
				e.backward(y, dy, x)
			}
			e.state()
			e.differences(rng, y, dy)
		})
	}
}

// TestLossGradientsByDifferences is the same for losses, over scores of images, too.
func TestLossGradientsByDifferences(t *testing.T) {
	for _, c := range []struct {
		name string
		l    Loss
		out  []int
	}{
		{"cross entropy", CrossEntropy(LabelSmoothing(0.2), ClassWeights(1, 2, 3), IgnoreIndex(1)), []int{6, 3}},
		{"cross entropy of images", CrossEntropy(ClassWeights(1, 2, 3)), []int{2, 3, 2, 4}},
		{"nll of images", NLL(ClassWeights(1, 2, 3), IgnoreIndex(2)), []int{2, 3, 2, 4}},
		{"mse", MSE(), []int{3, 4}},
		{"l1", L1(), []int{3, 4}},
		{"bce", BCEWithLogits(PosWeight(1, 2, 3, 4)), []int{3, 4}},
		{"loss function", LossFunc(meanSquare), []int{3, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			e := newExperiment(t, nil, true)
			out := e.input("out", random(rng, c.out...))
			dtype, shape, err := c.l.Target(out.Shape())
			if err != nil {
				t.Fatal(err)
			}
			target := random(rng, shape...)
			for i, v := range target.data {
				target.data[i] = 1 / (1 + math.Exp(-v))
			}
			if dtype == gorgonia.Int32 {
				target.ints = true
				for i := range target.data {
					target.data[i] = float64(rng.IntN(3))
				}
			}
			term, err := c.l.Loss(e.trace, out, e.input("target", target))
			if err != nil {
				t.Fatal(err)
			}
			dy := e.input("dy", array{shape: []int{}, data: []float64{1.5}})
			e.backward(term.Sum, dy, out)
			e.differences(rng, term.Sum, dy)
		})
	}
}

// meanSquare is the mean squared error, written with Gorgonia's functions.
func meanSquare(_ *Graph, out, target *gorgonia.Node) (*gorgonia.Node, error) {
	d, err := gorgonia.Sub(out, target)
	if err != nil {
		return nil, err
	}
	if d, err = gorgonia.Square(d); err != nil {
		return nil, err
	}
	return gorgonia.Mean(d)
}

// TestLossFuncIsMSE compares a loss of Gorgonia's functions with ours.
func TestLossFuncIsMSE(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	out, target := random(rng, 4, 3), random(rng, 4, 3)
	got := map[string]float64{}
	for name, l := range map[string]Loss{"ours": MSE(), "theirs": LossFunc(meanSquare)} {
		e := newExperiment(t, nil, true)
		term, err := l.Loss(e.trace, e.input("out", out), e.input("target", target))
		if err != nil {
			t.Fatal(err)
		}
		e.outs["sum"], e.outs["weight"] = term.Sum, term.Weight
		v := e.byRef()
		got[name] = v["sum"][0] / v["weight"][0]
	}
	near(t, "mean", got["theirs"], got["ours"], 1e-12)
}

// TestDropout checks which elements are dropped: about the right number, others scaled, not the same in two layers or steps.
func TestDropout(t *testing.T) {
	const n, p = 4000, 0.3
	ones := array{shape: []int{n}, data: make([]float64, n)}
	for i := range ones.data {
		ones.data[i] = 1
	}
	e := newExperiment(t, nil, true)
	x := e.input("x", ones)
	e.outs["a"] = e.forward(Dropout(p), x)
	e.outs["b"] = e.forward(Dropout(p), x)
	got := e.byRef()
	zeros, same := 0, 0
	for i, a := range got["a"] {
		switch {
		case a == 0:
			zeros++
		case math.Abs(a-1/(1-p)) > 1e-12:
			t.Fatalf("element %d is %v: neither 0 nor 1/(1-p)", i, a)
		}
		if (a == 0) == (got["b"][i] == 0) {
			same++
		}
	}
	near(t, "dropped", float64(zeros), n*p, 5*math.Sqrt(n*p*(1-p)))
	agree := p*p + (1-p)*(1-p)
	near(t, "agreement of two layers", float64(same), n*agree, 5*math.Sqrt(n*agree*(1-agree)))
}

// TestSyncBatchNorm splits a batch unevenly over ranks, whose outputs, gradients and statistics must be one rank's.
func TestSyncBatchNorm(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const c, hw = 3, 4
	x, dy := random(rng, 7, c, 2, 2), random(rng, 7, c, 2, 2)
	for i := range x.data {
		x.data[i] += 3 // so that a variance about the wrong mean shows
	}
	m := BatchNorm2d(c, Sync())
	if err := Initialize(m, 1); err != nil {
		t.Fatal(err)
	}
	copy(m.Weight.Data(), []float32{0.5, 1, 2})

	// run gives every rank samples cuts[r] to cuts[r+1] of the batch.
	run := func(cuts ...int) []map[string][]float64 {
		var envs []*ref.Env
		var parts [][]ir.Part
		var outs []map[string]*ir.Slot
		for r := range len(cuts) - 1 {
			lo, hi := cuts[r]*c*hw, cuts[r+1]*c*hw
			shape := []int{cuts[r+1] - cuts[r], c, 2, 2}
			e := newExperiment(t, m, true)
			xn := e.input("x", array{shape: shape, data: x.data[lo:hi]})
			y := e.forward(m, xn)
			e.outs["y"] = y
			e.backward(y, e.input("dy", array{shape: shape, data: dy.data[lo:hi]}), xn)
			e.state()
			e.updates()
			g, in, out := e.lowered()
			size := regionSizes(out)
			for _, s := range in {
				size[ir.Input] = max(size[ir.Input], s.End())
			}
			env := ref.NewEnv(size)
			for n, s := range in {
				copy(env.At(s), e.feeds[n])
			}
			envs, parts, outs = append(envs, env), append(parts, []ir.Part{{Graph: g}}), append(outs, out)
		}
		if err := ref.EvalRanks(envs, parts); err != nil {
			t.Fatal(err)
		}
		var got []map[string][]float64
		for r, out := range outs {
			vals := map[string][]float64{}
			for name, s := range out {
				vals[name] = envs[r].At(s)
			}
			got = append(got, vals)
		}
		return got
	}
	one := run(0, 7)[0]
	ranks := run(0, 1, 5, 7)
	for _, name := range []string{"y", "grad.x"} {
		var joined []float64
		for _, r := range ranks {
			joined = append(joined, r[name]...)
		}
		compare(t, name, joined, one[name], 1e-12)
	}
	for _, name := range []string{"grad.weight", "grad.bias"} {
		sum := make([]float64, c)
		for _, r := range ranks {
			for i, v := range r[name] {
				sum[i] += v
			}
		}
		compare(t, name, sum, one[name], 1e-12)
	}
	for r := range ranks {
		for _, name := range []string{"after.running_mean", "after.running_var", "after.num_batches_tracked"} {
			compare(t, fmt.Sprintf("%s of rank %d", name, r), ranks[r][name], one[name], 1e-12)
		}
	}
}

// TestBatchNormVariance: large means must not cost digits, as they would with E[x²]-E[x]².
func TestBatchNormVariance(t *testing.T) {
	e := newExperiment(t, nil, true)
	x := e.input("x", array{shape: []int{4, 1}, data: []float64{10000, 10001, 10002, 10003}})
	v, err := op.BatchVar(x, false)
	if err != nil {
		t.Fatal(err)
	}
	e.outs["var"] = v
	compare(t, "variance", e.byHost()["var"], []float64{5. / 3}, 1e-6)
}
