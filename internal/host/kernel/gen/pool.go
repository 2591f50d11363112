package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// maxPairs writes the kernels of 2x2 max pooling: a and b are two rows of the input, of twice the outputs' length.
func maxPairs(s isa) {
	// evenOdd splits two vectors, the first w elements and the next w, into even and odd ones. Within them the order is
	// that of VSHUFPS, which join undoes.
	evenOdd := func(x, y vec) (even, odd vec) {
		even, odd = s.v(), s.v()
		VSHUFPS(Imm(0x88), y, x, even)
		VSHUFPS(Imm(0xdd), y, x, odd)
		return even, odd
	}
	swap := func(x vec) { VPERMPD(Imm(0xd8), x, x) } // VSHUFPS's order to the natural one, and back

	// loop runs whole for every s.width outputs, the last time over some outputs again. If there are fewer, it runs one
	// for each.
	loop := func(n, at reg.GPVirtual, whole, one func()) {
		XORQ(at, at)
		TESTQ(n, n)
		JZ(LabelRef("done"))
		SUBQ(Imm(uint64(s.width)), n)
		JL(LabelRef("few"))
		Label("vectors")
		whole()
		CMPQ(at, n)
		JGE(LabelRef("done"))
		ADDQ(Imm(uint64(s.width)), at)
		CMPQ(at, n)
		CMOVQGT(n, at)
		JMP(LabelRef("vectors"))
		Label("few")
		ADDQ(Imm(uint64(s.width)), n)
		Label("single")
		one()
		INCQ(at)
		CMPQ(at, n)
		JLT(LabelRef("single"))
		Label("done")
		s.end()
	}
	in := func(p, at reg.Register, disp int) Mem { return Mem{Base: p, Index: at, Scale: 8, Disp: disp} }
	out := func(p, at reg.Register) Mem { return Mem{Base: p, Index: at, Scale: 4} }
	// single loads one element to every lane: the rest goes through the same arithmetic.
	single := func(m Mem) vec { r := s.v(); VBROADCASTSS(m, r); return r }

	s.begin("MaxPairs", "func(dst, a, b []float32)", "is dst[i] = max(a[2i], a[2i+1], b[2i], b[2i+1]).")
	n := Load(Param("dst").Len(), GP64()).(reg.GPVirtual)
	dst, a, b := Load(Param("dst").Base(), GP64()), Load(Param("a").Base(), GP64()), Load(Param("b").Base(), GP64())
	at := GP64()
	second := 4 * s.width
	loop(n, at, func() {
		x := s.nanMax(s.load(in(a, at, 0)), s.load(in(b, at, 0)))
		y := s.nanMax(s.load(in(a, at, second)), s.load(in(b, at, second)))
		even, odd := evenOdd(x, y)
		r := s.nanMax(even, odd)
		swap(r)
		VMOVUPS(r, out(dst, at))
	}, func() {
		x := s.nanMax(single(in(a, at, 0)), single(in(b, at, 0)))
		y := s.nanMax(single(in(a, at, 4)), single(in(b, at, 4)))
		VMOVSS(s.nanMax(x, y).AsX(), out(dst, at))
	})

	s.begin("MaxPairsGrad", "func(da, db, a, b, dy []float32)", "writes dy[i] to the first largest of a[2i], a[2i+1], b[2i], b[2i+1], in da or db, and 0 to the others.")
	n = Load(Param("dy").Len(), GP64()).(reg.GPVirtual)
	da, db := Load(Param("da").Base(), GP64()), Load(Param("db").Base(), GP64())
	a, b = Load(Param("a").Base(), GP64()), Load(Param("b").Base(), GP64())
	dy := Load(Param("dy").Base(), GP64())
	at = GP64()
	// spread gives dy to the first of x[0..3] that is the largest, or NaN if one is.
	spread := func(x [4]vec, dy vec) (g [4]vec) {
		largest := s.nanMax(s.nanMax(x[0], x[1]), s.nanMax(x[2], x[3]))
		left := dy
		for i := range x {
			is, nan := s.v(), s.v()
			VCMPPS(Imm(eq), largest, x[i], is)
			VCMPPS(Imm(unordered), x[i], x[i], nan)
			VORPS(nan, is, is)
			g[i] = s.and(left, is)
			rest := s.v()
			VANDNPS(left, is, rest)
			left = rest
		}
		return g
	}
	loop(n, at, func() {
		var x [4]vec
		x[0], x[1] = evenOdd(s.load(in(a, at, 0)), s.load(in(a, at, second)))
		x[2], x[3] = evenOdd(s.load(in(b, at, 0)), s.load(in(b, at, second)))
		d := s.load(out(dy, at))
		swap(d)
		g := spread(x, d)
		for i, p := range []reg.Register{da, db} {
			lo, hi := s.v(), s.v()
			VUNPCKLPS(g[2*i+1], g[2*i], lo)
			VUNPCKHPS(g[2*i+1], g[2*i], hi)
			VMOVUPS(lo, in(p, at, 0))
			VMOVUPS(hi, in(p, at, second))
		}
	}, func() {
		g := spread([4]vec{single(in(a, at, 0)), single(in(a, at, 4)), single(in(b, at, 0)), single(in(b, at, 4))}, single(out(dy, at)))
		VMOVSS(g[0].AsX(), in(da, at, 0))
		VMOVSS(g[1].AsX(), in(da, at, 4))
		VMOVSS(g[2].AsX(), in(db, at, 0))
		VMOVSS(g[3].AsX(), in(db, at, 4))
	})
}
