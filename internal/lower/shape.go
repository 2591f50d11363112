package lower

import (
	"slices"

	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

func reshape(c *call, args []*ir.Value) (*ir.Value, error) {
	return c.g.Reshape(args[0], c.shape...), nil
}

func transpose(c *call, args []*ir.Value) (*ir.Value, error) {
	return c.g.Transpose(args[0], c.op.ints("pattern")...), nil
}

func concat(c *call, args []*ir.Value) (*ir.Value, error) {
	return c.g.Add(ir.Concat{Axis: c.op.int("axis")}, nil, args...), nil
}

// span reads which elements a sliceOp or sliceIncrOp takes of an axis of extent size: n of them, from start by stride. They are
// as many as Gorgonia's shape inference says, (end-start)/step, even where its machines take one more.
func (c *call) span(size int) (start, stride, n int) {
	s := c.n.Op().(interface{ IsSlice() tensor.Slice }).IsSlice()
	if s == nil || s.End() <= s.Start() {
		return 0, 1, size
	}
	start, stride = s.Start(), max(1, s.Step())
	return start, stride, max(1, (min(s.End(), size)-start)/stride)
}

// slice takes a range along one axis. A single element loses the axis.
func slice(c *call, args []*ir.Value) (*ir.Value, error) {
	x, along := args[0], c.op.int("along")
	start, stride, n := c.span(x.Shape[along])
	s := ir.Slice{Start: make([]int, len(x.Shape)), Stop: x.Shape.Clone(), Step: ones(len(x.Shape))}
	s.Start[along], s.Stop[along], s.Step[along] = start, start+(n-1)*stride+1, stride
	return c.g.Add(s, nil, x), nil
}

// sliceIncr is the gradient of slice: x, grad -> zeros of x's shape with grad at the places that were taken. It comes from slices
// alone, so there is nothing to increment.
func sliceIncr(c *call, args []*ir.Value) (*ir.Value, error) {
	grad, along := args[1], c.op.int("along")
	start, stride, n := c.span(c.shape[along])
	taken := c.shape.Clone()
	taken[along] = n
	if grad.Shape.Size() == 1 {
		grad = c.g.BroadcastTo(c.g.Reshape(grad), taken...)
	}
	u := ir.Unslice{Start: make([]int, len(taken)), Stop: c.shape.Clone(), Step: ones(len(taken))}
	u.Start[along], u.Step[along] = start, stride
	return c.g.Add(u, nil, c.g.Reshape(grad, taken...)), nil
}

// repeat repeats each element along an axis, next to itself: broadcasting, when the axis has extent 1. How often is known from
// the node's shape.
func repeat(c *call, args []*ir.Value) (*ir.Value, error) {
	x, along := args[0], c.op.int("along")
	shape := x.Shape.Clone()
	for len(shape) <= along {
		shape = append(shape, 1)
	}
	if len(shape) != len(c.shape) || shape[along] == 0 {
		return nil, c.failf("can't repeat %s to %s", x.Shape, c.shape)
	}
	// [.., n, ..] -> [.., n, 1, ..] -> [.., n, times, ..] -> [.., n*times, ..]
	split := slices.Insert(shape, along+1, 1)
	full := slices.Clone(split)
	full[along+1] = c.shape[along] / split[along]
	return c.g.Reshape(c.g.BroadcastTo(c.g.Reshape(x, split...), full...), c.shape...), nil
}

// at takes one element as a scalar.
func at(c *call, args []*ir.Value) (*ir.Value, error) {
	coords := c.op.ints("coordinates")
	stop := slices.Clone(coords)
	for i := range stop {
		stop[i]++
	}
	return c.g.Add(ir.Slice{Start: coords, Stop: stop, Step: ones(len(coords))}, nil, args[0]), nil
}

// sizeOf is the extent of an axis as a number.
func sizeOf(c *call, args []*ir.Value) (*ir.Value, error) {
	axis, shape := c.op.int("axis"), args[0].Shape
	if len(shape) == 0 {
		return c.g.Const(1), nil
	}
	if axis < 0 || axis >= len(shape) {
		return nil, c.failf("no axis %d in %s", axis, shape)
	}
	return c.g.Const(float64(shape[axis])), nil
}

// byIndices takes the slices of x along an axis that indices name. An index out of range ends the step with an ir.IndexError.
func byIndices(c *call, args []*ir.Value) (*ir.Value, error) {
	axis, x := c.op.int("axis"), args[0]
	perm := swap(len(x.Shape), 0, axis)
	rows := c.g.Transpose(x, perm...)
	return c.g.Transpose(c.g.Add(ir.Gather{}, nil, rows, c.indices(args[1], x.Shape[axis])), perm...), nil
}

// byIndicesGrad is the gradient of byIndices: x, grad, indices -> the shape of x.
func byIndicesGrad(c *call, args []*ir.Value) (*ir.Value, error) {
	axis, n := c.op.int("axis"), 0
	if axis < len(c.shape) {
		n = c.shape[axis]
	}
	perm := swap(len(c.shape), 0, axis)
	grad := c.g.Transpose(args[1], perm...)
	return c.g.Transpose(c.g.Add(ir.ScatterAdd{Rows: n}, nil, c.indices(args[2], n), grad), perm...), nil
}

// indices checks a vector of indices below bound. Index 0 is always in range, so that ignoring it ignores nothing.
func (c *call) indices(v *ir.Value, bound int) *ir.Value {
	return c.g.Add(ir.CheckIndex{Bound: bound, Ignore: 0, What: "index"}, nil, flat(c.g, v))
}

// swap is the permutation of n axes that exchanges i and j.
func swap(n, i, j int) []int {
	perm := make([]int, n)
	for k := range perm {
		perm[k] = k
	}
	if i < n && j < n {
		perm[i], perm[j] = j, i
	}
	return perm
}

func ones(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = 1
	}
	return s
}
