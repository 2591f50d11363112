package ir

import (
	"errors"
	"fmt"
	"slices"
)

// Region names a block of memory that a program works on. A backend allocates one block a region.
type Region uint8

// The regions. Params, Grads, State and Buffers belong to the rank and are shared by its programs; Input, Output, Work and
// Consts belong to one program.
const (
	Params  Region = iota // the model's parameters, one flat arena
	Grads                 // their gradients in the same order, then GradTail scalars
	State                 // the optimizer's state
	Buffers               // what a model keeps without training it (running statistics)
	Hyper                 // the step's scalars: learning rate and the like, written by the caller before each run
	Input                 // the batch
	Output                // what the caller reads: loss, predictions
	Work                  // everything in between
	Consts                // constant tensors
	NumRegions
)

// String returns the region's name.
func (r Region) String() string {
	return [...]string{"params", "grads", "state", "buffers", "hyper", "input", "output", "work", "consts"}[r]
}

// A Slot is a contiguous row-major tensor at a fixed place of a region, known by name to callers.
type Slot struct {
	Region Region
	Name   string
	Offset int // in elements of its type, from the start of the region
	Shape  Shape
	DType  DType
}

// End returns the offset just past the slot.
func (s *Slot) End() int { return s.Offset + s.Shape.Size() }

// overlaps reports whether two slots have memory in common.
func (s *Slot) overlaps(o *Slot) bool {
	a, b := s.DType.Size(), o.DType.Size()
	return s.Region == o.Region && a*s.Offset < b*o.End() && b*o.Offset < a*s.End()
}

// value is the type of a value that is read from the slot or stored in it.
func (s *Slot) value() DType {
	if s.DType.Half() {
		return F32
	}
	return s.DType
}

// Value is a node of a Graph: the result of Op on Args.
type Value struct {
	ID    int // position in its graph
	Op    Op
	Args  []*Value
	DType DType
	Shape Shape
	Name  string // for people: where it comes from; may be empty
}

// Store writes Value into Slot at the end of the graph.
type Store struct {
	Slot  *Slot
	Value *Value
}

// Graph builds values. The zero Graph is ready to use. Its methods make values; a method given a value of another graph
// or of the wrong shape records an error, kept for Err, and returns a value of a plausible shape.
type Graph struct {
	Values []*Value
	Stores []Store

	scope string
	err   error
}

// Err returns the first mistake made in building, or nil.
func (g *Graph) Err() error { return g.err }

// Fail records err as the graph's error, if it is the first.
func (g *Graph) Fail(err error) {
	if g.err == nil && err != nil {
		if g.scope != "" {
			err = fmt.Errorf("%s: %w", g.scope, err)
		}
		g.err = err
	}
}

// SetScope names what values and errors made from now on come from ("conv1", "loss"). It returns the scope before.
func (g *Graph) SetScope(name string) (old string) {
	old, g.scope = g.scope, name
	return old
}

func (g *Graph) errorf(format string, args ...any) {
	g.Fail(fmt.Errorf("ir: "+format, args...))
}

// Add makes a value of op and args. The shape and dtype follow from them by the op's rule, which also checks them. Ops whose
// shape does not follow (Const, Data, Rand, Iota, Reshape, Broadcast) take want as their shape; others ignore it.
func (g *Graph) Add(op Op, want Shape, args ...*Value) *Value {
	v := &Value{ID: len(g.Values), Op: op, Args: args, Name: g.scope}
	for i, a := range args {
		if a == nil || a.ID >= len(g.Values) || g.Values[a.ID] != a {
			g.errorf("%s: argument %d is not a value of this graph", opName(op), i)
			a = g.poison(want)
			args[i] = a
		}
	}
	shape, dtype, err := infer(op, want, args)
	if err != nil {
		g.Fail(fmt.Errorf("ir: %s: %w", opName(op), err))
		if shape == nil {
			shape = want.Clone()
		}
	}
	v.ID, v.Shape, v.DType = len(g.Values), shape, dtype
	g.Values = append(g.Values, v)
	return v
}

func (g *Graph) poison(shape Shape) *Value {
	v := &Value{ID: len(g.Values), Op: Const{}, Shape: shape.Clone()}
	g.Values = append(g.Values, v)
	return v
}

