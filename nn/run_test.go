package nn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/host"
	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/ir/ref"
	"github.com/tandem-train/tandem/internal/lower"
)

// experiment is a traced computation with the values of its variables and the nodes that a test looks at. It can be
// computed in three ways: in float64 by package ref, in float32 by the host, and by Gorgonia's own machine.
type experiment struct {
	t     *testing.T
	trace *Graph
	feeds map[*gorgonia.Node][]float64
	outs  map[string]*gorgonia.Node
}

func newExperiment(t *testing.T, m Module, training bool) *experiment {
	t.Helper()
	e := &experiment{t: t, trace: NewGraph(training), feeds: map[*gorgonia.Node][]float64{}, outs: map[string]*gorgonia.Node{}}
	if m != nil {
		if err := e.trace.Bind(m); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// input adds a variable with its value.
func (e *experiment) input(name string, x array) *gorgonia.Node {
	dtype := tensor.Float32
	if x.ints {
		dtype = tensor.Int32
	}
	n := e.trace.Input(name, dtype, x.shape...)
	e.feeds[n] = x.data
	return n
}

func (e *experiment) forward(m Module, x *gorgonia.Node) *gorgonia.Node {
	e.t.Helper()
	y, err := m.Forward(e.trace, x)
	if err == nil {
		err = e.trace.Err()
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return y
}

// state feeds the parameters and buffers that the trace uses with their values.
func (e *experiment) state() {
	e.t.Helper()
	for _, p := range e.trace.Params() {
		if p.Parameter.Data() == nil {
			e.t.Fatalf("%s has no value", p.Name)
		}
		e.feeds[p.Node] = widened(p.Parameter.Data())
	}
	for _, b := range e.trace.Buffers() {
		e.feeds[b.Node] = widened(b.Buffer.Data())
	}
}

// backward adds the gradients of y by the parameters and wrt, "grad.NAME", for the gradient dy of y.
func (e *experiment) backward(y, dy *gorgonia.Node, wrt ...*gorgonia.Node) {
	e.t.Helper()
	for _, p := range e.trace.Params() {
		wrt = append(wrt, p.Node)
	}
	grads, err := gorgonia.Backpropagate(gorgonia.Nodes{y}, gorgonia.Nodes{dy}, wrt)
	if err != nil {
		e.t.Fatal(err)
	}
	for i, n := range wrt {
		e.outs["grad."+n.Name()] = grads[i]
	}
}

func (e *experiment) updates() {
	for _, u := range e.trace.Updates() {
		e.outs["after."+u.Name] = u.Value
	}
}

// lowered is the program of the experiment: variables in Input, what is looked at in Output.
func (e *experiment) lowered() (g *ir.Graph, in map[*gorgonia.Node]*ir.Slot, out map[string]*ir.Slot) {
	e.t.Helper()
	g, in, out = new(ir.Graph), map[*gorgonia.Node]*ir.Slot{}, map[string]*ir.Slot{}
	offset := 0
	for n := range e.feeds {
		s := &ir.Slot{Region: ir.Input, Name: n.Name(), Offset: offset, Shape: ir.Of(n.Shape()...)}
		if n.Dtype() == tensor.Int32 {
			s.DType = ir.I32
		}
		in[n], offset = s, s.End()
	}
	var names []string
	var nodes gorgonia.Nodes
	for _, name := range keys(e.outs) { // in the same order on every rank
		names, nodes = append(names, name), append(nodes, e.outs[name])
	}
	vals, err := lower.Lower(g, nodes, func(n *gorgonia.Node) (*ir.Value, error) {
		if in[n] == nil {
			return nil, fmt.Errorf("%s has no value", n.Name())
		}
		return g.Read(in[n]), nil
	})
	if err != nil {
		e.t.Fatal(err)
	}
	offset = 0
	for i, v := range vals {
		s := &ir.Slot{Region: ir.Output, Name: names[i], Offset: offset, Shape: v.Shape, DType: v.DType}
		g.Store(s, v)
		out[names[i]], offset = s, s.End()
	}
	if err := g.Err(); err != nil {
		e.t.Fatal(err)
	}
	return g, in, out
}

func regionSizes(slots ...map[string]*ir.Slot) (size [ir.NumRegions]int) {
	for _, m := range slots {
		for _, s := range m {
			size[s.Region] = max(size[s.Region], s.End())
		}
	}
	return size
}

// byRef computes in float64.
func (e *experiment) byRef() map[string][]float64 {
	e.t.Helper()
	return e.evaluator()()
}

// evaluator lowers the experiment once and returns what computes it in float64 from the feeds of the moment.
func (e *experiment) evaluator() func() map[string][]float64 {
	e.t.Helper()
	g, in, out := e.lowered()
	size := regionSizes(out)
	for _, s := range in {
		size[ir.Input] = max(size[ir.Input], s.End())
	}
	return func() map[string][]float64 {
		e.t.Helper()
		env := ref.NewEnv(size)
		for n, s := range in {
			copy(env.At(s), e.feeds[n])
		}
		if err := ref.Eval(env, ir.Part{Graph: g}); err != nil {
			e.t.Fatal(err)
		}
		got := map[string][]float64{}
		for name, s := range out {
			got[name] = env.At(s)
		}
		return got
	}
}

// byHost compiles and computes in float32.
func (e *experiment) byHost() map[string][]float64 {
	e.t.Helper()
	g, in, out := e.lowered()
	p, err := ir.Compile("test", [ir.NumRegions]int{}, ir.Target{}, ir.Part{Graph: g})
	if err != nil {
		e.t.Fatal(err)
	}
	dev := host.Open(1)
	closeAtEnd(e.t, dev)
	var mem [ir.NumRegions]ir.DeviceMemory
	for r := range mem {
		if n := p.Bytes(ir.Region(r)); n > 0 {
			if mem[r], err = dev.Alloc(n); err != nil {
				e.t.Fatal(err)
			}
		}
	}
	for n, s := range in {
		b := make([]byte, 0, 4*len(e.feeds[n]))
		for _, x := range e.feeds[n] {
			b = appendElement(b, x, s.DType)
		}
		if int64(4*s.End()) > p.Bytes(ir.Input) {
			continue // nothing uses it
		}
		if err := mem[ir.Input].Write(int64(4*s.Offset), b); err != nil {
			e.t.Fatal(err)
		}
	}
	exe, err := dev.Load(p, mem)
	if err != nil {
		e.t.Fatal(err)
	}
	closeAtEnd(e.t, exe)
	if err := exe.Run(context.Background(), new(ir.Runtime)); err != nil {
		e.t.Fatal(err)
	}
	got := map[string][]float64{}
	for name, s := range out {
		b := make([]byte, 4*s.Shape.Size())
		if err := mem[ir.Output].Read(int64(4*s.Offset), b); err != nil {
			e.t.Fatal(err)
		}
		got[name] = floatsOf(b)
	}
	return got
}

// closeAtEnd closes c at the end of the test, what was opened last first.
func closeAtEnd(t *testing.T, c io.Closer) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func appendElement(b []byte, x float64, t ir.DType) []byte {
	u := math.Float32bits(float32(x))
	if t == ir.I32 {
		u = uint32(int32(x))
	}
	return append(b, byte(u), byte(u>>8), byte(u>>16), byte(u>>24))
}

func floatsOf(b []byte) []float64 {
	x := make([]float64, len(b)/4)
	for i := range x {
		e := b[4*i:]
		x[i] = float64(math.Float32frombits(uint32(e[0]) | uint32(e[1])<<8 | uint32(e[2])<<16 | uint32(e[3])<<24))
	}
	return x
}

// byGorgonia runs the graph on Gorgonia's tape machine.
func (e *experiment) byGorgonia() map[string][]float64 {
	e.t.Helper()
	for n, x := range e.feeds {
		if err := gorgonia.Let(n, valueOf(n, x)); err != nil {
			e.t.Fatal(err)
		}
	}
	vals := map[string]*gorgonia.Value{}
	for name, n := range e.outs {
		vals[name] = new(gorgonia.Value)
		gorgonia.Read(n, vals[name])
	}
	m := gorgonia.NewTapeMachine(e.trace.Expr())
	if err := errors.Join(m.RunAll(), m.Close()); err != nil {
		e.t.Fatal(err)
	}
	got := map[string][]float64{}
	for name, v := range vals {
		switch d := (*v).Data().(type) {
		case []float32:
			got[name] = widened(d)
		case float32:
			got[name] = []float64{float64(d)}
		default:
			e.t.Fatalf("%s is a %T", name, d)
		}
	}
	return got
}

func valueOf(n *gorgonia.Node, x []float64) gorgonia.Value {
	if n.Dtype() == tensor.Int32 {
		v := make([]int32, len(x))
		for i := range x {
			v[i] = int32(x[i])
		}
		return tensor.New(tensor.WithShape(n.Shape()...), tensor.WithBacking(v))
	}
	v := narrowed(x)
	if n.IsScalar() {
		return gorgonia.NewF32(v[0])
	}
	return tensor.New(tensor.WithShape(n.Shape()...), tensor.WithBacking(v))
}

// array is a tensor of a test.
type array struct {
	shape []int
	data  []float64
	ints  bool
}

func widened(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func narrowed(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

// compare demands |got-want| <= tol max(1, largest |want|) of every element.
func compare(t *testing.T, what string, got, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", what, len(got), len(want))
		return
	}
	scale := 1.0
	for _, w := range want {
		scale = max(scale, math.Abs(w))
	}
	worst, at := 0.0, -1
	for i := range want {
		if d := math.Abs(got[i] - want[i]); !(d <= worst) {
			worst, at = d, i
		}
	}
	if !(worst <= tol*scale) {
		t.Errorf("%s: element %d is %v, want %v (tolerance %g)", what, at, got[at], want[at], tol*scale)
	}
}

// keys lists the names of outs in order.
func keys[T any](m map[string]T) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
