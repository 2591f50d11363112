package kernel

// Vector is the elementwise kernels and reductions of one level. They work on contiguous slices, handle any length, and
// allocate nothing. dst may be the same slice as an operand; a partial overlap is not allowed. Operands must be at least
// as long as dst; only len(dst) elements are used.
//
// Names of forms: V is a vector, S a scalar, in the order of the operands. Comparisons give 1 or 0; with NaN all are 0
// but Ne. Max and Min are NaN if either operand is; Relu keeps NaN.
//
// Accuracy, as the largest relative error against float64 over the range of float32 (tests hold it): Exp, Expm1,
// Log, Sigmoid, Erf and Tanh 4e-7; Sqrt, Rsqrt, Recip, Div and the rest at most 1e-7 per operation. Sigmoid is 0 where it would be
// below 3e-39. Log1p, Softplus, Sin, Cos and Pow are computed in float64, element by element: exact, and slow.
type Vector struct {
	Add, Sub, Mul, Div, Max, Min, Gt, Ge, Lt, Le, Eq, Ne, Pow Binary

	// Fma is a*b + c.
	Fma struct {
		VVV func(dst, a, b, c []float32)
		VSV func(dst, a, c []float32, b float32)
		VVS func(dst, a, b []float32, c float32)
		VSS func(dst, a []float32, b, c float32)
	}
	// Where is a where c != 0 (NaN is not 0), else b. The form names a and b.
	Where struct {
		VV func(dst, c, a, b []float32)
		VS func(dst, c, a []float32, b float32)
		SV func(dst, c, b []float32, a float32)
		SS func(dst, c []float32, a, b float32)
	}
	Neg, Abs, Sign, Sqrt, Rsqrt, Recip, Square, Relu, Floor, Ceil  Unary
	Exp, Expm1, Log, Log1p, Sin, Cos, Tanh, Sigmoid, Softplus, Erf Unary
	RoundBF16, RoundF16                                            Unary // to the nearest number of that type, ties to even

	Fill func(dst []float32, s float32)

	raw *vectorKernels
}

// Unary is a kernel dst = f(a).
type Unary = func(dst, a []float32)

// Binary is the forms of a kernel of two operands: a op b.
type Binary struct {
	VV func(dst, a, b []float32)
	VS func(dst, a []float32, b float32)
	SV func(dst, b []float32, a float32)
}

// Vectors returns the kernels of a level.
func Vectors(l Level) *Vector { return levelKernels(l).vector }

// reduceBlock is how many elements a reduction folds in float32 before it goes on in float64.
const reduceBlock = 2048

// Sum returns the sum of a: blocks of 2048 in float32, their sums in float64.
func (v *Vector) Sum(a []float32) float64 { return blocked(v.raw.sum, a) }

// SumSquares returns the sum of the squares of a, likewise.
func (v *Vector) SumSquares(a []float32) float64 { return blocked(v.raw.sumSquares, a) }

// Dot returns the sum of a[i]*b[i], likewise. b is at least as long as a.
func (v *Vector) Dot(a, b []float32) float64 {
	b = b[:len(a)]
	sum := 0.0
	for len(a) > 0 {
		n := min(len(a), reduceBlock)
		sum += float64(v.raw.dot(a[:n], b[:n]))
		a, b = a[n:], b[n:]
	}
	return sum
}

// MaxOf returns the largest of a: NaN if one is NaN, -Inf if a is empty.
func (v *Vector) MaxOf(a []float32) float32 { return v.raw.maxOf(a) }

// MinOf returns the smallest of a: NaN if one is NaN, +Inf if a is empty.
func (v *Vector) MinOf(a []float32) float32 { return v.raw.minOf(a) }

func blocked(f func([]float32) float32, a []float32) float64 {
	sum := 0.0
	for len(a) > 0 {
		n := min(len(a), reduceBlock)
		sum += float64(f(a[:n]))
		a = a[n:]
	}
	return sum
}

