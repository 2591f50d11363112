package kernel

import "math"

// The scalar functions of the plain Go level, and those that every level shares.

func f32(f func(float64) float64) func(float32) float32 {
	return func(x float32) float32 { return float32(f(float64(x))) }
}

func log1p(x float32) float32 { return float32(math.Log1p(float64(x))) }
func sin(x float32) float32   { return float32(math.Sin(float64(x))) }
func cos(x float32) float32   { return float32(math.Cos(float64(x))) }

// softplus is log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), which does not overflow.
func softplus(x float32) float32 {
	y := float64(x)
	return float32(max(y, 0) + math.Log1p(math.Exp(-math.Abs(y))))
}

// roundBF16 rounds the upper 16 bits of a float32, in which a carry goes on into the exponent.
func roundBF16(x float32) float32 {
	if x != x {
		return x
	}
	b := math.Float32bits(x)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// roundF16 drops 13 bits, likewise; the least exponent's numbers lie 2^-24 apart, as the float32 at 1/2 do.
func roundF16(x float32) float32 {
	b := math.Float32bits(x)
	sign := b & (1 << 31)
	size := math.Float32frombits(b &^ sign)
	switch {
	case size != size:
		return x
	case size < 0x1p-14:
		size = (size + 0.5) - 0.5
	default:
		b &^= sign
		if size = math.Float32frombits((b + 0xfff + b>>13&1) &^ 0x1fff); size > 65504 {
			size = float32(math.Inf(1))
		}
	}
	return math.Float32frombits(math.Float32bits(size) | sign)
}

func pow(a, b float32) float32 { return float32(math.Pow(float64(a), float64(b))) }

func sign(x float32) float32 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x
}

func test(ok bool) float32 {
	if ok {
		return 1
	}
	return 0
}

func where(c, a, b float32) float32 {
	if c != 0 {
		return a
	}
	return b
}

// goUnary and goBinary make kernels of scalar functions.
func goUnary(f func(float32) float32) Unary {
	return func(dst, a []float32) {
		a = a[:len(dst)]
		for i, x := range a {
			dst[i] = f(x)
		}
	}
}

func goBinary(f func(a, b float32) float32) Binary {
	return Binary{
		VV: func(dst, a, b []float32) {
			a, b = a[:len(dst)], b[:len(dst)]
			for i, x := range a {
				dst[i] = f(x, b[i])
			}
		},
		VS: func(dst, a []float32, b float32) {
			for i, x := range a[:len(dst)] {
				dst[i] = f(x, b)
			}
		},
		SV: func(dst, b []float32, a float32) {
			for i, x := range b[:len(dst)] {
				dst[i] = f(a, x)
			}
		},
	}
}

var goKernels = makeGoKernels()

func makeGoKernels() vectorKernels {
	add := goBinary(func(a, b float32) float32 { return a + b })
	sub := goBinary(func(a, b float32) float32 { return a - b })
	mul := goBinary(func(a, b float32) float32 { return a * b })
	div := goBinary(func(a, b float32) float32 { return a / b })
	maxi := goBinary(func(a, b float32) float32 { return max(a, b) })
	mini := goBinary(func(a, b float32) float32 { return min(a, b) })
	gt := goBinary(func(a, b float32) float32 { return test(a > b) })
	ge := goBinary(func(a, b float32) float32 { return test(a >= b) })
	lt := goBinary(func(a, b float32) float32 { return test(a < b) })
	le := goBinary(func(a, b float32) float32 { return test(a <= b) })
	eq := goBinary(func(a, b float32) float32 { return test(a == b) })
	ne := goBinary(func(a, b float32) float32 { return test(a != b) })
	return vectorKernels{
		addVV: add.VV, subVV: sub.VV, mulVV: mul.VV, divVV: div.VV, maxVV: maxi.VV, minVV: mini.VV,
		gtVV: gt.VV, geVV: ge.VV, ltVV: lt.VV, leVV: le.VV, eqVV: eq.VV, neVV: ne.VV,
		addVS: add.VS, subVS: sub.VS, subSV: sub.SV, mulVS: mul.VS, divVS: div.VS, divSV: div.SV, maxVS: maxi.VS, minVS: mini.VS,
		gtVS: gt.VS, geVS: ge.VS, ltVS: lt.VS, leVS: le.VS, eqVS: eq.VS, neVS: ne.VS,

		fmaVVV: func(dst, a, b, c []float32) {
			for i := range dst {
				dst[i] = a[i]*b[i] + c[i]
			}
		},
		fmaVSV: func(dst, a, c []float32, b float32) {
			for i := range dst {
				dst[i] = a[i]*b + c[i]
			}
		},
		fmaVVS: func(dst, a, b []float32, c float32) {
			for i := range dst {
				dst[i] = a[i]*b[i] + c
			}
		},
		fmaVSS: func(dst, a []float32, b, c float32) {
			for i := range dst {
				dst[i] = a[i]*b + c
			}
		},

		whereVV: func(dst, c, a, b []float32) {
			for i := range dst {
				dst[i] = where(c[i], a[i], b[i])
			}
		},
		whereVS: func(dst, c, a []float32, b float32) {
			for i := range dst {
				dst[i] = where(c[i], a[i], b)
			}
		},
		whereSV: func(dst, c, b []float32, a float32) {
			for i := range dst {
				dst[i] = where(c[i], a, b[i])
			}
		},
		whereSS: func(dst, c []float32, a, b float32) {
			for i := range dst {
				dst[i] = where(c[i], a, b)
			}
		},

		fill: func(dst []float32, s float32) {
			for i := range dst {
				dst[i] = s
			}
		},

		neg:     goUnary(func(x float32) float32 { return -x }),
		abs:     goUnary(func(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }),
		sign:    goUnary(sign),
		sqrt:    goUnary(f32(math.Sqrt)),
		rsqrt:   goUnary(func(x float32) float32 { return float32(1 / math.Sqrt(float64(x))) }),
		recip:   goUnary(func(x float32) float32 { return 1 / x }),
		square:  goUnary(func(x float32) float32 { return x * x }),
		relu:    goUnary(func(x float32) float32 { return max(x, 0) }),
		floor:   goUnary(f32(math.Floor)),
		ceil:    goUnary(f32(math.Ceil)),
		exp:     goUnary(f32(math.Exp)),
		expm1:   goUnary(f32(math.Expm1)),
		log:     goUnary(f32(math.Log)),
		tanh:    goUnary(f32(math.Tanh)),
		sigmoid: goUnary(func(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }),
		erf:     goUnary(f32(math.Erf)),

		sum:        goSum(func(acc, x float32) float32 { return acc + x }),
		sumSquares: goSum(func(acc, x float32) float32 { return acc + x*x }),
		dot: func(a, b []float32) float32 {
			var acc [8]float32
			for i, x := range a {
				acc[i&7] += x * b[i]
			}
			return pairwise(&acc)
		},
		maxOf: func(a []float32) float32 {
			m := float32(math.Inf(-1))
			for _, x := range a {
				m = max(m, x)
			}
			return m
		},
		minOf: func(a []float32) float32 {
			m := float32(math.Inf(1))
			for _, x := range a {
				m = min(m, x)
			}
			return m
		},
	}
}

// goSum folds into eight running sums, for accuracy.
func goSum(step func(acc, x float32) float32) func([]float32) float32 {
	return func(a []float32) float32 {
		var acc [8]float32
		for i, x := range a {
			acc[i&7] = step(acc[i&7], x)
		}
		return pairwise(&acc)
	}
}

func pairwise(x *[8]float32) float32 {
	return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
}
