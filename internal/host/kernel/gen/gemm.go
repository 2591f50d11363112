package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gemmKernel writes a micro-kernel: a tile of C, mr x nr, held in registers, gains one outer product per k.
//
// a is packed [k][mr], b is packed [k][nr]. The first rows rows of the tile are written, at c with row stride ldc
// (elements), in this order: + C (flag 1), + rowBias[i] (unless nil), + colBias[j] (unless nil), max(x, 0) (flag 2).
func gemmKernel(s isa, mr int) {
	s.begin(fmt.Sprintf("Gemm%d", mr), "func(k int, a, b, c *float32, ldc, rows, flags int, rowBias, colBias *float32)",
		fmt.Sprintf("multiplies a packed panel of %d rows by one of %d columns; see gemmFunc.", mr, s.nr))
	k := Load(Param("k"), GP64())
	a := Load(Param("a"), GP64())
	b := Load(Param("b"), GP64())
	c := Load(Param("c"), GP64())
	ldc := Load(Param("ldc"), GP64())
	rows := Load(Param("rows"), GP64())
	SHLQ(Imm(2), ldc)

	nv := s.nr / s.width
	acc := make([][]vec, mr)
	for i := range acc {
		acc[i] = make([]vec, nv)
		for j := range acc[i] {
			acc[i][j] = s.zero()
		}
	}
	// Touch C now, so that its lines arrive while the products are made.
	row := GP64()
	MOVQ(c, row)
	for i := range mr {
		if i > 0 {
			CMPQ(rows, Imm(uint64(i)))
			JLE(LabelRef("touched"))
		}
		PREFETCHT0(Mem{Base: row})
		PREFETCHT0(Mem{Base: row, Disp: 4*s.nr - 1})
		ADDQ(ldc, row)
	}
	Label("touched")

	outer := func(u int) {
		bv := make([]vec, nv)
		for j := range bv {
			bv[j] = s.load(Mem{Base: b, Disp: 4 * (u*s.nr + j*s.width)})
		}
		for i := range mr {
			m := Mem{Base: a, Disp: 4 * (u*mr + i)}
			av := s.v()
			VBROADCASTSS(m, av)
			for j := range bv {
				VFMADD231PS(bv[j], av, acc[i][j])
			}
		}
	}
	for _, u := range []int{4, 1} {
		Label(fmt.Sprintf("by%d", u))
		CMPQ(k, Imm(uint64(u)))
		JLT(LabelRef(fmt.Sprintf("below%d", u)))
		Label(fmt.Sprintf("loop%d", u))
		for i := range u {
			outer(i)
		}
		ADDQ(U32(uint32(4*u*mr)), a)
		ADDQ(U32(uint32(4*u*s.nr)), b)
		SUBQ(Imm(uint64(u)), k)
		CMPQ(k, Imm(uint64(u)))
		JGE(LabelRef(fmt.Sprintf("loop%d", u)))
		Label(fmt.Sprintf("below%d", u))
	}

	// eachRow runs f for the rows to be written.
	eachRow := func(end string, f func(i int)) {
		for i := range mr {
			if i > 0 {
				CMPQ(rows, Imm(uint64(i)))
				JLE(LabelRef(end))
			}
			f(i)
		}
		Label(end)
	}
	flags := Load(Param("flags"), GP64())
	TESTQ(U32(1), flags)
	JZ(LabelRef("accumulated"))
	MOVQ(c, row)
	eachRow("accumulated", func(i int) {
		for j := range nv {
			VADDPS(Mem{Base: row, Disp: 4 * j * s.width}, acc[i][j], acc[i][j])
		}
		ADDQ(ldc, row)
	})

	bias := Load(Param("rowBias"), GP64())
	TESTQ(bias, bias)
	JZ(LabelRef("rowBiased"))
	eachRow("rowBiased", func(i int) {
		v := s.v()
		VBROADCASTSS(Mem{Base: bias, Disp: 4 * i}, v)
		for j := range nv {
			VADDPS(v, acc[i][j], acc[i][j])
		}
	})

	Load(Param("colBias"), bias.(reg.GPVirtual))
	TESTQ(bias, bias)
	JZ(LabelRef("colBiased"))
	for j := range nv {
		v := s.load(Mem{Base: bias, Disp: 4 * j * s.width})
		for i := range mr {
			VADDPS(v, acc[i][j], acc[i][j])
		}
	}
	Label("colBiased")

	TESTQ(U32(2), flags)
	JZ(LabelRef("clipped"))
	zero := s.zero()
	for i := range mr {
		for j := range nv {
			VMAXPS(acc[i][j], zero, acc[i][j]) // NaN stays
		}
	}
	Label("clipped")

	eachRow("stored", func(i int) {
		for j := range nv {
			VMOVUPS(acc[i][j], Mem{Base: c, Disp: 4 * j * s.width})
		}
		if i+1 < mr {
			ADDQ(ldc, c)
		}
	})
	s.end()
}

// peakChains is how many independent chains of multiply-adds peakKernel runs: more than latency times throughput of
// any core so far (4 cycles, 2 a cycle).
const peakChains = 12

func peakKernel(s isa) {
	s.begin("Peak", "func(n int)", fmt.Sprintf("runs n rounds of %d independent multiply-adds of %d elements.", peakChains, s.width))
	n := Load(Param("n"), GP64())
	x, y := s.c(0.5), s.c(0.25)
	acc := make([]vec, peakChains)
	for i := range acc {
		acc[i] = s.zero()
	}
	Label("loop")
	for i := range acc {
		VFMADD213PS(y, x, acc[i]) // towards a fixed point: neither overflow nor subnormals
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	s.end()
}
