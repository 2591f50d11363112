package nn

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
)

// The tests of this file meet PyTorch's numbers; testdata/torch/README.md says what is in the files.

// fixtureCase is one case of a fixture file.
type fixtureCase struct {
	Name   string
	Op     string
	Args   map[string]any
	Mode   string
	BaseLR float64 `json:"base_lr"`
	Init   map[string]struct {
		Dist                    string
		Bound, Mean, Std, Value float64
	}

	tensors map[string]array
}

func (c *fixtureCase) at(t *testing.T, role string) array {
	t.Helper()
	a, ok := c.tensors[role]
	if !ok {
		t.Fatalf("the fixture has no %s", role)
	}
	return a
}

func readFixture(t *testing.T, name string) []*fixtureCase {
	t.Helper()
	path := filepath.Join("testdata", "torch", name+".safetensors")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v\nPyTorch's numbers are missing: make them with testdata/torch/make_fixtures.py (see README.md there)", err)
	}
	_, meta, err := safetensors.ReadMetadata(b)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	st, err := safetensors.Deserialize(b)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	cases := map[string]*fixtureCase{}
	for name, text := range meta.Metadata() {
		if name == "_about" {
			continue
		}
		c := &fixtureCase{Name: name, tensors: map[string]array{}}
		if err := json.Unmarshal([]byte(text), c); err != nil {
			t.Fatalf("%s: %s: %v", path, name, err)
		}
		cases[name] = c
	}
	for _, n := range st.Tensors() {
		name, role, _ := strings.Cut(n.Name, "/")
		if cases[name] == nil {
			t.Fatalf("%s: tensor %s belongs to no case", path, n.Name)
		}
		a := array{shape: []int{}}
		for _, d := range n.TensorView.Shape() {
			a.shape = append(a.shape, int(d))
		}
		data := n.TensorView.Data()
		switch n.TensorView.DType() {
		case safetensors.I64:
			a.ints = true
			for ; len(data) > 0; data = data[8:] {
				a.data = append(a.data, float64(int64(binary.LittleEndian.Uint64(data))))
			}
		case safetensors.F32:
			a.data = floatsOf(data)
		case safetensors.U8:
			for _, v := range data {
				a.data = append(a.data, float64(v))
			}
		default:
			t.Fatalf("%s: %s: type %v", path, n.Name, n.TensorView.DType())
		}
		cases[name].tensors[role] = a
	}
	var list []*fixtureCase
	for _, name := range keys(cases) {
		list = append(list, cases[name])
	}
	return list
}

// eachCase runs f for every case whose name is accepted.
func eachCase(t *testing.T, file string, accept func(*fixtureCase) bool, f func(*testing.T, *fixtureCase)) {
	n := 0
	for _, c := range readFixture(t, file) {
		if accept(c) {
			n++
			t.Run(c.Name, func(t *testing.T) { f(t, c) })
		}
	}
	if n == 0 {
		t.Fatalf("%s has no such cases", file)
	}
}

// args reads PyTorch's keyword arguments, each once; what is not read is an error.
type args struct {
	t    *testing.T
	m    map[string]any
	read map[string]bool
}

func newArgs(t *testing.T, m map[string]any) *args { return &args{t, m, map[string]bool{}} }

func (a *args) get(name string) (any, bool) {
	a.read[name] = true
	v, ok := a.m[name]
	return v, ok
}

func (a *args) int(name string) int { return int(a.float(name, 0)) }

func (a *args) float(name string, other float64) float64 {
	if v, ok := a.get(name); ok && v != nil {
		return v.(float64)
	}
	return other
}

func (a *args) bool(name string, other bool) bool {
	if v, ok := a.get(name); ok {
		return v.(bool)
	}
	return other
}

func (a *args) ints(name string) []int {
	v, ok := a.get(name)
	if !ok {
		return nil
	}
	if x, ok := v.(float64); ok {
		return []int{int(x)}
	}
	var list []int
	for _, x := range v.([]any) {
		list = append(list, int(x.(float64)))
	}
	return list
}

func (a *args) done() {
	for name := range a.m {
		if !a.read[name] {
			a.t.Fatalf("argument %s is not understood", name)
		}
	}
}

