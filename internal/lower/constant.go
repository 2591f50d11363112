package lower

import (
	"fmt"
	"math"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/tandem-train/tandem/internal/ir"
)

// constant writes the value that the op carries: integers as i32, all else as f32.
func constant(c *call, _ []*ir.Value) (*ir.Value, error) {
	v := c.n.Op().(interface{ Value() gorgonia.Value }).Value()
	if d, ok := v.(*tensor.Dense); ok && d.RequiresIterator() {
		v = d.Materialize().(gorgonia.Value) // a view: Data would give what lies under it
	}
	switch x := v.Data().(type) {
	case float32:
		return c.g.Const(float64(x), c.shape...), nil
	case []float32:
		return floats(c, x), nil
	case bool:
		return c.g.Const(truth(x), c.shape...), nil
	case []bool:
		f := make([]float32, len(x))
		for i, b := range x {
			f[i] = float32(truth(b))
		}
		return floats(c, f), nil
	case int:
		return integers(c, []int{x})
	case []int:
		return integers(c, x)
	case int32:
		return integers(c, []int32{x})
	case []int32:
		return integers(c, x)
	case int64:
		return integers(c, []int64{x})
	case []int64:
		return integers(c, x)
	}
	return nil, c.failf("a constant of %s can't be held: use float32 or int", v.Dtype())
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// floats writes x as one number where all elements are the same, which later passes see through.
func floats(c *call, x []float32) *ir.Value {
	for _, e := range x {
		if e != x[0] {
			return c.g.Data(append([]float32(nil), x...), c.shape...)
		}
	}
	if len(x) == 0 {
		return c.g.Const(0, c.shape...)
	}
	return c.g.Const(float64(x[0]), c.shape...)
}

func integers[T int | int32 | int64](c *call, x []T) (*ir.Value, error) {
	out := make([]int32, len(x))
	for i, e := range x {
		if int64(e) < math.MinInt32 || int64(e) > math.MaxInt32 {
			return nil, fmt.Errorf("constant %d at index %d does not fit 32 bits", e, i)
		}
		out[i] = int32(e)
	}
	return c.g.Add(ir.Data{Content: &ir.Content{Ints: out}}, c.shape), nil
}

func identity(_ *call, args []*ir.Value) (*ir.Value, error) { return args[0], nil }
