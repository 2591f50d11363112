package nn

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/philox"
)

// autoencoder is a user's module: tied weights, and Gorgonia's functions between ours.
type autoencoder struct {
	Encode *LinearLayer
	Decode *LinearLayer `nn:"out"`
	Scale  *Parameter
}

func newAutoencoder() *autoencoder {
	a := &autoencoder{Encode: Linear(3, 3, NoBias()), Decode: Linear(3, 3), Scale: NewParameter(Ones(), 2, 3)}
	a.Decode.Weight = a.Encode.Weight
	return a
}

func (a *autoencoder) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	h, err := a.Encode.Forward(g, x)
	if err != nil {
		return nil, err
	}
	if h, err = gorgonia.Tanh(h); err != nil {
		return nil, err
	}
	if h, err = gorgonia.HadamardProd(h, g.Param(a.Scale)); err != nil {
		return nil, err
	}
	return a.Decode.Forward(g, h)
}

func TestTiedWeights(t *testing.T) {
	m := newAutoencoder()
	if err := Initialize(m, 3); err != nil {
		t.Fatal(err)
	}
	params, err := NamedParameters(m)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range params {
		names = append(names, p.Name)
	}
	if want := []string{"encode.weight", "out.bias", "scale"}; !slices.Equal(names, want) {
		t.Errorf("parameters are %v, want %v", names, want)
	}
	if want := []string{"out.weight"}; !slices.Equal(params[0].Aliases, want) {
		t.Errorf("aliases are %v, want %v", params[0].Aliases, want)
	}

	// The gradient of the tied weight is the sum of those of two weights that have the same value.
	run := func(m *autoencoder) map[string][]float64 {
		e := newExperiment(t, m, true)
		y := e.forward(m, e.input("x", array{shape: []int{2, 3}, data: []float64{1, -2, 0.5, 0.25, 3, -1}}))
		e.backward(y, e.input("dy", array{shape: []int{2, 3}, data: []float64{1, 2, 3, -1, 0.5, 2}}))
		e.state()
		for _, b := range backends[1:] {
			got, want := b.run(e), e.byRef()
			for name := range want {
				compare(t, b.name+" "+name, got[name], want[name], b.tol)
			}
		}
		return e.byRef()
	}
	tied := run(m)
	apart := newAutoencoder()
	apart.Decode.Weight = NewParameter(nil, 3, 3)
	for _, c := range [][2]*Parameter{{apart.Encode.Weight, m.Encode.Weight}, {apart.Decode.Weight, m.Encode.Weight}, {apart.Decode.Bias, m.Decode.Bias}, {apart.Scale, m.Scale}} {
		if err := c[0].SetData(c[1].Data()); err != nil {
			t.Fatal(err)
		}
	}
	two := run(apart)
	sum := slices.Clone(two["grad.encode.weight"])
	for i, v := range two["grad.out.weight"] {
		sum[i] += v
	}
	compare(t, "gradient of the tied weight", tied["grad.encode.weight"], sum, 1e-12)
}

// base is embedded by whole.
type base struct{ Bias *Parameter }

type whole struct {
	base
	*LinearLayer
	Blocks  []Module
	Heads   map[string]*LinearLayer
	Pair    [2]*struct{ A *Parameter }
	Running *Buffer
	Skipped *LinearLayer `nn:"-"`
	Missing *LinearLayer
	Back    *whole
	hidden  *LinearLayer
	Steps   []int
}

func (w *whole) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) { return x, nil }

func (w *whole) Children() []NamedModule { return []NamedModule{{"hidden", w.hidden}} }

func TestNames(t *testing.T) {
	w := &whole{
		base: base{NewParameter(nil, 1)}, LinearLayer: Linear(2, 2, NoBias()),
		Blocks:  []Module{Residual(Linear(1, 1, NoBias())), Sequential(ReLU(), Linear(1, 1))},
		Heads:   map[string]*LinearLayer{"b": Linear(1, 1, NoBias()), "a": Linear(1, 1, NoBias())},
		Running: NewBuffer(0, 2), Skipped: Linear(1, 1), hidden: Linear(1, 1, NoBias()),
	}
	w.Back = w
	for i := range w.Pair {
		w.Pair[i] = &struct{ A *Parameter }{NewParameter(nil, 1)}
	}
	w.Blocks = append(w.Blocks, w.Blocks[0])
	params, err := NamedParameters(w)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range params {
		got = append(got, strings.Join(append([]string{p.Name}, p.Aliases...), "="))
	}
	want := []string{"bias", "weight", "blocks.0.0.weight=blocks.2.0.weight", "blocks.1.1.weight", "blocks.1.1.bias",
		"heads.a.weight", "heads.b.weight", "pair.0.a", "pair.1.a", "hidden.weight"}
	if !slices.Equal(got, want) {
		t.Errorf("parameters are\n%q, want\n%q", got, want)
	}
	bufs, err := NamedBuffers(w)
	if err != nil || len(bufs) != 1 || bufs[0].Name != "running" {
		t.Errorf("buffers are %v, %v", bufs, err)
	}
}

