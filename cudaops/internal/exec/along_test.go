package exec

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/internal/ir"
)

// As many parts of k as fill the card with tiles, and none of them short.
func TestPartsOfK(t *testing.T) {
	for _, c := range []struct{ m, n, k, want int }{
		{512, 784, 4096, 4}, {512, 512, 4096, 8}, {8192, 8192, 4096, 1}, {512, 512, 600, 2}, {128, 128, 4096, 16}, {512, 512, 4098, 1}, {10, 10, 256, 1},
	} {
		p := matrices{batch: 1, m: c.m, n: c.n, k: c.k, strides: [3][3]int{{1, c.m}, {c.n, 1}, {c.n, 1}}}
		if got := partsOfK(p); got != c.want {
			t.Errorf("%dx%dx%d is cut into %d parts, want %d", c.m, c.k, c.n, got, c.want)
		}
		p.strides[2][0]++ // results with gaps
		if got := partsOfK(p); got != 1 {
			t.Errorf("%dx%dx%d with gaps is cut into %d parts", c.m, c.k, c.n, got)
		}
	}
}

// The pieces of a copy have room, are no more than they must be, and no tile is short for them.
func TestPieces(t *testing.T) {
	for _, c := range []struct{ m, n, k, a, b int }{
		{512, 784, 4096, 1, 1}, {8192, 8192, 4096, 2, 2}, {8192, 1000, 4096, 2, 1}, {32768, 8192, 4096, 8, 2}, {8192 + 128, 8192, 4096, 1, 2}, {256, 256, 1 << 18, 1, 1},
	} {
		p := matrices{batch: 1, m: c.m, n: c.n, k: c.k, strides: [3][3]int{{1, c.m}, {c.n, 1}, {c.n, 1}}}
		if a, b := piecesOf(p, 0), piecesOf(p, 1); a != c.a || b != c.b {
			t.Errorf("%dx%dx%d is copied in %d and %d pieces, want %d and %d", c.m, c.k, c.n, a, b, c.a, c.b)
		}
	}
}

// Pieces take the same scratch, one after the other.
func TestPiecesTakeTurns(t *testing.T) {
	for _, a := range []along{{0, 1, 4}, {1, 1, 4}} {
		s := newSketch(t)
		dy, x := s.in(1000, 4096), s.in(1000, 4096)
		s.out(s.MatMul(s.T(dy), x))
		s.out(s.Sum(s.T(dy), 1))
		p, err := newPlan(s.compile(), turning{copying{}, a}, false)
		if err != nil {
			t.Fatal(err)
		}
		if piece := 4 * 1000 * 1024; p.scratch < piece || p.scratch >= 2*piece {
			t.Errorf("%v takes %d bytes of scratch, where a piece is %d", a, p.scratch, piece)
		}
	}
}

// turning makes products with sums in one of the ways that copy an operand along k, and all others in the plain way.
type turning struct {
	libraries
	along
}

func (l turning) choose(b *planner, s *ir.Step) (way, error) {
	if s.Epilogue.Sums {
		return l.way(), nil
	}
	return b.ways(s, 0)[0], nil
}

// masked is a gradient that a mask is applied to, and that of weights and bias that follow from it.
type masked struct {
	g, w, h, x, dw, sums, grads *ir.Slot
}

const maskedBatch, maskedIn, maskedOut, maskedNext = 264, 36, 70, 20

// drawMasked draws that; others, if there are, read the gradient too.
func drawMasked(s *sketch, others func(dy *ir.Value)) (m masked) {
	m.g, m.w = s.slot(ir.Input, ir.F32, maskedBatch, maskedNext), s.slot(ir.Params, ir.F32, maskedNext, maskedOut)
	m.h, m.x = s.slot(ir.Input, ir.F32, maskedBatch, maskedOut), s.slot(ir.Input, ir.F32, maskedBatch, maskedIn)
	dy := s.Select(s.Map(ir.Le, s.Read(m.h), s.Const(0)), s.Const(0), s.MatMul(s.Read(m.g), s.Read(m.w)))
	m.grads = s.slot(ir.Grads, ir.F32, maskedOut*maskedIn+maskedOut)
	m.dw = &ir.Slot{Region: ir.Grads, Name: "dw", Offset: m.grads.Offset, Shape: ir.Of(maskedOut, maskedIn)}
	m.sums = &ir.Slot{Region: ir.Grads, Name: "sums", Offset: m.dw.End(), Shape: ir.Of(maskedOut)}
	s.Store(m.dw, s.MatMul(s.T(dy), s.Read(m.x)))
	s.Store(m.sums, s.Sum(s.T(dy), 1))
	if others != nil {
		others(dy)
	}
	return m
}

