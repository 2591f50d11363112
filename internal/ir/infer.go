package ir

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
)

// opName is the op's type name, for messages.
func opName(op Op) string {
	if m, ok := op.(Map); ok {
		return m.Fn.String()
	}
	return reflect.TypeOf(op).Name()
}

// infer is the typing rule of every op: the shape and dtype of op on args, or why they do not fit.
func infer(op Op, want Shape, args []*Value) (Shape, DType, error) {
	arity := 1
	switch op := op.(type) {
	case Read, Const, Data, Iota, Rand:
		arity = 0
	case Map:
		arity = op.Fn.Arity()
	case MatMul, Conv2d, Conv2dGradX, Conv2dGradW, Gather, ScatterAdd, SoftmaxGrad:
		arity = 2
	case CrossEntropy:
		arity = 3
	case CrossEntropyGrad:
		arity = 4
	case Pool2dGrad:
		if op.Mode == MaxPool {
			arity = 2
		}
	case Concat:
		arity = max(1, len(args))
	}
	if len(args) != arity {
		return nil, F32, fmt.Errorf("takes %d arguments, not %d", arity, len(args))
	}
	for i, d := range want {
		if d < 0 {
			return nil, F32, fmt.Errorf("shape %s: dimension %d is negative", want, i)
		}
	}
	switch op := op.(type) {
	case Read:
		return op.Slot.Shape.Clone(), op.Slot.value(), nil
	case Const:
		return want.Clone(), F32, nil
	case Rand:
		if op.ChannelsLast && len(want) < 2 {
			return want.Clone(), F32, errRank
		}
		return want.Clone(), F32, nil
	case Data:
		n, t := len(op.Content.Floats), F32
		if op.Content.Ints != nil {
			n, t = len(op.Content.Ints), I32
		}
		if n != want.Size() {
			return want.Clone(), t, fmt.Errorf("%d elements for shape %s", n, want)
		}
		return want.Clone(), t, nil
	case Iota:
		return want.Clone(), F32, axisIn(op.Axis, want)
	case Map:
		return inferMap(op, args)
	case CheckIndex:
		return args[0].Shape.Clone(), I32, needs(args[0], I32, -1)
	case Reshape:
		if want.Size() != args[0].Shape.Size() {
			return want.Clone(), args[0].DType, fmt.Errorf("%s has %d elements, %s has %d", args[0].Shape, args[0].Shape.Size(), want, want.Size())
		}
		return want.Clone(), args[0].DType, nil
	case Broadcast:
		a := args[0].Shape
		if len(a) != len(want) {
			return want.Clone(), args[0].DType, fmt.Errorf("%s to %s: %w", a, want, errRank)
		}
		for i := range a {
			if a[i] != want[i] && a[i] != 1 {
				return want.Clone(), args[0].DType, fmt.Errorf("%s does not broadcast to %s", a, want)
			}
		}
		return want.Clone(), args[0].DType, nil
	case Transpose, Slice, Unslice, Concat:
		return inferMove(op, args)
	case Gather, ScatterAdd:
		return inferRows(op, args)
	case Reduce:
		shape := args[0].Shape.Clone()
		for i, ax := range op.Axes {
			if err := axisIn(ax, shape); err != nil {
				return shape, F32, err
			}
			if i > 0 && op.Axes[i-1] >= ax {
				return shape, F32, fmt.Errorf("axes %v are not ascending", op.Axes)
			}
			shape[ax] = 1
		}
		return shape, F32, needs(args[0], F32, -1)
	case ArgMax:
		shape := args[0].Shape.Clone()
		if err := axisIn(op.Axis, shape); err != nil {
			return shape, I32, err
		}
		shape[op.Axis] = 1
		return shape, I32, needs(args[0], F32, -1)
	case MatMul:
		return inferMatMul(args[0], args[1])
	case Conv2d, Conv2dGradX, Conv2dGradW:
		return inferConv(op, args)
	case Pool2d, PoolPlaces, Pool2dGrad:
		return inferPool(op, args)
	case Softmax:
		if len(args[0].Shape) == 0 {
			return nil, F32, errRank
		}
		return args[0].Shape.Clone(), F32, needs(args[0], F32, -1)
	case SoftmaxGrad:
		if !args[0].Shape.Equal(args[1].Shape) {
			return args[0].Shape.Clone(), F32, fmt.Errorf("output %s and gradient %s differ", args[0].Shape, args[1].Shape)
		}
		return args[0].Shape.Clone(), F32, needs(args[1], F32, -1)
	case CrossEntropy, CrossEntropyGrad:
		return inferLoss(op, args)
	case AllReduceSum:
		return args[0].Shape.Clone(), F32, needs(args[0], F32, -1)
	}
	return nil, F32, fmt.Errorf("unknown op %T", op)
}