type twins struct {
	A *Parameter `nn:"w"`
	B *Parameter `nn:"w"`
}

func (*twins) Forward(_ *Graph, x *gorgonia.Node) (*gorgonia.Node, error) { return x, nil }

type byValue struct{ W Parameter }

func (*byValue) Forward(_ *Graph, x *gorgonia.Node) (*gorgonia.Node, error) { return x, nil }

func TestNameErrors(t *testing.T) {
	for _, c := range []struct {
		m    Module
		want string
	}{
		{&twins{NewParameter(nil, 1), NewParameter(nil, 1)}, `two parameters or buffers are called "w"`},
		{&byValue{}, "w is a nn.Parameter by value"},
		{(*LinearLayer)(nil), "the module is nil"},
		{nil, "the module is nil"},
	} {
		if _, err := NamedParameters(c.m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: error is %v, want %q", c.m, err, c.want)
		}
	}
}

// secret keeps a layer where nothing finds it.
type secret struct {
	Fc1 *LinearLayer
	fc2 *LinearLayer
}

func (s *secret) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	x, err := s.Fc1.Forward(g, x)
	if err != nil {
		return nil, err
	}
	return s.fc2.Forward(g, x)
}

func TestHiddenParameter(t *testing.T) {
	m := &secret{Linear(2, 3), Linear(3, 4)}
	g := NewGraph(true)
	if err := g.Bind(m); err != nil {
		t.Fatal(err)
	}
	_, err := m.Forward(g, g.Input("x", tensor.Float32, 5, 2))
	if err == nil || !strings.Contains(err.Error(), "Linear 3->4 uses a parameter (4, 3) that is in no exported field") {
		t.Errorf("error is %v", err)
	}
}

// mute forgets to return what it computes.
type mute struct{}

func (mute) Forward(*Graph, *gorgonia.Node) (*gorgonia.Node, error) { return nil, nil }

// gorgonian has weights as Gorgonia's own programs have them.
type gorgonian struct{ Fc *LinearLayer }

func (m gorgonian) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	x, err := m.Fc.Forward(g, x)
	if err != nil {
		return nil, err
	}
	return gorgonia.Mul(x, gorgonia.NewMatrix(x.Graph(), tensor.Float32, gorgonia.WithShape(4, 5), gorgonia.WithName("w")))
}

func TestCompileErrors(t *testing.T) {
	for _, c := range []struct {
		m    Module
		want string
	}{
		{Sequential(Linear(3, 4), mute{}), "the model *nn.SequentialModel has no output"},
		{gorgonian{Linear(3, 4)}, "keep one of nn.NewParameter in such a field, and take its node from g.Param"},
	} {
		l, err := NewLayout(c.m)
		if err != nil {
			t.Fatal(err)
		}
		of := &Compiler{Model: c.m, Loss: CrossEntropy(), Optimizer: SGD(0.1), Layout: l}
		if _, err := of.Train(Share{Input: ir.Of(2, 3), Samples: 2, Total: 2}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error is %v, want %q", err, c.want)
		}
	}
}

