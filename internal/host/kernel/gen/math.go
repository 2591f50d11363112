package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// The coefficients below are minimax fits made for these intervals (Remez exchange in float64), good to a few 1e-8
// relative before rounding to float32.

const (
	ln2Hi = 0.693359375 // 9 bits, so that n*ln2Hi is exact
	ln2Lo = math.Ln2 - ln2Hi
)

// expm1Reduced splits x = n ln2 + r with |r| <= ln2/2, and returns exp(r)-1 and n.
func (s isa) expm1Reduced(x vec) (q, n vec) {
	n = s.round(0, s.mul(x, s.f(math.Log2E)))
	r := s.v()
	VMOVAPS(x, r)
	VFNMADD231PS(s.f(ln2Hi), n, r)
	VFNMADD231PS(s.f(ln2Lo), n, r)
	p := s.poly(r, 0.500000006, 0.166665428, 0.0416662814, 0.0083666106, 0.0013946497)
	return s.madd(p, s.mul(r, r), r), n
}

// toInt converts a vector of whole floats.
func (s isa) toInt(n vec) vec {
	r := s.v()
	VCVTPS2DQ(n, r)
	return r
}

// pow2 is 2^(n+add) for integers n with 1 <= n+add+127 <= 254.
func (s isa) pow2(n vec, add int32) vec {
	r := s.v()
	VPADDD(s.bits(uint32(127+add)), n, r)
	VPSLLD(Imm(23), r, r)
	return r
}

// exp is e^x: +Inf above 88.73, 0 below -104, with gradual underflow between. At most 1.5 ulp from the true value.
func (s isa) exp(x vec) vec {
	x = s.maxWith(s.c(-104), s.minWith(s.c(89), x))
	q, n := s.expm1Reduced(x)
	// Two factors, because 2^n may lie outside the range of a float while the result does not.
	i := s.toInt(n)
	half := s.v()
	VPSRAD(Imm(1), i, half)
	rest := s.v()
	VPSUBD(half, i, rest)
	return s.mul(s.mul(s.add(q, s.f(1)), s.pow2(half, 0)), s.pow2(rest, 0))
}

// expm1Clamped is e^x - 1 for -18 <= x <= 89: with h = 2^(n-1), it is 2 (h (e^r-1) + (h - 1/2)).
func (s isa) expm1Clamped(x vec) vec {
	q, n := s.expm1Reduced(x)
	h := s.pow2(s.toInt(n), -1)
	y := s.madd(q, h, s.sub(h, s.f(0.5)))
	return s.add(y, y)
}

func (s isa) expm1(x vec) vec {
	return s.expm1Clamped(s.maxWith(s.c(-18), s.minWith(s.c(89), x)))
}

// tanh is t/(t+2) with t = expm1(2|x|), and the sign of x.
func (s isa) tanh(x vec) vec {
	sign := s.and(x, s.bits(0x80000000))
	ax := s.minWith(s.c(10), s.and(x, s.bits(0x7fffffff)))
	t := s.expm1Clamped(s.add(ax, ax))
	return s.or(s.div(t, s.add(t, s.f(2))), sign)
}

// sigmoid is 1/(1+e^-x).
func (s isa) sigmoid(x vec) vec {
	one := s.c(1)
	return s.div(one, s.add(s.exp(s.xor(x, s.bits(0x80000000))), one))
}

// log is the natural logarithm: x = 2^e m with sqrt(1/2) <= m < sqrt(2).
func (s isa) log(x vec) vec {
	const sqrtHalf = 0x3f3504f3
	// Subnormal numbers are scaled up first.
	small := s.mul(x, s.f(1<<25))
	tiny := s.c(0x1p-126)
	m := s.choose(lt, x, tiny, small, x)
	adjust := s.choose(lt, x, tiny, s.c(-25), s.zero())

	i := s.v()
	VPSUBD(s.bits(sqrtHalf), m, i)
	e := s.v()
	VPSRAD(Imm(23), i, e)
	VCVTDQ2PS(e, e)
	e = s.add(e, adjust)
	i = s.and(i, s.bits(0x007fffff))
	VPADDD(s.bits(sqrtHalf), i, i)

	f := s.sub(i, s.f(1))
	ff := s.mul(f, f)
	y := s.poly(f, 0.333333167, -0.250008104, 0.200022863, -0.166245541, 0.141811915, -0.131287535, 0.1288165, -0.0785961803)
	y = s.mul(y, s.mul(f, ff))
	VFMADD231PS(s.f(ln2Lo), e, y)
	VFNMADD231PS(s.f(0.5), ff, y)
	y = s.add(f, y)
	VFMADD231PS(s.f(ln2Hi), e, y)

	y = s.choose(nlt, x, s.f(math.Inf(1)), x, y) // +Inf and NaN
	y = s.choose(lt, x, s.zero(), s.load(s.bits(0x7fc00000)), y)
	return s.choose(eq, x, s.zero(), s.c(math.Inf(-1)), y)
}

// erf is x P(x^2) for |x| < 1, else 1 - e^Q(|x|), with the sign of x.
func (s isa) erf(x vec) vec {
	sign := s.and(x, s.bits(0x80000000))
	ax := s.and(x, s.bits(0x7fffffff))
	near := s.mul(s.poly(s.mul(x, x), 1.12837917, -0.376126258, 0.112835851, -0.0268538119, 0.00518832768, -0.000801019361, 7.85386129e-05), x)

	far := s.poly(s.minWith(s.c(4), ax), -0.000341523295, -1.12708919, -0.638144835, -0.103106753, 0.0218380632, -0.00294765811, 0.000186379171)
	q, n := s.expm1Reduced(far)
	far = s.mul(s.add(q, s.f(1)), s.pow2(s.toInt(n), 0))
	far = s.or(s.sub(s.c(1), far), sign)
	return s.choose(lt, ax, s.f(1), near, far)
}
