package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set: a vector of width float32s, and the micro-tiles of its matrix product, mr or narrow rows by
// nr columns.
type isa struct {
	name           string
	width          int
	mr, narrow, nr int
}

type vec = reg.VecVirtual

func (s isa) wide() bool { return s.width == 16 }

// fn returns a kernel's full name.
func (s isa) fn(name string) string { return s.name + name }

// begin opens a function.
func (s isa) begin(name, signature, doc string) {
	TEXT(s.fn(name), 4 /* NOSPLIT */, signature)
	Pragma("noescape")
	Doc(s.fn(name) + " " + doc)
}

// end closes it.
func (s isa) end() {
	VZEROUPPER()
	RET()
}

// v is a fresh vector register.
func (s isa) v() vec {
	if s.wide() {
		return ZMM()
	}
	return YMM()
}

func (s isa) zero() vec {
	r := s.v()
	VXORPS(r, r, r)
	return r
}

func (s isa) load(m Op) vec {
	r := s.v()
	VMOVUPS(m, r)
	return r
}

// param broadcasts a float32 parameter.
func (s isa) param(name string) vec {
	b, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	r := s.v()
	VBROADCASTSS(b.Addr, r)
	return r
}

var constants = map[uint32]Mem{}

// bits is a constant in memory, repeated to the width of a vector.
func (s isa) bits(u uint32) Mem {
	if m, ok := constants[u]; ok {
		return m
	}
	m := GLOBL(fmt.Sprintf("%sConst%08x", s.name, u), 8|16 /* RODATA|NOPTR */)
	for i := range s.width {
		DATA(4*i, U32(u))
	}
	constants[u] = m
	return m
}

// f is a float32 constant.
func (s isa) f(x float64) Mem { return s.bits(math.Float32bits(float32(x))) }

// c is a float32 constant in a register.
func (s isa) c(x float64) vec { return s.load(s.f(x)) }

// Arithmetic: a op b, in the order in which one writes it. b may be in memory.

func (s isa) op(f func(...Op), a vec, b Op) vec {
	r := s.v()
	f(b, a, r)
	return r
}

func (s isa) add(a vec, b Op) vec { return s.op(VADDPS, a, b) }
func (s isa) sub(a vec, b Op) vec { return s.op(VSUBPS, a, b) }
func (s isa) mul(a vec, b Op) vec { return s.op(VMULPS, a, b) }
func (s isa) div(a vec, b Op) vec { return s.op(VDIVPS, a, b) }
func (s isa) and(a vec, b Op) vec { return s.op(VANDPS, a, b) }
func (s isa) or(a vec, b Op) vec  { return s.op(VORPS, a, b) }
func (s isa) xor(a vec, b Op) vec { return s.op(VXORPS, a, b) }

// minWith and maxWith are the smaller and larger of bound and x; a NaN in x stays, because the instructions return
// their second operand when either is NaN.
func (s isa) minWith(bound vec, x Op) vec { return s.op(VMINPS, bound, x) }
func (s isa) maxWith(bound vec, x Op) vec { return s.op(VMAXPS, bound, x) }

// madd is a*b + c; it overwrites the register a.
func (s isa) madd(a, b vec, c Op) vec {
	VFMADD213PS(c, b, a)
	return a
}

// poly evaluates c[0] + c[1] x + c[2] x^2 + ... by Horner's rule.
func (s isa) poly(x vec, c ...float64) vec {
	p := s.c(c[len(c)-1])
	for i := len(c) - 2; i >= 0; i-- {
		p = s.madd(p, x, s.f(c[i]))
	}
	return p
}

// Predicates of VCMPPS. All are false for NaN, but unordered and the n... ones, which are true.
const (
	eq        = 0x00
	lt        = 0x11
	le        = 0x12
	ge        = 0x1d
	gt        = 0x1e
	unordered = 0x03
	neq       = 0x04
	nlt       = 0x15
)

// choose is, per element, yes where a pred b, else no.
func (s isa) choose(pred int, a vec, b Op, yes, no vec) vec {
	r := s.v()
	if s.wide() {
		k := K()
		VCMPPS(Imm(uint64(pred)), b, a, k)
		VBLENDMPS(yes, no, k, r)
		return r
	}
	m := YMM()
	VCMPPS(Imm(uint64(pred)), b, a, m)
	VBLENDVPS(m, yes, no, r)
	return r
}

// round rounds to an integer: mode 0 to nearest even, 1 down, 2 up. No exception is raised.
func (s isa) round(mode int, x vec) vec {
	r := s.v()
	if s.wide() {
		VRNDSCALEPS(Imm(uint64(8|mode)), x, r)
	} else {
		VROUNDPS(Imm(uint64(8|mode)), x, r)
	}
	return r
}

// tail holds the mask of a vector's first n elements, 0 < n < width.
type tail struct {
	s isa
	y vec
	k reg.OpmaskVirtual
}

var tailMask *Mem

func b2u(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// tail makes the mask; it overwrites n.
func (s isa) tail(n reg.GPVirtual) tail {
	if s.wide() {
		ones := GP32()
		MOVL(U32(0xffff), ones)
		BZHIL(n.As32(), ones, ones)
		k := K()
		KMOVW(ones, k)
		return tail{s: s, k: k}
	}
	if tailMask == nil {
		m := GLOBL(s.name+"TailMask", 8|16)
		for i := range 2 * s.width {
			DATA(4*i, U32(0xffffffff*b2u(i < s.width)))
		}
		tailMask = &m
	}
	base := GP64()
	LEAQ(*tailMask, base)
	NEGQ(n)
	y := YMM()
	VMOVUPS(Mem{Base: base, Index: n, Scale: 4, Disp: 4 * s.width}, y)
	return tail{s: s, y: y}
}

// load reads the masked elements; the others are 0.
func (t tail) load(m Op) vec {
	r := t.s.v()
	if t.s.wide() {
		VMOVUPS_Z(m, t.k, r)
	} else {
		VMASKMOVPS(m, t.y, r)
	}
	return r
}

// loadOr reads the masked elements; the others are those of other.
func (t tail) loadOr(m Op, other vec) vec {
	r := t.load(m)
	if t.s.wide() {
		VBLENDMPS(r, other, t.k, r)
	} else {
		VBLENDVPS(t.y, r, other, r)
	}
	return r
}

// store writes the masked elements.
func (t tail) store(r vec, m Op) {
	if t.s.wide() {
		VMOVUPS(r, t.k, m)
	} else {
		VMASKMOVPS(r, t.y, m)
	}
}
