package op

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
	"github.com/tandem-train/tandem/internal/lower"
)

// kernel is the computation of an op. Kernels are plain structs: two that print the same are the same.
type kernel interface {
	Lower(g *ir.Graph, args []*ir.Value) *ir.Value
}

// differentiable is a kernel with a gradient.
type differentiable interface {
	kernel
	// wrt reports whether there is a gradient by argument i.
	wrt(i int) bool
	// diff returns the gradients by the arguments, given the gradient dy of the result; nil where wrt is false.
	diff(args gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error)
}

// Op is a Gorgonia op of this package, made for arguments of certain types and shapes.
type Op struct {
	kernel kernel
	text   string // the kernel with its attributes
	in     []arg
	out    ir.Shape
	dtype  tensor.Dtype
	hash   uint32

	mu    sync.Mutex
	alone *program // for Do; made by the first
}

// arg is what an op knows of an argument.
type arg struct {
	typ   hm.Type
	shape ir.Shape
	dtype ir.DType
}

var (
	_ gorgonia.SDOp = (*Op)(nil)
	_ lower.Op      = (*Op)(nil)
)

// apply adds the node of k on args.
func apply(k kernel, args ...*gorgonia.Node) (*gorgonia.Node, error) {
	o, err := newOp(k, args)
	if err != nil {
		return nil, err
	}
	return gorgonia.ApplyOp(o, args...)
}

func newOp(k kernel, args []*gorgonia.Node) (*Op, error) {
	o := &Op{kernel: k, text: strings.TrimPrefix(fmt.Sprintf("%T%+v", k, k), "op.")}
	for i, n := range args {
		if n == nil {
			return nil, fmt.Errorf("op: %s: argument %d is nil", o.text, i)
		}
		a := arg{typ: n.Type(), shape: ir.Shape(n.Shape()).Clone()}
		switch n.Dtype() {
		case tensor.Float32:
		case tensor.Int32:
			a.dtype = ir.I32
		default:
			return nil, fmt.Errorf("op: %s: argument %d is %v %s: values are float32, labels and indices int32", o.text, i, n.Dtype(), a.shape)
		}
		o.in = append(o.in, a)
	}
	g, y := o.graph()
	if err := g.Err(); err != nil {
		return nil, fmt.Errorf("op: %s: %w", o.text, err)
	}
	o.out, o.dtype = y.Shape, tensor.Float32
	if y.DType == ir.I32 {
		o.dtype = tensor.Int32
	}
	o.hash = hashOf(o)
	return o, nil
}

func hashOf(o *Op) uint32 {
	h := fnv.New32a()
	o.WriteHash(h)
	return h.Sum32()
}

// graph is the op on inputs of its own: argument i is slot i of the Input region.
func (o *Op) graph() (*ir.Graph, *ir.Value) {
	g := new(ir.Graph)
	args := make([]*ir.Value, len(o.in))
	offset := 0
	for i, a := range o.in {
		args[i] = g.Read(&ir.Slot{Region: ir.Input, Name: fmt.Sprint(i), Offset: offset, Shape: a.shape, DType: a.dtype})
		offset += a.shape.Size()
	}
	return g, o.kernel.Lower(g, args)
}

// Lower writes the op into a program.
func (o *Op) Lower(g *ir.Graph, args []*ir.Value) *ir.Value { return o.kernel.Lower(g, args) }

// Arity is the number of arguments.
func (o *Op) Arity() int { return len(o.in) }

// Type is the op's type as a function.
func (o *Op) Type() hm.Type {
	types := make([]hm.Type, 0, len(o.in)+1)
	for _, a := range o.in {
		types = append(types, a.typ)
	}
	return hm.NewFnType(append(types, o.resultType())...)
}

func (o *Op) resultType() hm.Type {
	if len(o.out) == 0 {
		return o.dtype
	}
	return gorgonia.TensorType{Dims: len(o.out), Of: o.dtype}
}

// InferShape returns the result's shape; the arguments must have the shapes that the op was made for.
func (o *Op) InferShape(args ...gorgonia.DimSizer) (tensor.Shape, error) {
	for i, a := range args {
		s, ok := a.(tensor.Shape)
		if !ok || i >= len(o.in) || !o.in[i].shape.Equal(ir.Shape(s)) {
			return nil, fmt.Errorf("op: %s: argument %d is %v", o.text, i, a)
		}
	}
	return tensor.Shape(o.out.Clone()), nil
}

// DiffWRT says by which arguments the op can be differentiated.
func (o *Op) DiffWRT(n int) []bool {
	wrt := make([]bool, n)
	if d, ok := o.kernel.(differentiable); ok {
		for i := range wrt {
			wrt[i] = d.wrt(i)
		}
	}
	return wrt
}

// SymDiff adds the gradients of the op to the graph.
func (o *Op) SymDiff(args gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	d, ok := o.kernel.(differentiable)
	if !ok {
		return nil, fmt.Errorf("op: %s has no gradient: it is a gradient itself, or a count", o.text)
	}
	grads, err := d.diff(args, y, dy)
	if err != nil {
		return nil, fmt.Errorf("gradient of %s: %w", y.Name(), err)
	}
	for _, n := range grads {
		if n != nil && n != dy {
			gorgonia.WithName(y.Name() + " grad")(n)
		}
	}
	return grads, nil
}

// ReturnsPtr is true: Do makes a new value.
func (o *Op) ReturnsPtr() bool { return true }

// CallsExtern is false.
func (o *Op) CallsExtern() bool { return false }

// OverwritesInput is -1: none.
func (o *Op) OverwritesInput() int { return -1 }

// WriteHash writes what tells the op from others: its kind, every attribute and the shapes it takes.
func (o *Op) WriteHash(h hash.Hash) {
	b := fmt.Append(nil, "tandem ", o.text)
	for _, a := range o.in {
		b = fmt.Append(b, a.dtype, a.shape)
	}
	h.Write(b)
}

// Hashcode is the FNV-1a hash of what WriteHash writes.
func (o *Op) Hashcode() uint32 { return o.hash }

// String is the kind of op with its attributes.
func (o *Op) String() string { return o.text }

// grads collects the results of several apply calls.
type grads struct {
	nodes gorgonia.Nodes
	err   error
}

func (g *grads) add(n *gorgonia.Node, err error) {
	g.nodes = append(g.nodes, n)
	g.err = errors.Join(g.err, err)
}

func (g *grads) get() (gorgonia.Nodes, error) { return g.nodes, g.err }