// kernelSize is the kernel as a number and, where it is a pair, an option.
func (a *args) kernelSize() (int, []WindowOption) {
	k := a.ints("kernel_size")
	if len(k) == 2 {
		return 1, []WindowOption{KernelSize(k[0], k[1])}
	}
	return k[0], nil
}

func (a *args) window(name string, f func(...int) WindowOption) []WindowOption {
	if v := a.ints(name); v != nil {
		return []WindowOption{f(v...)}
	}
	return nil
}

// buildModule makes the module that PyTorch calls op.
func buildModule(t *testing.T, op string, m map[string]any) Module {
	t.Helper()
	a := newArgs(t, m)
	defer a.done()
	switch op {
	case "Linear":
		var opts []LinearOption
		if !a.bool("bias", true) {
			opts = append(opts, NoBias())
		}
		return Linear(a.int("in_features"), a.int("out_features"), opts...)
	case "Conv2d":
		k, w := a.kernelSize()
		w = append(w, a.window("stride", Stride)...)
		w = append(w, a.window("padding", Padding)...)
		var opts []Conv2dOption
		for _, o := range w {
			opts = append(opts, o)
		}
		if d := a.ints("dilation"); d != nil {
			opts = append(opts, Dilation(d...))
		}
		if n := a.int("groups"); n != 0 {
			opts = append(opts, Groups(n))
		}
		if !a.bool("bias", true) {
			opts = append(opts, NoBias())
		}
		return Conv2d(a.int("in_channels"), a.int("out_channels"), k, opts...)
	case "MaxPool2d":
		k, w := a.kernelSize()
		w = append(w, a.window("stride", Stride)...)
		w = append(w, a.window("padding", Padding)...)
		var opts []MaxPool2dOption
		for _, o := range w {
			opts = append(opts, o)
		}
		if d := a.ints("dilation"); d != nil {
			opts = append(opts, Dilation(d...))
		}
		if a.bool("ceil_mode", false) {
			t.Fatal("ceil_mode is not supported")
		}
		return MaxPool2d(k, opts...)
	case "AvgPool2d":
		k, w := a.kernelSize()
		w = append(w, a.window("stride", Stride)...)
		w = append(w, a.window("padding", Padding)...)
		var opts []AvgPool2dOption
		for _, o := range w {
			opts = append(opts, o)
		}
		if !a.bool("count_include_pad", true) {
			opts = append(opts, ExcludePadding())
		}
		return AvgPool2d(k, opts...)
	case "AdaptiveAvgPool2d":
		s := a.ints("output_size")
		return AdaptiveAvgPool2d(s[0], s[len(s)-1])
	case "BatchNorm1d", "BatchNorm2d":
		opts := []BatchNormOption{Eps(a.float("eps", 1e-5))}
		if v, ok := a.get("momentum"); ok && v == nil {
			opts = append(opts, CumulativeAverage())
		} else if ok {
			opts = append(opts, Momentum(v.(float64)))
		}
		if !a.bool("affine", true) {
			opts = append(opts, NoAffine())
		}
		if op == "BatchNorm1d" {
			return BatchNorm1d(a.int("num_features"), opts...)
		}
		return BatchNorm2d(a.int("num_features"), opts...)
	case "LayerNorm":
		opts := []LayerNormOption{NormalizedShape(a.ints("normalized_shape")...), Eps(a.float("eps", 1e-5))}
		if !a.bool("elementwise_affine", true) {
			opts = append(opts, NoAffine())
		}
		return LayerNorm(1, opts...)
	case "Embedding":
		var opts []EmbeddingOption
		if v, ok := a.get("padding_idx"); ok {
			opts = append(opts, PaddingIdx(int(v.(float64))))
		}
		return Embedding(a.int("num_embeddings"), a.int("embedding_dim"), opts...)
	case "ReLU":
		return ReLU()
	case "GELU":
		if v, ok := a.get("approximate"); ok && v == "tanh" {
			return GELU(ApproximateTanh())
		}
		return GELU()
	case "SiLU":
		return SiLU()
	case "Sigmoid":
		return Sigmoid()
	case "Tanh":
		return Tanh()
	case "Softmax":
		return Softmax(a.int("dim"))
	case "LogSoftmax":
		return LogSoftmax(a.int("dim"))
	case "Flatten":
		l := Flatten()
		if v := a.ints("start_dim"); v != nil {
			l.Start = v[0]
		}
		if v := a.ints("end_dim"); v != nil {
			l.End = v[0]
		}
		return l
	case "Sequential", "Residual":
		list, _ := a.get("modules")
		var modules []Module
		for _, part := range list.([]any) {
			pair := part.([]any)
			modules = append(modules, buildModule(t, pair[0].(string), pair[1].(map[string]any)))
		}
		for _, other := range []string{"optimizer", "loss", "steps"} {
			a.get(other) // a training case's
		}
		if op == "Residual" {
			return Residual(modules...)
		}
		return Sequential(modules...)
	}
	t.Fatalf("no module is called %s", op)
	return nil
}

