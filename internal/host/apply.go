package host

import (
	"fmt"

	"github.com/tandem-train/tandem/internal/host/kernel"
	"github.com/tandem-train/tandem/internal/ir"
)

// unary is the kernel of a function of one argument, or nil.
func unary(v *kernel.Vector, f ir.Fn) kernel.Unary {
	switch f {
	case ir.Neg:
		return v.Neg
	case ir.Abs:
		return v.Abs
	case ir.Sign:
		return v.Sign
	case ir.Sqrt:
		return v.Sqrt
	case ir.Rsqrt:
		return v.Rsqrt
	case ir.Recip:
		return v.Recip
	case ir.Square:
		return v.Square
	case ir.Exp:
		return v.Exp
	case ir.Expm1:
		return v.Expm1
	case ir.Log:
		return v.Log
	case ir.Log1p:
		return v.Log1p
	case ir.Sin:
		return v.Sin
	case ir.Cos:
		return v.Cos
	case ir.Tanh:
		return v.Tanh
	case ir.Sigmoid:
		return v.Sigmoid
	case ir.Softplus:
		return v.Softplus
	case ir.RoundBF16:
		return v.RoundBF16
	case ir.RoundF16:
		return v.RoundF16
	case ir.Erf:
		return v.Erf
	case ir.Relu:
		return v.Relu
	case ir.Floor:
		return v.Floor
	case ir.Ceil:
		return v.Ceil
	case ir.Float:
		return func(dst, a []float32) { copy(dst, a) } // the load has converted it
	}
	return nil
}

// binary is the kernels of a function of two arguments; its VV is nil if f is no such function.
func binary(v *kernel.Vector, f ir.Fn) kernel.Binary {
	switch f {
	case ir.Add:
		return v.Add
	case ir.Sub:
		return v.Sub
	case ir.Mul:
		return v.Mul
	case ir.Div:
		return v.Div
	case ir.Max:
		return v.Max
	case ir.Min:
		return v.Min
	case ir.Pow:
		return v.Pow
	case ir.Gt:
		return v.Gt
	case ir.Ge:
		return v.Ge
	case ir.Lt:
		return v.Lt
	case ir.Le:
		return v.Le
	case ir.Eq:
		return v.Eq
	case ir.Ne:
		return v.Ne
	}
	return kernel.Binary{}
}

// apply completes o, which does instruction in: its kernel, and its arguments in the kernel's order, vectors first.
func (b *loopBuilder) apply(in ir.Instr, o *op) error {
	args := b.args(in)
	switch {
	case b.product(in) >= 0:
		b.applyFma(args, o)
		return nil
	case in.Fn == ir.Where:
		b.applyWhere(args, o)
		return nil
	case len(args) == 1:
		o.code, o.a, o.v = opV, args[0], unary(b.kernels, in.Fn)
		if o.v == nil {
			return fmt.Errorf("no kernel for %v", in.Fn)
		}
		return nil
	}
	f := binary(b.kernels, in.Fn)
	if f.VV == nil {
		return fmt.Errorf("no kernel for %v", in.Fn)
	}
	x, y := args[0], args[1]
	switch vx, vy := b.isVector(x), b.isVector(y); {
	case vx == vy:
		o.code, o.vv = opVV, f.VV
	case vx:
		o.code, o.vs = opVS, f.VS
	default:
		o.code, o.vs = opVS, f.SV
		x, y = y, x
	}
	o.a, o.b = x, y
	return nil
}

func (b *loopBuilder) isVector(r int) bool { return b.level[r] >= periodic }

// applyFma is args[0]*args[1] + args[2], of which one factor at least is a vector.
func (b *loopBuilder) applyFma(args []int, o *op) {
	x, y, z := args[0], args[1], args[2]
	if !b.isVector(x) {
		x, y = y, x
	}
	o.a, o.b, o.c = x, y, z
	f := &b.kernels.Fma
	switch vy, vz := b.isVector(y), b.isVector(z); {
	case vy && vz:
		o.code, o.vvv = opVVV, f.VVV
	case vy:
		o.code, o.vvs = opVVS, f.VVS
	case vz:
		o.code, o.vvs = opVVS, f.VSV
		o.b, o.c = z, y
	default:
		o.code, o.vss = opVSS, f.VSS
	}
}

// applyWhere is args[1] where args[0] is not 0, else args[2].
func (b *loopBuilder) applyWhere(args []int, o *op) {
	c, x, y := args[0], args[1], args[2]
	f := &b.kernels.Where
	if o.scalar {
		o.code, o.a, o.b, o.c, o.vvv = opVVV, c, x, y, f.VV
		return
	}
	if !b.isVector(c) { // rare: there is no form for it
		c = b.spread(c, max(b.level[x], b.level[y]))
	}
	o.a, o.b, o.c = c, x, y
	switch vx, vy := b.isVector(x), b.isVector(y); {
	case vx && vy:
		o.code, o.vvv = opVVV, f.VV
	case vx:
		o.code, o.vvs = opVVS, f.VS
	case vy:
		o.code, o.vvs = opVVS, f.SV
		o.b, o.c = y, x
	default:
		o.code, o.vss = opVSS, f.SS
	}
}