func TestForwardErrors(t *testing.T) {
	image := []int{2, 3, 8, 8}
	for _, c := range []struct {
		m    Module
		in   []int
		want string
	}{
		{Linear(784, 512), []int{64, 783}, "nn: fc1 (Linear 784->512): input [64,783]: wants [N, ..., 784]"},
		{Linear(784, 512), []int{784}, "input [784]: wants [N, ..., 784]"},
		{Linear(0, 3), []int{1, 1}, "Linear 0->3): sizes must be at least 1"},
		{Linear(-1, 3), []int{1, 1}, "Linear -1->3): sizes must be at least 1"},
		{Conv2d(1, 4, 3), image, "fc1 (Conv2d 1->4 3x3): input [2,3,8,8]: wants [N, 1, H, W]"},
		{Conv2d(3, 4, 9), image, "input [2,3,8,8] is smaller than the kernel [9 9]"},
		{Conv2d(3, 4, 3, Groups(2)), image, "2 groups do not divide the channels evenly"},
		{Conv2d(3, 4, 3, Groups(0)), image, "0 groups"},
		{Conv2d(3, 4, 3, Stride(0)), image, "stride in height is 0"},
		{Conv2d(3, 4, 3, Stride(1, 2, 3)), image, "stride takes one number, or height and width, not 3 numbers"},
		{Conv2d(3, 4, 3, Padding(-1)), image, "padding in height is -1"},
		{Conv2d(3, 4, 0), image, "kernel height is 0"},
		{Conv2d(3, 4, 3, Dilation(1, 0)), image, "dilation in width is 0"},
		{MaxPool2d(2, Padding(2)), image, "padding [2 2] is more than half of the kernel [2 2]"},
		{MaxPool2d(2), []int{2, 3}, "MaxPool2d 2x2): input [2,3]: wants [N, C, H, W]"},
		{AvgPool2d(9), image, "smaller than the kernel"},
		{AvgPool2d(2, Stride()), image, "stride takes one number"},
		{AdaptiveAvgPool2d(0, 1), image, "output sizes must be at least 1"},
		{AdaptiveAvgPool2d(1, 1), []int{3}, "wants [N, C, H, W]"},
		{BatchNorm1d(4), []int{2, 3}, "BatchNorm1d 4): input [2,3]: wants [N, 4] or [N, 4, L]"},
		{BatchNorm2d(3), []int{2, 3}, "wants [N, 3, H, W]"},
		{BatchNorm1d(3), []int{1, 3}, "one value a channel"},
		{BatchNorm1d(3, Momentum(2)), []int{4, 3}, "momentum is 2"},
		{BatchNorm1d(3, Eps(-1)), []int{4, 3}, "eps is -1"},
		{BatchNorm1d(0), []int{4, 3}, "features must be at least 1"},
		{LayerNorm(4), []int{2, 3}, "LayerNorm [4]): input [2,3] does not end in [4]"},
		{LayerNorm(3), []int{3}, "does not end in [3] after a dimension of samples"},
		{LayerNorm(3, NormalizedShape()), []int{2, 3}, "must be one or more"},
		{Dropout(1.5), []int{2, 3}, "fc1 (Dropout 1.5): the probability must be in 0..1"},
		{Embedding(5, 2), []int{2, 3}, "input is float32 [2,3]: wants int32 indices"},
		{Embedding(5, 2, PaddingIdx(5)), []int{2, 3}, "padding index 5 is outside the 5 rows"},
		{Embedding(0, 2), []int{2, 3}, "sizes must be at least 1"},
		{Softmax(2), []int{2, 3}, "Softmax along 2): input [2,3] has no dimension 2"},
		{&FlattenLayer{2, -1}, []int{2, 3}, "has no such dimensions"},
		{Residual(Linear(3, 4)), []int{2, 3}, "input [2,3] becomes [2,4]: the modules must keep the shape"},
		{Residual(mute{}), []int{2, 3}, "Residual of 1): the modules have no output"},
		{Sequential(nil), []int{2, 3}, "module 0 is nil"},
	} {
		m := &holder{c.m}
		g := NewGraph(true)
		if err := g.Bind(m); err != nil {
			t.Errorf("%v: %v", c.m, err)
			continue
		}
		_, err := m.Forward(g, g.Input("x", tensor.Float32, c.in...))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error is %v, want %q", c.m, err, c.want)
		}
	}
}

// holder calls its module fc1.
type holder struct {
	Fc1 Module
}

func (h *holder) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	return h.Fc1.Forward(g, x)
}

func TestInputOfAnotherGraph(t *testing.T) {
	g, other := NewGraph(true), NewGraph(true)
	if _, err := Linear(2, 2).Forward(g, other.Input("x", tensor.Float32, 1, 2)); err == nil || !strings.Contains(err.Error(), "another graph") {
		t.Errorf("error is %v", err)
	}
	if _, err := ReLU().Forward(g, nil); err == nil || !strings.Contains(err.Error(), "input is nil") {
		t.Errorf("error is %v", err)
	}
}

// shadow has a parameter that is called like the input.
type shadow struct{ X *Parameter }

func (s *shadow) Forward(g *Graph, x *gorgonia.Node) (*gorgonia.Node, error) {
	return gorgonia.HadamardProd(x, g.Param(s.X))
}