// loadRoles loads the tensors whose roles begin with one of the prefixes as a state dict. Names must match exactly.
func loadRoles(t *testing.T, m Module, c *fixtureCase, prefixes ...string) {
	t.Helper()
	s := new(State)
	for _, role := range keys(c.tensors) {
		for _, p := range prefixes {
			if name, ok := strings.CutPrefix(role, p); ok {
				a := c.tensors[role]
				s.Set(name, dense(a.shape, narrowed(a.data)))
			}
		}
	}
	if err := LoadStateDict(m, s, true); err != nil {
		t.Fatal(err)
	}
}

// backends compute an experiment. Of one compared with PyTorch's numbers in float64, only the host and Gorgonia round.
var backends = []struct {
	name string
	run  func(*experiment) map[string][]float64
	tol  float64
}{
	{"ref", (*experiment).byRef, 1e-6}, // the stored numbers were rounded to float32
	{"host", (*experiment).byHost, 1e-5},
	{"gorgonia", (*experiment).byGorgonia, 1e-5},
}

func isLayer(c *fixtureCase) bool { return c.Init == nil }

// TestLayersLikeTorch compares outputs, gradients and buffers of every layer with PyTorch's.
func TestLayersLikeTorch(t *testing.T) {
	eachCase(t, "layers", isLayer, func(t *testing.T, c *fixtureCase) {
		for _, b := range backends {
			t.Run(b.name, func(t *testing.T) {
				m := buildModule(t, c.Op, c.Args)
				loadRoles(t, m, c, "param.", "buf.before.")
				for step := 1; ; step++ {
					role := "in.x"
					if step > 1 {
						role = fmt.Sprintf("in.x.%d", step)
					}
					in, ok := c.tensors[role]
					if !ok {
						break
					}
					e := newExperiment(t, m, c.Mode == "train")
					x := e.input("x", in)
					y := e.forward(m, x)
					if step == 1 {
						if !slices.Equal(y.Shape(), c.at(t, "out").shape) {
							t.Fatalf("output has shape %v, want %v", y.Shape(), c.at(t, "out").shape)
						}
						e.outs["out"] = y
						wrt := []*gorgonia.Node{x}
						if in.ints {
							wrt = nil
						}
						e.backward(y, e.input("gout", c.at(t, "gout")), wrt...)
					}
					e.state()
					e.updates()
					got := b.run(e)
					if step == 1 {
						for _, role := range keys(c.tensors) {
							if role == "out" || strings.HasPrefix(role, "grad.") {
								compare(t, role, got[role], c.tensors[role].data, b.tol)
							}
						}
					}
					keepBuffers(t, m, got)
				}
				bufs, err := NamedBuffers(m)
				if err != nil {
					t.Fatal(err)
				}
				for _, buf := range bufs {
					compare(t, buf.Name, widened(buf.Buffer.Data()), c.at(t, "buf.after."+buf.Name).data, b.tol)
				}
			})
		}
	})
}