// Store writes v into s at the end of the graph. Shapes and types must agree; each slot is stored once.
func (g *Graph) Store(s *Slot, v *Value) {
	if !s.Shape.Equal(v.Shape) || s.value() != v.DType {
		g.errorf("store: %s %s%s takes a value of that shape and type, not %s%s", s.Name, s.DType, s.Shape, v.DType, v.Shape)
		return
	}
	for _, o := range g.Stores {
		if o.Slot.overlaps(s) {
			g.errorf("store: %s overlaps %s, which is stored already", s.Name, o.Slot.Name)
			return
		}
	}
	g.Stores = append(g.Stores, Store{s, v})
}

// Read returns the content of s at the start of the step.
func (g *Graph) Read(s *Slot) *Value { return g.Add(Read{s}, nil) }

// Const returns a tensor whose every element is x.
func (g *Graph) Const(x float64, dims ...int) *Value { return g.Add(Const{x}, Of(dims...)) }

// Data returns a constant float32 tensor. The slice is kept.
func (g *Graph) Data(x []float32, dims ...int) *Value {
	return g.Add(Data{&Content{Floats: x}}, Of(dims...))
}

// Iota returns a tensor of the given shape whose elements are their indices along axis.
func (g *Graph) Iota(axis int, dims ...int) *Value { return g.Add(Iota{axis}, Of(dims...)) }

// Rand returns uniform numbers in [0,1); see [Rand].
func (g *Graph) Rand(stream uint64, dims ...int) *Value {
	return g.Add(Rand{Stream: stream}, Of(dims...))
}

// Map applies f elementwise. Arguments are broadcast against each other in NumPy's manner: aligned at the last dimension,
// extents 1 and missing dimensions repeated.
func (g *Graph) Map(f Fn, args ...*Value) *Value {
	if len(args) != f.Arity() {
		g.errorf("%s takes %d arguments, not %d", f, f.Arity(), len(args))
		return g.poison(nil)
	}
	shape := args[0].Shape
	for _, a := range args[1:] {
		var err error
		if shape, err = BroadcastShapes(shape, a.Shape); err != nil {
			g.errorf("%s: %w", f, err)
			return g.poison(args[0].Shape)
		}
	}
	full := make([]*Value, len(args))
	for i, a := range args {
		full[i] = g.BroadcastTo(a, shape...)
	}
	return g.Add(Map{f}, nil, full...)
}

// Neg returns -a.
func (g *Graph) Neg(a *Value) *Value { return g.Map(Neg, a) }

// Plus returns a+b.
func (g *Graph) Plus(a, b *Value) *Value { return g.Map(Add, a, b) }

// Minus returns a-b.
func (g *Graph) Minus(a, b *Value) *Value { return g.Map(Sub, a, b) }

// Times returns a*b, elementwise.
func (g *Graph) Times(a, b *Value) *Value { return g.Map(Mul, a, b) }

// Over returns a/b, elementwise.
func (g *Graph) Over(a, b *Value) *Value { return g.Map(Div, a, b) }

// Scale returns x*a.
func (g *Graph) Scale(a *Value, x float64) *Value { return g.Map(Mul, a, g.Const(x)) }

// Shift returns a+x.
func (g *Graph) Shift(a *Value, x float64) *Value { return g.Map(Add, a, g.Const(x)) }

// BroadcastShapes returns the common shape of a and b in NumPy's manner, or an error naming both.
func BroadcastShapes(a, b Shape) (Shape, error) {
	out := make(Shape, max(len(a), len(b)))
	for i := range out {
		x, y := 1, 1
		if j := i - len(out) + len(a); j >= 0 {
			x = a[j]
		}
		if j := i - len(out) + len(b); j >= 0 {
			y = b[j]
		}
		switch {
		case x == y || y == 1:
			out[i] = x
		case x == 1:
			out[i] = y
		default:
			return nil, fmt.Errorf("shapes %s and %s do not broadcast", a, b)
		}
	}
	return out, nil
}