func TestParameterCalledLikeInput(t *testing.T) {
	m := &shadow{NewParameter(Constant(3), 1, 2)}
	e := newExperiment(t, initialized(t, m, 1), true)
	e.outs["y"] = e.forward(m, e.input("x", array{shape: []int{1, 2}, data: []float64{1, 2}}))
	e.state()
	compare(t, "3x", e.byRef()["y"], []float64{3, 6}, 0)
	if name := e.trace.Params()[0].Name; name != "x" {
		t.Errorf("the parameter is called %q", name)
	}
}

func TestImpossibleParameter(t *testing.T) {
	m := &shadow{NewParameter(nil, -1, 2)}
	g := NewGraph(true)
	if err := g.Bind(m); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Forward(g, g.Input("in", tensor.Float32, 1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := g.Err(); err == nil || !strings.Contains(err.Error(), "nn: parameter x: shape (-1, 2): every dimension must be at least 1") {
		t.Errorf("error is %v", err)
	}
	g = NewGraph(true)
	g.Param(nil)
	if err := g.Err(); err == nil || !strings.Contains(err.Error(), "a parameter that is nil") {
		t.Errorf("error is %v", err)
	}
}

func TestLossErrors(t *testing.T) {
	for _, c := range []struct {
		l      Loss
		out    []int
		dtype  tensor.Dtype
		target []int
		want   string
	}{
		{CrossEntropy(), []int{4}, tensor.Int32, []int{4}, "cross entropy: output [4]: wants [N, classes, ...]"},
		{CrossEntropy(), []int{4, 3}, tensor.Float32, []int{4}, "the target is int32 [4], not float32 [4]"},
		{CrossEntropy(), []int{4, 3}, tensor.Int32, []int{5}, "the target is int32 [4], not int32 [5]"},
		{CrossEntropy(ClassWeights(1, 2)), []int{4, 3}, tensor.Int32, []int{4}, "2 class weights for 3 classes"},
		{CrossEntropy(LabelSmoothing(2)), []int{4, 3}, tensor.Int32, []int{4}, "label smoothing is 2"},
		{MSE(), []int{4, 3}, tensor.Float32, []int{4}, "mse: for output [4,3] the target is float32 [4,3], not float32 [4]"},
		{BCEWithLogits(PosWeight(1, 2)), []int{4, 3}, tensor.Float32, []int{4, 3}, "2 weights for outputs [4,3]"},
		{LossFunc(func(_ *Graph, out, _ *gorgonia.Node) (*gorgonia.Node, error) { return out, nil }), []int{4, 3}, tensor.Float32, []int{4, 3}, "must be a scalar"},
		{LossFunc(func(*Graph, *gorgonia.Node, *gorgonia.Node) (*gorgonia.Node, error) {
			return nil, errors.New("no luck")
		}), []int{4, 3}, tensor.Float32, []int{4, 3}, "no luck"},
	} {
		g := NewGraph(true)
		_, err := c.l.Loss(g, g.Input("out", tensor.Float32, c.out...), g.Input("target", c.dtype, c.target...))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T of %v: error is %v, want %q", c.l, c.out, err, c.want)
		}
	}
}

func TestOptimizerErrors(t *testing.T) {
	for _, c := range []struct {
		o    interface{ Validate() error }
		want string
	}{
		{SGD(-1), "sgd: learning rate is -1"},
		{SGD(0.1, Nesterov()), "Nesterov needs a momentum above 0"},
		{SGD(0.1, Momentum(0.9), Nesterov(), Dampening(0.1)), "no dampening"},
		{SGD(0.1, WeightDecay(-1)), "weight decay is -1"},
		{Adam(0.1, Betas(1, 0.9)), "adam: beta1 is 1: it must be at least 0 and below 1"},
		{AdamW(0.1, Eps(-1)), "adamw: eps is -1"},
		{RMSprop(0.1, Alpha(-1)), "rmsprop: alpha is -1"},
		{ClipGradNorm(0), "the largest norm is 0"},
		{ClipGradValue(-1), "the largest value is -1"},
		{StepLR(0, 0.1), "StepLR: size is 0"},
		{CosineAnnealing(0, 0), "CosineAnnealing: steps is 0"},
		{LinearLR(0, 1, 0), "LinearLR: steps is 0"},
		{Warmup(-1, nil), "Warmup: steps are -1"},
		{Warmup(1, StepLR(0, 1)), "StepLR: size is 0"},
		{OneCycle(0), "OneCycle: steps is 0"},
		{OneCycleLR{Steps: 1, Rise: 2, Div: 1, FinalDiv: 1}, "must be in 0..1"},
		{OneCycleLR{Steps: 1, Rise: 0.5}, "divisors are 0 and 0"},
		{PerEpoch(nil, 1), "the schedule is nil"},
		{PerEpoch(ConstantLR(), 0), "PerEpoch: steps is 0"},
	} {
		if err := c.o.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error is %v, want %q", c.o, err, c.want)
		}
	}
}