// keepBuffers puts the updates of a step into the module.
func keepBuffers(t *testing.T, m Module, got map[string][]float64) {
	t.Helper()
	bufs, err := NamedBuffers(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bufs {
		if v, ok := got["after."+b.Name]; ok {
			if err := b.Buffer.SetData(narrowed(v)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestInitLikeTorch compares the first values with PyTorch's distributions: bounds, and moments within four standard errors.
func TestInitLikeTorch(t *testing.T) {
	eachCase(t, "layers", func(c *fixtureCase) bool { return c.Init != nil }, func(t *testing.T, c *fixtureCase) {
		m := buildModule(t, c.Op, c.Args)
		if err := Initialize(m, 1); err != nil {
			t.Fatal(err)
		}
		s, err := StateDict(m)
		if err != nil {
			t.Fatal(err)
		}
		if s.Len() != len(c.Init) {
			t.Errorf("the model has %v, PyTorch's %v", s.Names(), keys(c.Init))
		}
		for name, want := range c.Init {
			have := s.Get(name)
			if have == nil {
				t.Errorf("no %s", name)
				continue
			}
			x, _ := floats(have)
			lo, hi, mean, std := moments(x)
			n := math.Sqrt(float64(len(x)))
			switch want.Dist {
			case "uniform":
				b := want.Bound
				// That no element lies within 20 b/size of a bound has the probability exp(-10).
				if near := b * (1 - 20/float64(len(x))); lo < -b || hi > b || hi < near || lo > -near {
					t.Errorf("%s is in %v..%v, want ±%v", name, lo, hi, b)
				}
				near(t, name+" mean", mean, 0, 4*b/math.Sqrt(3)/n)
				near(t, name+" std", std, b/math.Sqrt(3), 4*b/n)
			case "normal":
				near(t, name+" mean", mean, want.Mean, 4*want.Std/n)
				near(t, name+" std", std, want.Std, 4*want.Std/n)
			case "constant":
				if lo != want.Value || hi != want.Value {
					t.Errorf("%s is in %v..%v, want %v", name, lo, hi, want.Value)
				}
			default:
				t.Errorf("no distribution is called %s", want.Dist)
			}
		}
	})
}

func moments(x []float32) (lo, hi, mean, std float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, v := range x {
		lo, hi, mean = min(lo, float64(v)), max(hi, float64(v)), mean+float64(v)
	}
	mean /= float64(len(x))
	for _, v := range x {
		std += (float64(v) - mean) * (float64(v) - mean)
	}
	return lo, hi, mean, math.Sqrt(std / float64(len(x)))
}

func near(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tol) {
		t.Errorf("%s is %v, want %v ± %v", what, got, want, tol)
	}
}

func buildLoss(t *testing.T, op string, m map[string]any, c *fixtureCase) Loss {
	t.Helper()
	a := newArgs(t, m)
	defer a.done()
	sum := false
	if v, ok := a.get("reduction"); ok {
		sum = v == "sum"
	}
	var class []ClassOption
	if w, ok := c.tensors["weight"]; ok {
		class = append(class, ClassWeights(narrowed(w.data)...))
	}
	if v, ok := a.get("ignore_index"); ok {
		class = append(class, IgnoreIndex(int(v.(float64))))
	}
	switch op {
	case "CrossEntropyLoss":
		opts := []CrossEntropyOption{LabelSmoothing(a.float("label_smoothing", 0))}
		for _, o := range class {
			opts = append(opts, o)
		}
		if sum {
			opts = append(opts, SumReduction())
		}
		return CrossEntropy(opts...)
	case "NLLLoss":
		var opts []ClassLossOption
		for _, o := range class {
			opts = append(opts, o)
		}
		if sum {
			opts = append(opts, SumReduction())
		}
		return NLL(opts...)
	case "MSELoss", "L1Loss":
		var opts []ElementLossOption
		if sum {
			opts = append(opts, SumReduction())
		}
		if op == "MSELoss" {
			return MSE(opts...)
		}
		return L1(opts...)
	case "BCEWithLogitsLoss":
		var opts []BCEOption
		if w, ok := c.tensors["pos_weight"]; ok {
			opts = append(opts, PosWeight(narrowed(w.data)...))
		}
		if sum {
			opts = append(opts, SumReduction())
		}
		return BCEWithLogits(opts...)
	}
	t.Fatalf("no loss is called %s", op)
	return nil
}

// TestLossesLikeTorch compares losses and their gradients with PyTorch's.
func TestLossesLikeTorch(t *testing.T) {
	eachCase(t, "losses", isLayer, func(t *testing.T, c *fixtureCase) {
		for _, b := range backends {
			t.Run(b.name, func(t *testing.T) {
				l := buildLoss(t, c.Op, c.Args, c)
				e := newExperiment(t, nil, true)
				x, y := e.input("logits", c.at(t, "logits")), e.input("target", c.at(t, "target"))
				term, err := l.Loss(e.trace, x, y)
				if err != nil {
					t.Fatal(err)
				}
				grads, err := gorgonia.Grad(term.Sum, x)
				if err != nil {
					t.Fatal(err)
				}
				e.outs["loss"], e.outs["grad"] = term.Sum, grads[0]
				if term.Weight != nil {
					e.outs["weight"] = term.Weight
				}
				got := b.run(e)
				weight := float64(x.Shape()[0])
				if term.Weight != nil {
					weight = got["weight"][0]
				}
				if term.Total {
					weight = 1
				}
				for _, role := range []string{"loss", "grad"} {
					for i := range got[role] {
						got[role][i] /= weight
					}
					compare(t, role, got[role], c.at(t, role).data, b.tol)
				}
			})
		}
	})
}

func buildOptimizer(t *testing.T, op string, m map[string]any) Optimizer {
	t.Helper()
	a := newArgs(t, m)
	defer a.done()
	var opt Optimizer
	switch op {
	case "SGD":
		opts := []SGDOption{Momentum(a.float("momentum", 0)), Dampening(a.float("dampening", 0)), WeightDecay(a.float("weight_decay", 0))}
		if a.bool("nesterov", false) {
			opts = append(opts, Nesterov())
		}
		opt = SGD(a.float("lr", 1e-3), opts...)
	case "Adam", "AdamW":
		var opts []AdamOption
		if v, ok := a.get("betas"); ok {
			opts = append(opts, Betas(v.([]any)[0].(float64), v.([]any)[1].(float64)))
		}
		if v, ok := a.get("eps"); ok {
			opts = append(opts, Eps(v.(float64)))
		}
		if v, ok := a.get("weight_decay"); ok {
			opts = append(opts, WeightDecay(v.(float64)))
		}
		f := Adam
		if op == "AdamW" {
			f = AdamW
		}
		opt = f(a.float("lr", 1e-3), opts...)
	case "RMSprop":
		opts := []RMSpropOption{Alpha(a.float("alpha", 0.99)), Eps(a.float("eps", 1e-8)), Momentum(a.float("momentum", 0)), WeightDecay(a.float("weight_decay", 0))}
		if a.bool("centered", false) {
			opts = append(opts, Centered())
		}
		opt = RMSprop(a.float("lr", 0.01), opts...)
	default:
		t.Fatalf("no optimizer is called %s", op)
	}
	if err := opt.Validate(); err != nil {
		t.Fatal(err)
	}
	return opt
}

// rehearsal runs an optimizer's steps in float64, on a vector of n elements.
type rehearsal struct {
	opt   Optimizer
	graph *ir.Graph
	env   *ref.Env
	grad  *ir.Slot
	p     *ir.Slot
	hyper []*ir.Slot
	step  int
}

func rehearse(opt Optimizer, start []float64) *rehearsal {
	n := len(start)
	g := new(ir.Graph)
	r := &rehearsal{opt: opt, graph: g, p: &ir.Slot{Region: ir.Params, Name: "p", Shape: ir.Of(n)}, grad: &ir.Slot{Region: ir.Grads, Name: "grad", Shape: ir.Of(n)}}
	var state, hyper []*ir.Value
	var slots []*ir.Slot
	for i, name := range opt.State() {
		s := &ir.Slot{Region: ir.State, Name: name, Offset: i * n, Shape: ir.Of(n)}
		slots, state = append(slots, s), append(state, g.Read(s))
	}
	for i, name := range opt.Hyper() {
		s := &ir.Slot{Region: ir.Hyper, Name: name, Offset: i}
		r.hyper, hyper = append(r.hyper, s), append(hyper, g.Read(s))
	}
	p, next := opt.Update(g, g.Read(r.p), g.Read(r.grad), state, hyper)
	g.Store(r.p, p)
	for i, v := range next {
		g.Store(slots[i], v)
	}
	var size [ir.NumRegions]int
	size[ir.Params], size[ir.Grads], size[ir.State], size[ir.Hyper] = n, n, n*len(slots), len(hyper)
	r.env = ref.NewEnv(size)
	copy(r.env.At(r.p), start)
	return r
}

// next takes a step and returns the parameters.
func (r *rehearsal) next(t *testing.T, grad []float64) []float64 {
	t.Helper()
	r.step++
	for i, v := range r.opt.HyperAt(r.step, r.opt.LR()) {
		r.env.At(r.hyper[i])[0] = v
	}
	copy(r.env.At(r.grad), grad)
	if err := r.graph.Err(); err != nil {
		t.Fatal(err)
	}
	if err := ref.Eval(r.env, ir.Part{Graph: r.graph}); err != nil {
		t.Fatal(err)
	}
	return r.env.At(r.p)
}

// TestOptimizersLikeTorch compares every step with PyTorch's.
func TestOptimizersLikeTorch(t *testing.T) {
	eachCase(t, "optim", func(c *fixtureCase) bool { return c.tensors["init.a"].data != nil }, func(t *testing.T, c *fixtureCase) {
		for _, p := range []string{"a", "b"} {
			r := rehearse(buildOptimizer(t, c.Op, c.Args), c.at(t, "init."+p).data)
			grads, after := c.at(t, "grad."+p), c.at(t, "after."+p)
			n := len(c.at(t, "init."+p).data)
			for i := range grads.shape[0] {
				got := r.next(t, grads.data[i*n:(i+1)*n])
				compare(t, fmt.Sprintf("%s after step %d", p, i), got, after.data[i*n:(i+1)*n], 1e-6)
			}
		}
	})
}

// TestSchedulesLikeTorch compares every step's learning rate with PyTorch's.
func TestSchedulesLikeTorch(t *testing.T) {
	eachCase(t, "optim", func(c *fixtureCase) bool { return c.BaseLR != 0 }, func(t *testing.T, c *fixtureCase) {
		a := newArgs(t, c.Args)
		base := c.BaseLR
		var s Schedule
		switch c.Op {
		case "StepLR":
			s = StepLR(a.int("step_size"), a.float("gamma", 0.1))
		case "CosineAnnealingLR":
			s = CosineAnnealing(a.int("T_max"), a.float("eta_min", 0))
		case "LinearLR":
			s = LinearLR(a.float("start_factor", 1./3), a.float("end_factor", 1), int(a.float("total_iters", 5)))
		case "LambdaLR":
			a.get("formula")
			w := a.int("warmup")
			s = Warmup(w, CosineAnnealing(a.int("total")-w, 0))
		case "OneCycleLR":
			a.get("cycle_momentum")
			o := OneCycle(a.int("total_steps"))
			o.Rise, o.Div, o.FinalDiv = a.float("pct_start", o.Rise), a.float("div_factor", o.Div), a.float("final_div_factor", o.FinalDiv)
			if v, ok := a.get("anneal_strategy"); ok {
				o.Linear = v == "linear"
			}
			s, base = o, a.float("max_lr", 0)
		default:
			t.Fatalf("no schedule is called %s", c.Op)
		}
		a.done()
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		for i, want := range c.at(t, "lr").data {
			if got := s.LR(base, i); math.Abs(got-want) > 1e-7*math.Abs(want)+1e-12 {
				t.Errorf("step %d: rate %v, want %v", i, got, want)
			}
		}
	})
}

// TestClipsLikeTorch compares clipped gradients with PyTorch's.
func TestClipsLikeTorch(t *testing.T) {
	eachCase(t, "optim", func(c *fixtureCase) bool { return strings.HasPrefix(c.Op, "clip_") }, func(t *testing.T, c *fixtureCase) {
		a := newArgs(t, c.Args)
		var clip Clip
		switch c.Op {
		case "clip_grad_norm_":
			a.get("norm_type")
			clip = ClipGradNorm(a.float("max_norm", 0))
		case "clip_grad_value_":
			clip = ClipGradValue(a.float("clip_value", 0))
		}
		a.done()
		if err := clip.Validate(); err != nil {
			t.Fatal(err)
		}
		all := slices.Concat(c.at(t, "grad.a").data, c.at(t, "grad.b").data)
		want := slices.Concat(c.at(t, "clipped.a").data, c.at(t, "clipped.b").data)
		g := new(ir.Graph)
		in := &ir.Slot{Region: ir.Input, Name: "in", Shape: ir.Of(len(all))}
		out := &ir.Slot{Region: ir.Output, Name: "out", Shape: ir.Of(len(all))}
		g.Store(out, clip.Apply(g, g.Read(in), func(v *ir.Value) *ir.Value { return v }))
		env := ref.NewEnv(regionSizes(map[string]*ir.Slot{"in": in, "out": out}))
		copy(env.At(in), all)
		if err := ref.Eval(env, ir.Part{Graph: g}); err != nil {
			t.Fatal(err)
		}
		compare(t, "clipped", env.At(out), want, 1e-6)
	})
}