// masks is how many tasks of a plan apply masks.
func (p *plan) masks() int { return p.count(func(t task) bool { return t.masks }) }

// sums is how many add up parts of k and do nothing else.
func (p *plan) sums() int { return p.count(func(t task) bool { return t.sum != nil }) }

func (p *plan) count(is func(task) bool) (n int) {
	for _, s := range p.segments {
		for _, t := range s.tasks {
			if is(t) {
				n++
			}
		}
	}
	return n
}

// A mask is applied by whoever copies what is masked, unless somebody else needs that, too.
func TestMaskGoesAlong(t *testing.T) {
	for _, c := range []struct {
		name   string
		others func(s *sketch, dy *ir.Value)
		want   int
	}{
		{"nobody else", nil, 0},
		{"the caller", func(s *sketch, dy *ir.Value) { s.out(dy) }, 1},
		{"another product", func(s *sketch, dy *ir.Value) { s.out(s.MatMul(dy, s.in(maskedOut, 3))) }, 1},
	} {
		s := newSketch(t)
		drawMasked(s, func(dy *ir.Value) {
			if c.others != nil {
				c.others(s, dy)
			}
		})
		p, err := newPlan(s.compile(), turning{copying{}, along{copied: 0, parts: 2, pieces: 1}}, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.masks(); got != c.want {
			t.Errorf("%s reads what is masked, too: %d tasks mask, want %d:\n%v", c.name, got, c.want, p)
		}
	}
}

func TestMaskedGradient(t *testing.T) {
	openCard(t)
	maskedGradient(t)
}

// maskedGradient checks the numbers of such a gradient, and of parameters that are updated by it.
func maskedGradient(t *testing.T) {
	for _, a := range []along{{0, 2, 1}, {0, 1, 2}, {1, 1, 2}, {0, 1, 1}} {
		t.Run(a.String(), func(t *testing.T) { maskedUpdate(t, a, false) })
		t.Run(a.String()+", with an update", func(t *testing.T) { maskedUpdate(t, a, true) })
	}
}

func maskedUpdate(t *testing.T, a along, updated bool) {
	s := newSketch(t)
	m := drawMasked(s, nil)
	params := s.slot(ir.Params, ir.F32, m.grads.Shape[0])
	if updated {
		s.next()
		s.Store(params, s.Minus(s.Read(params), s.Scale(s.Read(m.grads), 0.5)))
	}
	l := loadWith(t, s.compile(), func(e *Exec) libraries { return turning{ourOwn{only{vendor: vendor{e, e.tools}}}, a} })
	if n := l.plan.masks(); n != a.copied { // a copy of the other operand can't
		t.Errorf("%d tasks mask by themselves", n)
	}
	if n := l.plan.sums(); (n == 0) != (updated || a.parts == 1) {
		t.Errorf("%d tasks add up, and do nothing else:\n%v", n, l.plan)
	}
	rng := rand.New(rand.NewPCG(3, uint64(rand.Uint32())))
	fill := func(s *ir.Slot) []float32 {
		x := make([]float32, s.Shape.Size())
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		l.write(t, s, x)
		return x
	}
	g, w, h, x := fill(m.g), fill(m.w), fill(m.h), fill(m.x)
	dw, sums := make([]float64, maskedOut*maskedIn), make([]float64, maskedOut)
	for i := range maskedBatch {
		for o := range maskedOut {
			if h[i*maskedOut+o] <= 0 {
				continue
			}
			dy := 0.
			for k := range maskedNext {
				dy += float64(g[i*maskedNext+k]) * float64(w[k*maskedOut+o])
			}
			sums[o] += dy
			for j := range maskedIn {
				dw[o*maskedIn+j] += dy * float64(x[i*maskedIn+j])
			}
		}
	}
	l.write(t, m.grads, slices.Repeat([]float32{float32(math.NaN())}, m.grads.Shape[0]))
	before := fill(params)
	if err := l.Run(context.Background(), &ir.Runtime{}); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		got  []float32
		want []float64
	}{"the gradient": {l.read(t, m.dw), dw}, "the sums": {l.read(t, m.sums), sums}} {
		for i, want := range c.want {
			if got := float64(c.got[i]); !(math.Abs(got-want) <= 2e-3) { // of some hundred numbers of about 4 each, in float32
				t.Fatalf("%s: %d is %v, want %v", what, i, got, want)
			}
		}
	}
	grads := l.read(t, m.grads)
	for i, got := range l.read(t, params) {
		want := before[i]
		if updated {
			want -= 0.5 * grads[i] // half of it is exact, so that rounding is the same by whatever instructions
		}
		if got != want {
			t.Fatalf("parameter %d is %v, want %v", i, got, want)
		}
	}
}