func TestSchedules(t *testing.T) {
	for _, c := range []struct {
		s    Schedule
		step int
		want float64
	}{
		{ConstantLR(), 9, 0.5},
		{MultiStepLR(0.1, 10, 20), 9, 0.5},
		{MultiStepLR(0.1, 10, 20), 10, 0.05},
		{MultiStepLR(0.1, 10, 20), 25, 0.005},
		{PerEpoch(StepLR(2, 0.1), 100), 199, 0.5},
		{PerEpoch(StepLR(2, 0.1), 100), 200, 0.05},
		{Warmup(4, nil), 0, 0.125},
		{Warmup(4, nil), 3, 0.5},
		{Warmup(4, StepLR(1, 0.1)), 5, 0.05},
		{Warmup(0, nil), 0, 0.5},
		{OneCycle(1), 0, 0.5 / 25 / 1e4},
		{OneCycleLR{Steps: 10, Rise: 0.1, Div: 25, FinalDiv: 1e4}, 0, 0.5},
		{OneCycleLR{Steps: 1, Rise: 1, Div: 25, FinalDiv: 1e4}, 0, 0.5},
	} {
		if err := c.s.Validate(); err != nil {
			t.Error(err)
		}
		near(t, "rate", c.s.LR(0.5, c.step), c.want, 1e-12)
	}
}

func TestTo(t *testing.T) {
	m := Sequential(Linear(2, 2), BatchNorm1d(2))
	bufs, err := NamedBuffers(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := To(m, 2); err != nil {
		t.Fatal(err)
	}
	if d := m.Modules[0].(*LinearLayer).Weight.Device(); d != 2 || bufs[0].Buffer.Device() != 2 {
		t.Errorf("weight on %d, buffer on %d, want 2", d, bufs[0].Buffer.Device())
	}
	if err := To(m, Host); err != nil {
		t.Fatal(err)
	}
	if err := To(m, -2); err == nil {
		t.Error("device -2 was accepted")
	}
	if d := m.Modules[0].(*LinearLayer).Weight.Device(); d != Host {
		t.Errorf("weight on %d, want the host", d)
	}
}

func TestInitializeDependsOnNames(t *testing.T) {
	values := func(seed uint64, m Module) *State {
		if err := Initialize(m, seed); err != nil {
			t.Fatal(err)
		}
		s, err := StateDict(m)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := values(1, Sequential(Linear(4, 5))), values(1, Sequential(Linear(4, 5), Linear(5, 5)))
	if !slices.Equal(a.Get("0.weight").Data().([]float32), b.Get("0.weight").Data().([]float32)) {
		t.Error("another layer changed the first's values")
	}
	if slices.Equal(b.Get("0.bias").Data().([]float32), b.Get("1.bias").Data().([]float32)) {
		t.Error("two parameters have the same values")
	}
	c := values(2, Sequential(Linear(4, 5)))
	if slices.Equal(a.Get("0.weight").Data().([]float32), c.Get("0.weight").Data().([]float32)) {
		t.Error("another seed gives the same values")
	}
	// A value that is there stays.
	m := Linear(2, 1)
	if err := m.Weight.SetData([]float32{7, 8}); err != nil {
		t.Fatal(err)
	}
	values(1, m)
	if m.Weight.Data()[0] != 7 {
		t.Error("Initialize overwrote a value")
	}
	if err := Initialize(Linear(0, 1), 1); err == nil || !strings.Contains(err.Error(), "parameter weight: shape (1, 0)") {
		t.Errorf("error is %v", err)
	}
	if err := m.Weight.SetData([]float32{1}); err == nil || !strings.Contains(err.Error(), "takes 2 elements, not 1") {
		t.Errorf("error is %v", err)
	}
}

// TestInitInParts: what many cores fill is what one would have filled.
func TestInitInParts(t *testing.T) {
	const n = 1<<18 + 3
	uniform, normal, want := make([]float32, n), make([]float32, n), make([]float32, n)
	Uniform(0, 1)(uniform, 7)
	Normal(0, 1)(normal, 7)
	if philox.New(7, 0).FillUniform(want, 0); !slices.Equal(uniform, want) {
		t.Error("uniform: other numbers")
	}
	if philox.New(7, 0).FillNormal(want, 0); !slices.Equal(normal, want) {
		t.Error("normal: other numbers")
	}
}