// vectorKernels is what a level writes itself; the assembly trusts the lengths it is given. [newVector] adds the checks,
// and the forms that are others in disguise.
type vectorKernels struct {
	addVV, subVV, mulVV, divVV, maxVV, minVV func(dst, a, b []float32)
	gtVV, geVV, ltVV, leVV, eqVV, neVV       func(dst, a, b []float32)

	addVS, subVS, subSV, mulVS, divVS, divSV, maxVS, minVS func(dst, a []float32, s float32)
	gtVS, geVS, ltVS, leVS, eqVS, neVS                     func(dst, a []float32, s float32)

	fmaVVV func(dst, a, b, c []float32)
	fmaVSV func(dst, a, c []float32, b float32)
	fmaVVS func(dst, a, b []float32, c float32)
	fmaVSS func(dst, a []float32, b, c float32)

	whereVV func(dst, c, a, b []float32)
	whereVS func(dst, c, a []float32, b float32)
	whereSV func(dst, c, b []float32, a float32)
	whereSS func(dst, c []float32, a, b float32)

	fill func(dst []float32, s float32)

	neg, abs, sign, sqrt, rsqrt, recip, square, relu, floor, ceil Unary
	exp, expm1, log, tanh, sigmoid, erf                           Unary

	sum, sumSquares, maxOf, minOf func(a []float32) float32
	dot                           func(a, b []float32) float32
}

func newVector(k *vectorKernels) *Vector {
	v := &Vector{
		Add: commutative(k.addVV, k.addVS),
		Sub: Binary{checkVV(k.subVV), checkV(k.subVS), checkV(k.subSV)},
		Mul: commutative(k.mulVV, k.mulVS),
		Div: Binary{checkVV(k.divVV), checkV(k.divVS), checkV(k.divSV)},
		Max: commutative(k.maxVV, k.maxVS),
		Min: commutative(k.minVV, k.minVS),
		Gt:  Binary{checkVV(k.gtVV), checkV(k.gtVS), checkV(k.ltVS)},
		Ge:  Binary{checkVV(k.geVV), checkV(k.geVS), checkV(k.leVS)},
		Lt:  Binary{checkVV(k.ltVV), checkV(k.ltVS), checkV(k.gtVS)},
		Le:  Binary{checkVV(k.leVV), checkV(k.leVS), checkV(k.geVS)},
		Eq:  commutative(k.eqVV, k.eqVS),
		Ne:  commutative(k.neVV, k.neVS),
		Pow: goBinary(pow),

		Neg: check(k.neg), Abs: check(k.abs), Sign: check(k.sign), Sqrt: check(k.sqrt), Rsqrt: check(k.rsqrt),
		Recip: check(k.recip), Square: check(k.square), Relu: check(k.relu), Floor: check(k.floor), Ceil: check(k.ceil),
		Exp: check(k.exp), Expm1: check(k.expm1), Log: check(k.log), Tanh: check(k.tanh), Sigmoid: check(k.sigmoid), Erf: check(k.erf),
		Log1p: goUnary(log1p), Sin: goUnary(sin), Cos: goUnary(cos), Softplus: goUnary(softplus),
		RoundBF16: goUnary(roundBF16), RoundF16: goUnary(roundF16),

		Fill: k.fill,
		raw:  k,
	}
	v.Fma.VVV = func(dst, a, b, c []float32) { n := len(dst); k.fmaVVV(dst, a[:n], b[:n], c[:n]) }
	v.Fma.VSV = func(dst, a, c []float32, b float32) { n := len(dst); k.fmaVSV(dst, a[:n], c[:n], b) }
	v.Fma.VVS = func(dst, a, b []float32, c float32) { n := len(dst); k.fmaVVS(dst, a[:n], b[:n], c) }
	v.Fma.VSS = func(dst, a []float32, b, c float32) { k.fmaVSS(dst, a[:len(dst)], b, c) }
	v.Where.VV = func(dst, c, a, b []float32) { n := len(dst); k.whereVV(dst, c[:n], a[:n], b[:n]) }
	v.Where.VS = func(dst, c, a []float32, b float32) { n := len(dst); k.whereVS(dst, c[:n], a[:n], b) }
	v.Where.SV = func(dst, c, b []float32, a float32) { n := len(dst); k.whereSV(dst, c[:n], b[:n], a) }
	v.Where.SS = func(dst, c []float32, a, b float32) { k.whereSS(dst, c[:len(dst)], a, b) }
	return v
}

func commutative(vv func(dst, a, b []float32), vs func(dst, a []float32, s float32)) Binary {
	return Binary{checkVV(vv), checkV(vs), checkV(vs)}
}

func check(f Unary) Unary { return func(dst, a []float32) { f(dst, a[:len(dst)]) } }

func checkV(f func(dst, a []float32, s float32)) func(dst, a []float32, s float32) {
	return func(dst, a []float32, s float32) { f(dst, a[:len(dst)], s) }
}

func checkVV(f func(dst, a, b []float32)) func(dst, a, b []float32) {
	return func(dst, a, b []float32) { f(dst, a[:len(dst)], b[:len(dst)]) }
}
