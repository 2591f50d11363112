package ir

import "math"

// Fn is a scalar function, applied to every element by [Map]. Comparisons give 1 or 0.
type Fn uint8

// The scalar functions. Their definition is [Fn.Eval].
const (
	Neg Fn = iota
	Abs
	Sign
	Sqrt
	Rsqrt
	Recip
	Square
	Exp
	Expm1
	Log
	Log1p
	Sin
	Cos
	Tanh
	Sigmoid
	Softplus // log(1+exp(x)), without overflow
	Erf
	Relu // max(x, 0); NaN stays NaN
	Floor
	Ceil
	Float // i32 to f32

	RoundBF16 // to the nearest bfloat16, ties to even; the result is a float32 all the same
	RoundF16  // to the nearest float16, likewise; from 65520 on that is infinity

	Add
	Sub
	Mul
	Div
	Max // NaN if either is
	Min // NaN if either is
	Pow
	Gt
	Ge
	Lt
	Le
	Eq
	Ne

	Where // Where(c, a, b): a where c != 0, else b

	numFn
)

type fnInfo struct {
	name  string
	arity int
	eval  func(a, b, c float64) float64
}

func unary(f func(float64) float64) func(a, b, c float64) float64 {
	return func(a, _, _ float64) float64 { return f(a) }
}

func compare(f func(a, b float64) bool) func(a, b, c float64) float64 {
	return func(a, b, _ float64) float64 {
		if f(a, b) {
			return 1
		}
		return 0
	}
}

var fns = [numFn]fnInfo{
	Neg:      {"neg", 1, unary(func(x float64) float64 { return -x })},
	Abs:      {"abs", 1, unary(math.Abs)},
	Sign:     {"sign", 1, unary(sign)},
	Sqrt:     {"sqrt", 1, unary(math.Sqrt)},
	Rsqrt:    {"rsqrt", 1, unary(func(x float64) float64 { return 1 / math.Sqrt(x) })},
	Recip:    {"recip", 1, unary(func(x float64) float64 { return 1 / x })},
	Square:   {"square", 1, unary(func(x float64) float64 { return x * x })},
	Exp:      {"exp", 1, unary(math.Exp)},
	Expm1:    {"expm1", 1, unary(math.Expm1)},
	Log:      {"log", 1, unary(math.Log)},
	Log1p:    {"log1p", 1, unary(math.Log1p)},
	Sin:      {"sin", 1, unary(math.Sin)},
	Cos:      {"cos", 1, unary(math.Cos)},
	Tanh:     {"tanh", 1, unary(math.Tanh)},
	Sigmoid:  {"sigmoid", 1, unary(func(x float64) float64 { return 1 / (1 + math.Exp(-x)) })},
	Softplus: {"softplus", 1, unary(func(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) })},
	Erf:      {"erf", 1, unary(math.Erf)},
	Relu:     {"relu", 1, unary(func(x float64) float64 { return max(x, 0) })},
	Floor:    {"floor", 1, unary(math.Floor)},
	Ceil:     {"ceil", 1, unary(math.Ceil)},
	Float:    {"float", 1, unary(func(x float64) float64 { return x })},

	RoundBF16: {"round_bf16", 1, unary(func(x float64) float64 { return round(x, 8, -126, 0x1.fep127) })},
	RoundF16:  {"round_f16", 1, unary(func(x float64) float64 { return round(x, 11, -14, 0x1.ffcp15) })},

	Add: {"add", 2, func(a, b, _ float64) float64 { return a + b }},
	Sub: {"sub", 2, func(a, b, _ float64) float64 { return a - b }},
	Mul: {"mul", 2, func(a, b, _ float64) float64 { return a * b }},
	Div: {"div", 2, func(a, b, _ float64) float64 { return a / b }},
	Max: {"max", 2, func(a, b, _ float64) float64 { return max(a, b) }},
	Min: {"min", 2, func(a, b, _ float64) float64 { return min(a, b) }},
	Pow: {"pow", 2, func(a, b, _ float64) float64 { return math.Pow(a, b) }},
	Gt:  {"gt", 2, compare(func(a, b float64) bool { return a > b })},
	Ge:  {"ge", 2, compare(func(a, b float64) bool { return a >= b })},
	Lt:  {"lt", 2, compare(func(a, b float64) bool { return a < b })},
	Le:  {"le", 2, compare(func(a, b float64) bool { return a <= b })},
	Eq:  {"eq", 2, compare(func(a, b float64) bool { return a == b })},
	Ne:  {"ne", 2, compare(func(a, b float64) bool { return a != b })},

	Where: {"where", 3, func(c, a, b float64) float64 {
		if c != 0 {
			return a
		}
		return b
	}},
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x // 0 and NaN
}

// round gives the nearest number with so many bits of mantissa, fewer below 2^least, and infinity where that is past most.
func round(x float64, bits, least int, most float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	_, e := math.Frexp(x) // |x| is in [2^(e-1), 2^e)
	unit := max(e-1, least) - (bits - 1)
	y := math.Ldexp(math.RoundToEven(math.Ldexp(x, -unit)), unit)
	if math.Abs(y) > most {
		return math.Inf(int(math.Copysign(1, x)))
	}
	return y
}

// String returns the function's name.
func (f Fn) String() string { return fns[f].name }

// Arity returns the number of arguments, 1 to 3.
func (f Fn) Arity() int { return fns[f].arity }

// Eval applies the function in float64; arguments past the arity are ignored.
func (f Fn) Eval(a, b, c float64) float64 { return fns[f].eval(a, b, c) }
