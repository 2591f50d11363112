package lower

import (
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// reduce is Sum or Max along some axes, which are dropped.
func reduce(c *call, args []*ir.Value) (*ir.Value, error) {
	fn := ir.Sum
	if kindOf(c.n.Op()) == "maxOp" {
		fn = ir.MaxOf
	}
	along := c.op.ints("along")
	slices.Sort(along)
	along = slices.Compact(along)
	return c.g.Squeeze(c.g.Reduce(fn, args[0], along...), along...), nil
}

// softmaxAxis is the axis that SoftMax of a given shape runs along: the last unless said otherwise, but the first of a column.
func (c *call) softmaxAxis(shape ir.Shape) int {
	if axis := c.op.int("axis"); axis != -1 {
		return axis
	}
	if len(shape) == 2 && shape[1] == 1 && shape[0] > 1 {
		return 0
	}
	return len(shape) - 1
}

func softmax(c *call, args []*ir.Value) (*ir.Value, error) {
	x := args[0]
	perm := swap(len(x.Shape), len(x.Shape)-1, c.softmaxAxis(x.Shape))
	y := c.g.Add(ir.Softmax{Log: c.op.bool("isLog")}, nil, c.g.Transpose(x, perm...))
	return c.g.Transpose(y, perm...), nil
}

// softmaxGrad is x, y, grad -> dx; only y and grad matter.
func softmaxGrad(c *call, args []*ir.Value) (*ir.Value, error) {
	y, grad := args[1], args[2]
	perm := swap(len(y.Shape), len(y.Shape)-1, c.softmaxAxis(y.Shape))
	dx := c.g.Add(ir.SoftmaxGrad{Log: c.op.bool("isLog")}, nil, c.g.Transpose(y, perm...), c.g.Transpose(grad, perm...))
	return c.g.Transpose(dx, perm...), nil
}