// BroadcastTo repeats v to the given shape, in NumPy's manner.
func (g *Graph) BroadcastTo(v *Value, dims ...int) *Value {
	shape := Of(dims...)
	if v.Shape.Equal(shape) {
		return v
	}
	if len(v.Shape) < len(shape) {
		padded := make(Shape, len(shape))
		for i := range padded {
			padded[i] = 1
		}
		copy(padded[len(shape)-len(v.Shape):], v.Shape)
		v = g.Reshape(v, padded...)
	}
	if v.Shape.Equal(shape) {
		return v
	}
	return g.Add(Broadcast{}, shape, v)
}

// Reshape gives v another shape of the same size.
func (g *Graph) Reshape(v *Value, dims ...int) *Value {
	if v.Shape.Equal(dims) {
		return v
	}
	return g.Add(Reshape{}, Of(dims...), v)
}

// Transpose makes dimension i of the result from dimension perm[i] of v.
func (g *Graph) Transpose(v *Value, perm ...int) *Value {
	return g.Add(Transpose{slices.Clone(perm)}, nil, v)
}

// T swaps the last two dimensions.
func (g *Graph) T(v *Value) *Value {
	n := len(v.Shape)
	if n < 2 {
		g.errorf("transpose: %s has no two dimensions", v.Shape)
		return v
	}
	perm := make([]int, n)
	for i := range perm {
		perm[i] = i
	}
	perm[n-1], perm[n-2] = n-2, n-1
	return g.Transpose(v, perm...)
}

// SliceAxis takes elements start to stop-1 along axis.
func (g *Graph) SliceAxis(v *Value, axis, start, stop int) *Value {
	s := Slice{make([]int, len(v.Shape)), v.Shape.Clone(), ones(len(v.Shape))}
	if axis < 0 || axis >= len(v.Shape) {
		g.errorf("slice: no axis %d in %s", axis, v.Shape)
		return v
	}
	s.Start[axis], s.Stop[axis] = start, stop
	return g.Add(s, nil, v)
}

// Reduce combines the elements along axes, which stay with extent 1. No axes: all of them.
func (g *Graph) Reduce(f Reduction, v *Value, axes ...int) *Value {
	axes = slices.Clone(axes)
	if len(axes) == 0 {
		for i := range v.Shape {
			axes = append(axes, i)
		}
	}
	slices.Sort(axes)
	if len(axes) == 0 {
		return v
	}
	return g.Add(Reduce{f, axes}, nil, v)
}

// Sum is Reduce(Sum), with the reduced axes dropped.
func (g *Graph) Sum(v *Value, axes ...int) *Value {
	return g.Squeeze(g.Reduce(Sum, v, axes...), axes...)
}

// SumTo sums v down to shape: the adjoint of BroadcastTo.
func (g *Graph) SumTo(v *Value, dims ...int) *Value {
	var axes []int
	lead := len(v.Shape) - len(dims)
	for i, d := range v.Shape {
		if i < lead || dims[i-lead] != d {
			axes = append(axes, i)
		}
	}
	if len(axes) == 0 {
		return v
	}
	return g.Reshape(g.Reduce(Sum, v, axes...), dims...)
}

// Squeeze drops the given axes, of extent 1. No axes: all dimensions, giving a scalar.
func (g *Graph) Squeeze(v *Value, axes ...int) *Value {
	var shape Shape
	for i, d := range v.Shape {
		if len(axes) > 0 && !slices.Contains(axes, i) {
			shape = append(shape, d)
		}
	}
	return g.Reshape(v, shape...)
}

// MatMul is the matrix product; see [MatMul].
func (g *Graph) MatMul(a, b *Value) *Value { return g.Add(MatMul{}, nil, a, b) }

// Select is where(c, a, b), broadcast.
func (g *Graph) Select(c, a, b *Value) *Value { return g.Map(Where, c, a, b) }

func ones(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = 1
	}
	return s
}

// IndexError says that a label or index was outside its range. Index is its place in the tensor, row-major.
type IndexError struct {
	What         string
	Index, Value int
	Bound        int
}

// Error names the index, the value and the allowed range.
func (e *IndexError) Error() string {
	return fmt.Sprintf("%s %d at index %d is outside 0..%d", e.What, e.Value, e.Index, e.Bound-1)
}

var errRank = errors.New("wrong rank")