func needs(v *Value, t DType, rank int) error {
	if v.DType != t {
		return fmt.Errorf("wants %s, not %s%s", t, v.DType, v.Shape)
	}
	if rank >= 0 && len(v.Shape) != rank {
		return fmt.Errorf("wants rank %d, not %s", rank, v.Shape)
	}
	return nil
}

func axisIn(axis int, s Shape) error {
	if axis < 0 || axis >= len(s) {
		return fmt.Errorf("no axis %d in %s", axis, s)
	}
	return nil
}

func inferMap(op Map, args []*Value) (Shape, DType, error) {
	shape := args[0].Shape.Clone()
	for i, a := range args {
		if !a.Shape.Equal(shape) {
			return shape, F32, fmt.Errorf("arguments %s and %s differ", shape, a.Shape)
		}
		if want := map[bool]DType{true: I32, false: F32}[op.Fn == Float]; a.DType != want {
			return shape, F32, fmt.Errorf("argument %d: wants %s, not %s%s", i, want, a.DType, a.Shape)
		}
	}
	return shape, F32, nil
}

func inferMove(op Op, args []*Value) (Shape, DType, error) {
	a := args[0]
	switch op := op.(type) {
	case Transpose:
		shape := make(Shape, len(a.Shape))
		seen := make([]bool, len(a.Shape))
		if len(op.Perm) != len(a.Shape) {
			return a.Shape.Clone(), a.DType, fmt.Errorf("%v does not permute %s", op.Perm, a.Shape)
		}
		for i, p := range op.Perm {
			if p < 0 || p >= len(seen) || seen[p] {
				return a.Shape.Clone(), a.DType, fmt.Errorf("%v does not permute %s", op.Perm, a.Shape)
			}
			seen[p], shape[i] = true, a.Shape[p]
		}
		return shape, a.DType, nil
	case Slice:
		shape, err := sliced(a.Shape, op.Start, op.Stop, op.Step)
		return shape, a.DType, err
	case Unslice:
		if len(op.Stop) != len(a.Shape) {
			return a.Shape.Clone(), a.DType, errRank
		}
		// The result's shape is the shape that Slice would have been given; Stop holds it.
		shape := Shape(op.Stop).Clone()
		got, err := sliced(shape, op.Start, op.Stop, op.Step)
		if err == nil && !got.Equal(a.Shape) {
			// Slice may stop early, so accept a shorter argument.
			for i := range got {
				if a.Shape[i] > got[i] {
					err = fmt.Errorf("%s does not fit %s from %v by %v", a.Shape, shape, op.Start, op.Step)
				}
			}
		}
		return shape, a.DType, err
	case Concat:
		if err := axisIn(op.Axis, a.Shape); err != nil {
			return a.Shape.Clone(), a.DType, err
		}
		shape := a.Shape.Clone()
		for _, b := range args[1:] {
			rest := b.Shape.Clone()
			if len(rest) == len(shape) {
				rest[op.Axis] = a.Shape[op.Axis]
			}
			if b.DType != a.DType || !rest.Equal(a.Shape) {
				return shape, a.DType, fmt.Errorf("%s%s and %s%s do not join along axis %d", a.DType, a.Shape, b.DType, b.Shape, op.Axis)
			}
			shape[op.Axis] += b.Shape[op.Axis]
		}
		return shape, a.DType, nil
	}
	return nil, F32, fmt.Errorf("unknown op %T", op)
}

