package lower

import (
	"github.com/tandem-train/tandem/internal/ir"
)

// poolWindow reads the geometry of a maxPoolOp.
func (c *call) poolWindow() (ir.Window, error) {
	before, after := c.op.pair("padNorth", "padWest"), c.op.pair("padSouth", "padEast")
	w := ir.Window{Kernel: c.op.pair("h", "w"), Stride: c.op.pair("strideH", "strideW"), Padding: before, Dilation: [2]int{1, 1}, Groups: 1}
	if before != after {
		return w, c.failf("padding north and west %v and south and east %v differ: pad alike, or use Concat for the rest", before, after)
	}
	for d := range 2 {
		if 2*w.Padding[d] > w.Kernel[d] {
			return w, c.failf("padding %v is more than half the kernel %v, so that windows would hold nothing", w.Padding, w.Kernel)
		}
	}
	return w, nil
}

func maxPool(c *call, args []*ir.Value) (*ir.Value, error) {
	w, err := c.poolWindow()
	if err != nil {
		return nil, err
	}
	return c.g.Add(ir.Pool2d{Mode: ir.MaxPool, Pool: w}, nil, args[0]), nil
}

// maxPoolGrad is x, y, dy -> dx.
func maxPoolGrad(c *call, args []*ir.Value) (*ir.Value, error) {
	w, err := c.poolWindow()
	if err != nil {
		return nil, err
	}
	return c.g.Add(ir.Pool2dGrad{Mode: ir.MaxPool, Pool: w}, nil, args[0], args[2]), nil
}

func globalAveragePool(c *call, args []*ir.Value) (*ir.Value, error) {
	x := args[0]
	if len(x.Shape) != 4 {
		return nil, c.failf("%s is not [batch, channels, height, width]", x.Shape)
	}
	return c.g.Scale(c.g.Reduce(ir.Sum, x, 2, 3), 1/float64(x.Shape[2]*x.Shape[3])), nil
}

// upsample repeats every pixel in a square.
func upsample(c *call, args []*ir.Value) (*ir.Value, error) {
	s, n := args[0].Shape, c.op.int("stride")+1
	x := c.g.Reshape(args[0], s[0], s[1], s[2], 1, s[3], 1)
	return c.g.Reshape(c.g.BroadcastTo(x, s[0], s[1], s[2], n, s[3], n), c.shape...), nil
}

// upsampleGrad is x, y, dy -> dx.
func upsampleGrad(c *call, args []*ir.Value) (*ir.Value, error) {
	s, n := c.shape, c.op.int("stride")+1
	dy := c.g.Reshape(args[2], s[0], s[1], s[2], n, s[3], n)
	return c.g.Sum(dy, 3, 5), nil
}
