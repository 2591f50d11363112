package op

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

func variable(g *gorgonia.ExprGraph, name string, dtype tensor.Dtype, dims ...int) *gorgonia.Node {
	if len(dims) == 0 {
		return gorgonia.NewScalar(g, dtype, gorgonia.WithName(name))
	}
	return gorgonia.NewTensor(g, dtype, len(dims), gorgonia.WithShape(dims...), gorgonia.WithName(name))
}

// TestHash: ops that differ in any attribute are different nodes; equal ones are one.
func TestHash(t *testing.T) {
	w := func(change func(*Window)) Window {
		w := Window{Kernel: [2]int{2, 2}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}
		change(&w)
		return w
	}
	kernels := []kernel{
		activation{relu}, activation{gelu}, activation{geluTanh}, activationGrad{relu},
		dropout{0.1, 1}, dropout{0.2, 1}, dropout{0.1, 2},
		batchNorm{1e-5, false}, batchNorm{1e-5, true}, batchNorm{1e-3, false},
		batchStat{}, batchStat{Var: true}, batchStat{Sync: true},
		softmax{0, false}, softmax{1, false}, softmax{0, true},
		crossEntropy{Classes{Ignore: 1}}, crossEntropy{Classes{Ignore: 2}}, crossEntropy{Classes{Ignore: 1, Smoothing: 0.1}},
		crossEntropy{Classes{Ignore: 1, Weights: []float32{1}}}, crossEntropy{Classes{Ignore: 1, Weights: []float32{2}}},
		errorSum{squared}, errorSum{absolute}, bce{}, bce{[]float32{2}}, scale{1}, scale{2}, shift{1}, reshape{[]int{2}}, reshape{[]int{1, 2}},
	}
	for _, f := range []func(*Window){
		func(*Window) {}, func(w *Window) { w.Kernel[1] = 3 }, func(w *Window) { w.Stride[1] = 2 }, func(w *Window) { w.Padding[1] = 1 },
		func(w *Window) { w.Dilation[1] = 2 }, func(w *Window) { w.Groups = 2 },
	} {
		kernels = append(kernels, conv2d{w(f)}, pool2d{Mode: ir.MaxPool, Pool: w(f)})
	}
	seen := map[uint32]string{}
	for _, k := range kernels {
		text := fmt.Sprintf("%T%+v", k, k)
		h := hashOf(&Op{kernel: k, text: text, in: []arg{{shape: ir.Of(2, 3)}}})
		if old, ok := seen[h]; ok {
			t.Errorf("%s and %s hash alike", text, old)
		}
		seen[h] = text
	}

	g := gorgonia.NewGraph()
	x := variable(g, "x", tensor.Float32, 2, 3)
	a, err := ReLU(x)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ReLU(x)
	if err != nil {
		t.Fatal(err)
	}
	if a != b {
		t.Error("relu of one node is two nodes")
	}
	c, err := Dropout(x, 0.5, 1)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Dropout(x, 0.5, 2)
	if err != nil {
		t.Fatal(err)
	}
	if c == d {
		t.Error("dropouts of two streams are one node")
	}
}

