package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func packKernels(s isa) {
	copyRows(s, s.mr)
	copyRows(s, s.narrow)
	copyRows(s, s.nr)
	gatherRows(s)
	segmentRows(s)
}

// copyRows writes dst[r*w+i] = src[r*stride+i] for i < w, r < n.
func copyRows(s isa, w int) {
	s.begin(fmt.Sprintf("CopyRows%d", w), "func(dst, src *float32, stride, n int)",
		fmt.Sprintf("packs n rows of %d elements, stride elements apart.", w))
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	stride := Load(Param("stride"), GP64())
	n := Load(Param("n"), GP64())
	SHLQ(Imm(2), stride)
	Label("loop")
	TESTQ(n, n)
	JLE(LabelRef("done"))
	for i := 0; i < w; {
		from, to := Mem{Base: src, Disp: 4 * i}, Mem{Base: dst, Disp: 4 * i}
		switch {
		case w-i >= s.width:
			v := s.v()
			VMOVUPS(from, v)
			VMOVUPS(v, to)
			i += s.width
		case w-i >= 8:
			v := YMM()
			VMOVUPS(from, v)
			VMOVUPS(v, to)
			i += 8
		case w-i >= 4:
			v := XMM()
			VMOVUPS(from, v)
			VMOVUPS(v, to)
			i += 4
		default:
			v := XMM()
			VMOVSD(from, v)
			VMOVSD(v, to)
			i += 2
		}
	}
	ADDQ(stride, src)
	ADDQ(U32(uint32(4*w)), dst)
	DECQ(n)
	JMP(LabelRef("loop"))
	Label("done")
	s.end()
}

// gatherRows writes dst[r*nr+i] = src[rows[r]+cols[i]] for i < nr, r < n: any geometry of a convolution.
func gatherRows(s isa) {
	s.begin("GatherRows", "func(dst, src *float32, rows *int32, n int, cols *int32)",
		fmt.Sprintf("packs n rows of %d gathered elements: dst[r][i] = src[rows[r]+cols[i]].", s.nr))
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	rows := Load(Param("rows"), GP64())
	n := Load(Param("n"), GP64())
	cols := Load(Param("cols"), GP64())
	nv := s.nr / s.width
	idx := make([]vec, nv)
	for j := range idx {
		idx[j] = s.v()
		if s.wide() {
			VMOVDQU32(Mem{Base: cols, Disp: 4 * j * s.width}, idx[j])
		} else {
			VMOVDQU(Mem{Base: cols, Disp: 4 * j * s.width}, idx[j])
		}
	}
	Label("loop")
	TESTQ(n, n)
	JLE(LabelRef("done"))
	base := GP64()
	MOVLQSX(Mem{Base: rows}, base)
	LEAQ(Mem{Base: src, Index: base, Scale: 4}, base)
	for j := range idx {
		v := s.zero()
		from := Mem{Base: base, Index: idx[j], Scale: 4}
		if s.wide() {
			k := K()
			KXNORW(k, k, k)
			VGATHERDPS(from, k, v)
		} else {
			m := YMM()
			VPCMPEQD(m, m, m)
			VGATHERDPS(m, from, v)
		}
		VMOVUPS(v, Mem{Base: dst, Disp: 4 * j * s.width})
	}
	ADDQ(Imm(4), rows)
	ADDQ(U32(uint32(4*s.nr)), dst)
	DECQ(n)
	JMP(LabelRef("loop"))
	Label("done")
	s.end()
}