func sliced(a Shape, start, stop, step []int) (Shape, error) {
	if len(start) != len(a) || len(stop) != len(a) || len(step) != len(a) {
		return a.Clone(), errRank
	}
	shape := make(Shape, len(a))
	for i := range a {
		if start[i] < 0 || stop[i] > a[i] || start[i] > stop[i] || step[i] < 1 {
			return a.Clone(), fmt.Errorf("%d:%d:%d is no slice of dimension %d of %s", start[i], stop[i], step[i], i, a)
		}
		shape[i] = (stop[i] - start[i] + step[i] - 1) / step[i]
	}
	return shape, nil
}

func inferRows(op Op, args []*Value) (Shape, DType, error) {
	switch op := op.(type) {
	case Gather:
		table, idx := args[0], args[1]
		if len(table.Shape) == 0 {
			return nil, F32, fmt.Errorf("table: %w", errRank)
		}
		if err := needs(idx, I32, -1); err != nil {
			return nil, F32, fmt.Errorf("indices: %w", err)
		}
		return slices.Concat(idx.Shape, table.Shape[1:]), table.DType, nil
	case ScatterAdd:
		idx, rows := args[0], args[1]
		if err := needs(idx, I32, -1); err != nil {
			return nil, F32, fmt.Errorf("indices: %w", err)
		}
		n := len(idx.Shape)
		if len(rows.Shape) < n || !idx.Shape.Equal(rows.Shape[:n]) {
			return nil, F32, fmt.Errorf("indices %s and rows %s do not match", idx.Shape, rows.Shape)
		}
		return slices.Concat(Of(op.Rows), rows.Shape[n:]), F32, needs(rows, F32, -1)
	}
	return nil, F32, fmt.Errorf("unknown op %T", op)
}

func inferMatMul(a, b *Value) (Shape, DType, error) {
	n := len(a.Shape)
	if err := cmp.Or(needs(a, F32, -1), needs(b, F32, n)); err != nil {
		return nil, F32, err
	}
	if n != 2 && n != 3 || a.Shape[n-1] != b.Shape[n-2] || n == 3 && a.Shape[0] != b.Shape[0] {
		return nil, F32, fmt.Errorf("no product of %s and %s", a.Shape, b.Shape)
	}
	out := a.Shape.Clone()
	out[n-1] = b.Shape[n-1]
	return out, F32, nil
}

func (w Window) check() error {
	for d := range 2 {
		if w.Kernel[d] < 1 || w.Stride[d] < 1 || w.Dilation[d] < 1 || w.Padding[d] < 0 {
			return fmt.Errorf("kernel %v, stride %v, dilation %v must be at least 1 and padding %v at least 0", w.Kernel, w.Stride, w.Dilation, w.Padding)
		}
	}
	return nil
}

func convShape(w Window, x, k Shape) (Shape, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	in, f := w.ToNCHW([4]int(x)), w.ToNCHW([4]int(k))
	if w.Groups < 1 || in[1]%w.Groups != 0 || f[0]%w.Groups != 0 || f[1] != in[1]/w.Groups || f[2] != w.Kernel[0] || f[3] != w.Kernel[1] {
		return nil, fmt.Errorf("weight %s does not fit input %s with kernel %v in %d groups", k, x, w.Kernel, w.Groups)
	}
	oh, ow := w.Out(0, in[2]), w.Out(1, in[3])
	if oh < 1 || ow < 1 {
		return nil, fmt.Errorf("kernel %v with dilation %v is larger than the padded input %s", w.Kernel, w.Dilation, x)
	}
	return w.shape(in[0], f[0], oh, ow), nil
}

// shape is that of an image, given in the order [N,C,H,W], in the window's order.
func (w Window) shape(nchw ...int) Shape {
	s := w.FromNCHW([4]int(nchw))
	return s[:]
}

func inferConv(op Op, args []*Value) (Shape, DType, error) {
	a, b := args[0], args[1]
	if err := cmp.Or(needs(a, F32, 4), needs(b, F32, 4)); err != nil {
		return nil, F32, err
	}
	same := func(w Window, x, k, dy Shape) error {
		y, err := convShape(w, x, k)
		if err == nil && !y.Equal(dy) {
			err = fmt.Errorf("gradient is %s, the output %s", dy, y)
		}
		return err
	}
	switch op := op.(type) {
	case Conv2d:
		y, err := convShape(op.Conv, a.Shape, b.Shape)
		return y, F32, err
	case Conv2dGradX:
		x := Shape(op.In[:]).Clone()
		return x, F32, same(op.Conv, x, a.Shape, b.Shape)
	case Conv2dGradW:
		w := op.Conv
		if w.Groups < 1 {
			return nil, F32, fmt.Errorf("%d groups", w.Groups)
		}
		c := w.Channels()
		k := w.shape(b.Shape[c], a.Shape[c]/w.Groups, w.Kernel[0], w.Kernel[1])
		return k, F32, same(w, a.Shape, k, b.Shape)
	}
	return nil, F32, fmt.Errorf("unknown op %T", op)
}

