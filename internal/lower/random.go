package lower

import (
	"math"
	"reflect"

	"github.com/tandem-train/tandem/internal/ir"
)

// Streams of random numbers are numbered by the node, with the top bit set to keep clear of those that other ops choose.
// A node's id depends on nothing but how the graph was built.
func (c *call) stream(part uint64) uint64 { return 1<<63 | uint64(c.n.ID())<<1 | part }

// The distributions of randomOp, in the order of Gorgonia's randomness.
const (
	uniform = iota
	gaussian
)

// random is a node of fresh random numbers in each step.
func random(c *call, _ []*ir.Value) (*ir.Value, error) {
	if len(c.shape) == 0 {
		return nil, c.failf("a random scalar would differ between ranks: give it a shape whose first dimension is the batch, or make it an input")
	}
	g, a, b := c.g, c.op.float("a"), c.op.float("b")
	u := g.Rand(c.stream(0), c.shape...)
	switch c.op.byte("which") {
	case uniform: // a to b
		return g.Shift(g.Scale(u, b-a), a), nil
	case gaussian: // mean a, standard deviation b, by Box and Muller; 1-u is in (0,1]
		r := g.Map(ir.Sqrt, g.Scale(g.Map(ir.Log1p, g.Neg(u)), -2))
		angle := g.Scale(g.Rand(c.stream(1), c.shape...), 2*math.Pi)
		return g.Shift(g.Scale(g.Times(r, g.Map(ir.Cos, angle)), b), a), nil
	}
	return nil, c.failf("there is no lowering for binomial numbers: compare uniform ones with the probability")
}

// dropout is x * mask, where mask is 1/keep with probability keep, else 0.
func dropout(c *call, args []*ir.Value) (*ir.Value, error) {
	x, p := args[0], c.op.float("probability")
	switch {
	case !(p >= 0 && p <= 1):
		return nil, c.failf("the probability to drop is %v; it must be in 0..1", p)
	case p == 0 || !c.op.bool("isTraining"):
		return x, nil
	case len(x.Shape) == 0:
		return nil, c.failf("a scalar can't be dropped: its mask would differ between ranks")
	}
	mask := c.g.Const(0, x.Shape...)
	if keep := 1 - p; keep > 0 {
		mask = c.g.Scale(c.g.Map(ir.Lt, c.g.Rand(c.stream(0), x.Shape...), c.g.Const(keep)), 1/keep)
	}
	c.masks[reflect.ValueOf(c.n.Op()).Pointer()] = mask
	return c.g.Times(x, mask), nil
}

// dropoutGrad is x, y, grad -> grad * mask, with the mask that made y.
func dropoutGrad(c *call, args []*ir.Value) (*ir.Value, error) {
	if mask := c.masks[c.op.field("dropoutOp").Pointer()]; mask != nil {
		return c.g.Times(args[2], mask), nil
	}
	return args[2], nil
}