// TestRefused: what does not fit is refused when the node is made.
func TestRefused(t *testing.T) {
	g := gorgonia.NewGraph()
	f32 := func(name string, dims ...int) *gorgonia.Node { return variable(g, name, tensor.Float32, dims...) }
	for _, c := range []struct {
		make func() (*gorgonia.Node, error)
		want string
	}{
		{func() (*gorgonia.Node, error) { return ReLU(nil) }, "argument 0 is nil"},
		{func() (*gorgonia.Node, error) { return ReLU(variable(g, "f64", tensor.Float64, 2)) }, "argument 0 is float64 [2]: values are float32"},
		{func() (*gorgonia.Node, error) { return Linear(f32("a", 2, 3), f32("b", 4, 5), nil) }, "no product of"},
		{func() (*gorgonia.Node, error) { return Linear(f32("a", 2, 3), f32("c", 3), nil) }, "wants x [..., in] and w [out, in]"},
		{func() (*gorgonia.Node, error) { return Add(f32("a", 2, 3), f32("c", 3)) }, "wants two values of one shape, not [2,3] and [3]"},
		{func() (*gorgonia.Node, error) { return BatchNorm(f32("d", 2, 3), f32("c", 3), f32("e", 4), 0, false) }, "vectors [C]"},
		{func() (*gorgonia.Node, error) { return LayerNorm(f32("a", 2, 3), f32("e", 4), f32("e", 4), 1, 0) }, "wants x and weight"},
		{func() (*gorgonia.Node, error) { return LayerNorm(f32("a", 2, 3), nil, nil, 3, 0) }, "normalised dimensions"},
		{func() (*gorgonia.Node, error) { return Softmax(f32("a", 2, 3), 2) }, "the dimension of the softmax"},
		{func() (*gorgonia.Node, error) { return Embedding(f32("a", 2, 3), f32("c", 3), -1) }, "wants i32"},
		{func() (*gorgonia.Node, error) {
			return CrossEntropy(f32("c", 3), variable(g, "l", tensor.Int32, 3), Classes{})
		}, "scores [N, C, ...]"},
		{func() (*gorgonia.Node, error) { return SquaredError(f32("a", 2, 3), f32("c", 3)) }, "output and target of one shape"},
	} {
		if _, err := c.make(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
	// A gradient has none.
	dx, err := apply(activationGrad{relu}, f32("a", 2, 3), f32("g", 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	o := dx.Op().(*Op)
	if slices.Contains(o.DiffWRT(2), true) {
		t.Error("a gradient says that it can be differentiated")
	}
	if _, err := o.SymDiff(nil, dx, dx); err == nil {
		t.Error("a gradient was differentiated")
	}
}

func made(t *testing.T, n *gorgonia.Node, err error) *Op {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return n.Op().(*Op)
}

// TestDo runs single ops on values of every form.
func TestDo(t *testing.T) {
	g := gorgonia.NewGraph()
	x, l := variable(g, "x", tensor.Float32, 3, 2), variable(g, "l", tensor.Int32, 3)
	n, err := Shift(x, 1)
	plus := made(t, n, err)

	whole := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6}))
	if err := whole.T(); err != nil { // a view
		t.Fatal(err)
	}
	v, err := plus.Do(whole)
	if err != nil {
		t.Fatal(err)
	}
	if want := []float32{2, 5, 3, 6, 4, 7}; !slices.Equal(v.Data().([]float32), want) {
		t.Errorf("x+1 of a transposed x is %v, want %v", v.Data(), want)
	}

	n, err = CrossEntropy(x, l, Classes{Ignore: -1})
	loss := made(t, n, err)
	zeros := tensor.New(tensor.WithShape(3, 2), tensor.WithBacking(make([]float32, 6)))
	labels := func(l ...int32) gorgonia.Value { return tensor.New(tensor.WithShape(3), tensor.WithBacking(l)) }
	v, err = loss.Do(zeros, labels(0, 1, -1))
	if err != nil {
		t.Fatal(err)
	}
	if got := float64(v.Data().(float32)); math.Abs(got-2*math.Ln2) > 1e-6 {
		t.Errorf("loss is %v, want 2 ln 2", got)
	}
	_, err = loss.Do(zeros, labels(0, 2, 1))
	var bad *ir.IndexError
	if !errors.As(err, &bad) || *bad != (ir.IndexError{What: "label", Index: 1, Value: 2, Bound: 2}) {
		t.Errorf("error is %v", err)
	}
	for _, vals := range [][]gorgonia.Value{
		{zeros}, {zeros, zeros}, {labels(0, 0, 0), labels(0, 0, 0)}, {zeros, gorgonia.NewI32(1)},
	} {
		if _, err := loss.Do(vals...); err == nil {
			t.Errorf("Do took %v", vals)
		}
	}
}

// TestDoConcurrently: any number of goroutines may run one op.
func TestDoConcurrently(t *testing.T) {
	g := gorgonia.NewGraph()
	n, err := Scale(variable(g, "x", tensor.Float32, 1000), 2)
	o := made(t, n, err)
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			x := make([]float32, 1000)
			for i := range x {
				x[i] = float32(k)
			}
			v, err := o.Do(tensor.New(tensor.WithShape(1000), tensor.WithBacking(x)))
			if err != nil {
				t.Error(err)
				return
			}
			for _, y := range v.Data().([]float32) {
				if y != float32(2*k) {
					t.Errorf("2*%d is %v", k, y)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestSharedGradient: a node used twice by our ops and by Gorgonia's gets the sum of its gradients.
func TestSharedGradient(t *testing.T) {
	g := gorgonia.NewGraph()
	x := variable(g, "x", tensor.Float32, 2)
	s, err := Sigmoid(x)
	if err != nil {
		t.Fatal(err)
	}
	both, err := gorgonia.HadamardProd(s, x)
	if err != nil {
		t.Fatal(err)
	}
	cost, err := SquaredError(both, variable(g, "t", tensor.Float32, 2))
	if err != nil {
		t.Fatal(err)
	}
	grads, err := gorgonia.Grad(cost, x)
	if err != nil {
		t.Fatal(err)
	}
	in := []float32{0.5, -1.5}
	if err := gorgonia.Let(x, tensor.New(tensor.WithShape(2), tensor.WithBacking(in))); err != nil {
		t.Fatal(err)
	}
	if err := gorgonia.Let(g.ByName("t")[0], tensor.New(tensor.WithShape(2), tensor.WithBacking([]float32{1, 1}))); err != nil {
		t.Fatal(err)
	}
	var v gorgonia.Value
	gorgonia.Read(grads[0], &v)
	m := gorgonia.NewTapeMachine(g)
	if err := errors.Join(m.RunAll(), m.Close()); err != nil {
		t.Fatal(err)
	}
	for i, x := range in {
		x := float64(x)
		s := 1 / (1 + math.Exp(-x))
		want := 2 * (x*s - 1) * (s + x*s*(1-s))
		if got := float64(v.Data().([]float32)[i]); math.Abs(got-want) > 1e-6 {
			t.Errorf("gradient %d is %v, want %v", i, got, want)
		}
	}
}