// segmentRows is gatherRows for columns in two runs of consecutive elements, the second shift elements further than
// the first one's continuation: dst[r*nr+i] = src[rows[r]+i] where first[i] is set, src[rows[r]+shift+i] where second[i]
// is, else 0. No element is read that is not used.
func segmentRows(s isa) {
	s.begin("SegmentRows", "func(dst, src *float32, rows *int32, n, shift int, first, second *int32)",
		fmt.Sprintf("packs n rows of %d elements taken from two runs; see its generator.", s.nr))
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	rows := Load(Param("rows"), GP64())
	n := Load(Param("n"), GP64())
	shift := Load(Param("shift"), GP64())
	nv := s.nr / s.width
	masks := [2][]tail{make([]tail, nv), make([]tail, nv)}
	for h, name := range []string{"first", "second"} {
		p := Load(Param(name), GP64())
		for j := range nv {
			m := s.v()
			VMOVUPS(Mem{Base: p, Disp: 4 * j * s.width}, m)
			masks[h][j] = tail{s: s, y: m}
			if s.wide() {
				masks[h][j].k = K()
				VPMOVD2M(m, masks[h][j].k)
			}
		}
	}
	Label("loop")
	TESTQ(n, n)
	JLE(LabelRef("done"))
	one, two := GP64(), GP64()
	MOVLQSX(Mem{Base: rows}, one)
	LEAQ(Mem{Base: src, Index: one, Scale: 4}, one)
	LEAQ(Mem{Base: one, Index: shift, Scale: 4}, two)
	for j := range nv {
		v := masks[0][j].load(Mem{Base: one, Disp: 4 * j * s.width})
		v = s.or(v, masks[1][j].load(Mem{Base: two, Disp: 4 * j * s.width}))
		VMOVUPS(v, Mem{Base: dst, Disp: 4 * j * s.width})
	}
	ADDQ(Imm(4), rows)
	ADDQ(U32(uint32(4*s.nr)), dst)
	DECQ(n)
	JMP(LabelRef("loop"))
	Label("done")
	s.end()
}

// transpose8 writes dst[j*stride+i] = src[offs[i]+j] for i < 8, j < 8*blocks.
func transpose8(s isa) {
	s.begin("Transpose8", "func(dst *float32, stride int, src *float32, offs *int, blocks int)",
		"transposes 8 rows of 8*blocks elements: dst[j*stride+i] = src[offs[i]+j].")
	dst := Load(Param("dst"), GP64())
	stride := Load(Param("stride"), GP64())
	src := Load(Param("src"), GP64())
	offs := Load(Param("offs"), GP64())
	SHLQ(Imm(2), stride)
	row := make([]reg.GPVirtual, 8)
	for i := range row {
		row[i] = GP64()
		MOVQ(Mem{Base: offs, Disp: 8 * i}, row[i])
		LEAQ(Mem{Base: src, Index: row[i], Scale: 4}, row[i])
	}
	n := Load(Param("blocks"), GP64())
	at := GP64()
	XORQ(at, at)
	Label("loop")
	TESTQ(n, n)
	JLE(LabelRef("done"))
	// x[h][i] holds elements 4h..4h+3 of row i in its low half, of row i+4 in its high half.
	var x [2][4]vec
	for h := range x {
		for i := range x[h] {
			x[h][i] = YMM()
			VMOVUPS(Mem{Base: row[i], Index: at, Scale: 4, Disp: 16 * h}, x[h][i].AsX())
			VINSERTF128(Imm(1), Mem{Base: row[i+4], Index: at, Scale: 4, Disp: 16 * h}, x[h][i], x[h][i])
		}
	}
	for h := range x {
		// 4x4 transposes in both halves at once.
		a, b, c, d := YMM(), YMM(), YMM(), YMM()
		VUNPCKLPS(x[h][1], x[h][0], a)
		VUNPCKHPS(x[h][1], x[h][0], b)
		VUNPCKLPS(x[h][3], x[h][2], c)
		VUNPCKHPS(x[h][3], x[h][2], d)
		for i, p := range [][2]vec{{a, c}, {a, c}, {b, d}, {b, d}} {
			r := YMM()
			if i%2 == 0 {
				VUNPCKLPD(p[1], p[0], r)
			} else {
				VUNPCKHPD(p[1], p[0], r)
			}
			VMOVUPS(r, Mem{Base: dst})
			ADDQ(stride, dst)
		}
	}
	ADDQ(Imm(8), at)
	DECQ(n)
	JMP(LabelRef("loop"))
	Label("done")
	s.end()
}