func poolShape(mode PoolMode, w Window, out [2]int, x Shape) (Shape, error) {
	in := w.ToNCHW([4]int(x))
	if mode == AdaptiveAvgPool {
		if out[0] < 1 || out[1] < 1 {
			return nil, fmt.Errorf("output size %v must be at least 1", out)
		}
		return w.shape(in[0], in[1], out[0], out[1]), nil
	}
	if err := w.check(); err != nil {
		return nil, err
	}
	if w.Padding[0]*2 > w.Kernel[0] || w.Padding[1]*2 > w.Kernel[1] {
		return nil, fmt.Errorf("padding %v is more than half the kernel %v", w.Padding, w.Kernel)
	}
	oh, ow := w.Out(0, in[2]), w.Out(1, in[3])
	if oh < 1 || ow < 1 {
		return nil, fmt.Errorf("kernel %v is larger than the padded input %s", w.Kernel, x)
	}
	return w.shape(in[0], in[1], oh, ow), nil
}

func inferPool(op Op, args []*Value) (Shape, DType, error) {
	for i, a := range args {
		t := F32
		if grad, ok := op.(Pool2dGrad); ok && grad.Placed && i == 0 {
			t = I32
		}
		if err := needs(a, t, 4); err != nil {
			return nil, F32, err
		}
	}
	switch op := op.(type) {
	case PoolPlaces:
		x := args[0].Shape
		if !op.Pool.Places(x[3]) {
			return nil, I32, fmt.Errorf("no places of %s in %+v", x, op.Pool)
		}
		y, err := poolShape(MaxPool, op.Pool, [2]int{}, x)
		if err == nil {
			y[3] /= 4
		}
		return y, I32, err
	case Pool2d:
		y, err := poolShape(op.Mode, op.Pool, op.OutHW, args[0].Shape)
		return y, F32, err
	case Pool2dGrad:
		x := Shape(op.In[:]).Clone()
		if op.Mode == MaxPool && !op.Placed {
			x = args[0].Shape.Clone()
		}
		dy := args[len(args)-1].Shape
		y, err := poolShape(op.Mode, op.Pool, op.OutHW, x)
		if err == nil && op.Placed && (op.Mode != MaxPool || !op.Pool.Places(x[3]) || !args[0].Shape.Equal(Of(y[0], y[1], y[2], y[3]/4))) {
			err = fmt.Errorf("places are %s for the output %s", args[0].Shape, y)
		}
		if err == nil && !y.Equal(dy) {
			err = fmt.Errorf("gradient is %s, the output %s", dy, y)
		}
		return x, F32, err
	}
	return nil, F32, fmt.Errorf("unknown op %T", op)
}

func inferLoss(op Op, args []*Value) (Shape, DType, error) {
	x, y, w := args[0], args[1], args[2]
	if err := cmp.Or(needs(x, F32, 2), needs(y, I32, 1), needs(w, F32, 1)); err != nil {
		return nil, F32, err
	}
	if x.Shape[0] != y.Shape[0] || x.Shape[1] != w.Shape[0] {
		return nil, F32, fmt.Errorf("logits %s, labels %s and class weights %s do not match", x.Shape, y.Shape, w.Shape)
	}
	if _, ok := op.(CrossEntropyGrad); !ok {
		return y.Shape.Clone(), F32, nil
	}
	if g := args[3]; !g.Shape.Equal(y.Shape) || g.DType != F32 {
		return x.Shape.Clone(), F32, fmt.Errorf("loss gradient is %s%s, not f32%s", g.DType, g.Shape, y.Shape)
	}
	return x.Shape.Clone(), F32, nil
}
