package op

import (
	"math"

	"gorgonia.org/gorgonia"

	"github.com/tandem-train/tandem/internal/ir"
)

// ReLU is max(x, 0).
func ReLU(x *gorgonia.Node) (*gorgonia.Node, error) { return apply(activation{relu}, x) }

// Sigmoid is 1/(1+exp(-x)).
func Sigmoid(x *gorgonia.Node) (*gorgonia.Node, error) { return apply(activation{sigmoid}, x) }

// Tanh is the hyperbolic tangent.
func Tanh(x *gorgonia.Node) (*gorgonia.Node, error) { return apply(activation{tanh}, x) }

// SiLU is x sigmoid(x).
func SiLU(x *gorgonia.Node) (*gorgonia.Node, error) { return apply(activation{silu}, x) }

// GELU is x Φ(x), Φ being the normal distribution function.
func GELU(x *gorgonia.Node) (*gorgonia.Node, error) { return apply(activation{gelu}, x) }

// GELUTanh is GELU's approximation x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³))).
func GELUTanh(x *gorgonia.Node) (*gorgonia.Node, error) { return apply(activation{geluTanh}, x) }

// curve is a scalar function with its slope.
type curve string

const (
	relu     curve = "relu"
	sigmoid  curve = "sigmoid"
	tanh     curve = "tanh"
	silu     curve = "silu"
	gelu     curve = "gelu"
	geluTanh curve = "gelu_tanh"
)

type activation struct{ Fn curve }

func (k activation) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	x := a[0]
	switch k.Fn {
	case relu:
		return g.Map(ir.Relu, x)
	case sigmoid:
		return g.Map(ir.Sigmoid, x)
	case tanh:
		return g.Map(ir.Tanh, x)
	case silu:
		return g.Times(x, g.Map(ir.Sigmoid, x))
	case gelu:
		return g.Times(x, normalCDF(g, x))
	case geluTanh:
		_, t := geluInner(g, x)
		return g.Times(g.Scale(x, 0.5), g.Shift(t, 1))
	}
	panic("op: no activation " + string(k.Fn))
}

// normalCDF is Φ(x) = (1 + erf(x/√2)) / 2.
func normalCDF(g *ir.Graph, x *ir.Value) *ir.Value {
	return g.Scale(g.Shift(g.Map(ir.Erf, g.Scale(x, 1/math.Sqrt2)), 1), 0.5)
}

var (
	geluA = math.Sqrt(2 / math.Pi)
	geluB = 0.044715
)

// geluInner is x² and tanh(a (x + b x³)).
func geluInner(g *ir.Graph, x *ir.Value) (x2, t *ir.Value) {
	x2 = g.Map(ir.Square, x)
	return x2, g.Map(ir.Tanh, g.Scale(g.Plus(x, g.Scale(g.Times(x2, x), geluB)), geluA))
}

func (activation) wrt(int) bool { return true }

// diff takes the slope from the result where that is enough: the argument need not be kept then.
func (k activation) diff(a gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	at := a[0]
	switch k.Fn {
	case relu, sigmoid, tanh:
		at = y
	}
	dx, err := apply(activationGrad(k), at, dy)
	return gorgonia.Nodes{dx}, err
}

// activationGrad is dy times the slope; of relu, sigmoid and tanh from the result, of the others from the argument.
type activationGrad struct{ Fn curve }

func (k activationGrad) Lower(g *ir.Graph, a []*ir.Value) *ir.Value {
	at, dy := a[0], a[1]
	oneMinus := func(v *ir.Value) *ir.Value { return g.Minus(g.Const(1), v) }
	var slope *ir.Value
	switch k.Fn {
	case relu:
		return g.Select(g.Map(ir.Le, at, g.Const(0)), g.Const(0), dy)
	case sigmoid:
		slope = g.Times(at, oneMinus(at))
	case tanh:
		slope = oneMinus(g.Map(ir.Square, at))
	case silu: // s (1 + x (1-s))
		s := g.Map(ir.Sigmoid, at)
		slope = g.Times(s, g.Shift(g.Times(at, oneMinus(s)), 1))
	case gelu: // Φ(x) + x φ(x)
		density := g.Scale(g.Map(ir.Exp, g.Scale(g.Map(ir.Square, at), -0.5)), 1/math.Sqrt(2*math.Pi))
		slope = g.Plus(normalCDF(g, at), g.Times(at, density))
	case geluTanh: // (1+t)/2 + x/2 (1-t²) a (1 + 3b x²)
		x2, t := geluInner(g, at)
		inner := g.Scale(g.Shift(g.Scale(x2, 3*geluB), 1), geluA/2)
		slope = g.Plus(g.Scale(g.Shift(t, 1), 0.5), g.Times(g.Times(at, oneMinus(g.Map(ir.Square, t))), inner))
	default:
		panic("op: no activation " + string(k.Fn))
	}
	return g.Times(slope, dy)
}
