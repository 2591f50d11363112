package lower

import (
	"math"

	"github.com/tandem-train/tandem/internal/ir"
)

// binaryFns are the functions of elemBinOp, in the order of Gorgonia's ʘBinaryOperatorType.
var binaryFns = [...]ir.Fn{ir.Add, ir.Sub, ir.Mul, ir.Div, ir.Pow, ir.Lt, ir.Gt, ir.Le, ir.Ge, ir.Eq, ir.Ne}

// binary writes a op b elementwise; one of them may be a scalar. Comparisons give 1 and 0 whether or not Gorgonia would give
// booleans.
func binary(c *call, args []*ir.Value) (*ir.Value, error) {
	fn := binaryFns[c.op.in("ʘBinaryOperator").byte("ʘBinaryOperatorType")]
	return c.g.Map(fn, c.fit(args[0]), c.fit(args[1])), nil
}

// fit gives v the node's shape where that takes no more than dropping or adding dimensions of extent 1, and makes a scalar of a
// single element otherwise.
func (c *call) fit(v *ir.Value) *ir.Value {
	switch {
	case sameButOnes(v.Shape, c.shape):
		return c.g.Reshape(v, c.shape...)
	case v.Shape.Size() == 1:
		return c.g.Reshape(v)
	}
	return v
}

func between(c *call, args []*ir.Value) (*ir.Value, error) {
	fn := ir.Min
	if kindOf(c.n.Op()) == "maxBetween" {
		fn = ir.Max
	}
	return c.g.Map(fn, c.fit(args[0]), c.fit(args[1])), nil
}

// unaryFns are the functions of elemUnaryOp that are one of ir's, by the name that Gorgonia prints.
var unaryFns = map[string]ir.Fn{
	"abs": ir.Abs, "sign": ir.Sign, "ceil": ir.Ceil, "floor": ir.Floor,
	"sin": ir.Sin, "cos": ir.Cos, "exp": ir.Exp, "ln": ir.Log, "neg": ir.Neg, "square": ir.Square, "sqrt": ir.Sqrt,
	"inv": ir.Recip, "invSqrt": ir.Rsqrt, "tanh": ir.Tanh, "sigmoid": ir.Sigmoid,
	"log1p": ir.Log1p, "expm1": ir.Expm1, "softplus": ir.Softplus,
}

func unary(c *call, args []*ir.Value) (*ir.Value, error) {
	x, name := args[0], c.n.Op().String()
	if fn, ok := unaryFns[name]; ok {
		return c.g.Map(fn, x), nil
	}
	switch name {
	case "log2":
		return c.g.Scale(c.g.Map(ir.Log, x), 1/math.Ln2), nil
	case "cube":
		return c.g.Times(c.g.Map(ir.Square, x), x), nil
	}
	return nil, unsupported(c.n, "elemUnaryOp")
}

// convertType is ConvType from integers to float32, the only way that programs have.
func convertType(c *call, args []*ir.Value) (*ir.Value, error) {
	if args[0].DType != ir.I32 {
		return nil, c.failf("only integers convert, to float32")
	}
	return c.g.Map(ir.Float, args[0]), nil
}
