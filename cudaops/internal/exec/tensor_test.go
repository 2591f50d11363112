package exec

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

// Tiles cover k, and what they need a block has.
func TestTiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		batch, m, n, k := 1+rng.IntN(3), 1+rng.IntN(1<<rng.IntN(13)), 1+rng.IntN(1<<rng.IntN(13)), 1+rng.IntN(1<<rng.IntN(14))
		list := tiles(batch, m, n, k)
		if len(list) == 0 && m > 32 && batch*m*n*k <= 1<<28 {
			t.Errorf("no tile for %d times %dx%dx%d", batch, m, k, n)
		}
		for _, w := range list {
			p := matrices{batch: batch, m: m, n: n, k: k, strides: [3][3]int{{k, 1, m * k}, {n, 1, k * n}, {n, 1, m * n}}}
			b := &planner{plan: &plan{own: make([]span, 1)}, s: &ir.Step{}}
			b.tensor(p, w)
			l := b.tasks[0].do.(launch)
			if w.parts < 1 || w.parts > 8 || l.blocks%w.parts != 0 || l.shared > 227<<10 {
				t.Errorf("%d times %dx%dx%d in %v: %d blocks, %d bytes", batch, m, k, n, w, l.blocks, l.shared)
			}
		}
	}
}

// A trial leaves alone what must stay: what a step writes elsewhere than in work memory goes aside, as far from a boundary as it lies.
func TestAlone(t *testing.T) {
	operand := func(r ir.Region, offset int, dims ...int) ir.Operand {
		return ir.Operand{Region: r, Offset: offset, Shape: dims, Strides: ir.Of(dims...).Strides()}
	}
	s := ir.Step{
		Op: ir.MatMul{}, In: []ir.Operand{operand(ir.Params, 3, 5, 4), operand(ir.Work, 65, 4, 100)},
		Out: []ir.Operand{operand(ir.Grads, 67, 5, 100), operand(ir.Grads, 900, 5, 1)}, Epilogue: ir.Epilogue{Sums: true},
	}
	q, bytes := alone(&ir.Program{}, &s)
	a, b := q.Steps[0].Out[0], q.Steps[0].Out[1]
	if a.Region != spare || a.Offset != 3 || b.Region != spare || b.Offset%64 != 900%64 || b.Offset < 503 || bytes < 4*(b.Offset+5) || bytes > 4*700 {
		t.Errorf("results at %v and %v of %d bytes", a, b, bytes)
	}
	if got := q.Steps[0].In[1]; got.Region != ir.Work || got.Offset != 65 || s.Out[0].Region != ir.Grads {
		t.Errorf("an operand at %v, and the step's result at %v", got, s.Out[0])
	}
	s.Out = []ir.Operand{operand(ir.Work, 640, 5, 100)}
	if q, bytes := alone(&ir.Program{}, &s); bytes != 0 || q.Steps[0].Out[0].Region != ir.Work {
		t.Errorf("a result in work memory goes to %v, of %d bytes", q.Steps[0].Out[0], bytes)
	}
}

// productCase is a product with an epilogue, as a program and as it is to be.
type productCase struct {
	m, n, k                      int
	alongM, alongN               bool // whether a lies along m, and b along n
	bias, relu, mask, sums, even bool
}

func (c productCase) String() string {
	type plain productCase
	return fmt.Sprintf("%+v", plain(c))
}

// draw gives the program, and the slots of a, b, bias and mask.
func (c productCase) draw(s *sketch) (p *ir.Program, in [4]*ir.Slot, out, sums *ir.Slot) {
	matrix := func(i, rows, columns int, transposed bool) *ir.Value {
		if transposed {
			rows, columns = columns, rows
		}
		wide := columns
		if !c.even {
			wide++ // rows that begin at odd places
		}
		in[i] = s.slot(ir.Input, ir.F32, rows, wide)
		v := s.SliceAxis(s.Read(in[i]), 1, 0, columns)
		if transposed {
			v = s.T(v)
		}
		return v
	}
	a := matrix(0, c.m, c.k, c.alongM)
	v := s.MatMul(a, matrix(1, c.k, c.n, !c.alongN))
	if c.bias {
		in[2] = s.slot(ir.Input, ir.F32, c.n)
		v = s.Plus(v, s.Read(in[2]))
	}
	if c.relu {
		v = s.Map(ir.Relu, v)
	}
	if c.mask {
		in[3] = s.slot(ir.Input, ir.F32, c.m, c.n)
		v = s.Select(s.Map(ir.Le, s.Read(in[3]), s.Const(0)), s.Const(0), v)
	}
	out = s.slot(ir.Output, ir.F32, c.m, c.n)
	s.Store(out, v)
	if c.sums {
		sums = s.slot(ir.Output, ir.F32, c.m)
		s.Store(sums, s.Sum(a, 1))
	}
	p, err := ir.Compile("product", s.size, ir.Target{TF32: true}, s.parts...)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(p.Steps) != 1 || (p.Steps[0].Epilogue.Mask != 0) != c.mask || p.Steps[0].Epilogue.Sums != c.sums {
		s.t.Fatalf("not one product:\n%s", p)
	}
	return p, in, out, sums
}

// waysOf are all that there are for the program's only product.
func waysOf(p *ir.Program) []way {
	b := &planner{plan: &plan{program: p}}
	return b.ways(&p.Steps[0], hopper)
}

func matricesOf(t *testing.T, p *ir.Program) matrices {
	m, err := newMatrices(&p.Steps[0])
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ourOwn is libraries of which our own kernel makes what the card has no library for.
type ourOwn struct{ only }

func (o ourOwn) product(b *planner, p matrices) (bool, error) {
	if done, err := o.only.product(b, p); done || err != nil || p.summed {
		return done, err
	}
	return true, b.ownMatMul(p)
}

// Every way to make a product gives its numbers, and the same bits again. Operands are numbers of TF32, so that rounding them costs nothing.
func TestWays(t *testing.T) {
	openCard(t)
	rng := rand.New(rand.NewPCG(1, uint64(rand.Uint32())))
	cases := []productCase{
		{m: 64, n: 512, k: 784, bias: true, relu: true, even: true},
		{m: 64, n: 10, k: 512, bias: true, even: true},
		{m: 64, n: 512, k: 10, alongN: true, mask: true, even: true},
		{m: 64, n: 512, k: 512, alongN: true, mask: true, even: true},
		{m: 512, n: 784, k: 64, alongM: true, alongN: true, sums: true, even: true},
		{m: 10, n: 512, k: 64, alongM: true, alongN: true, sums: true, even: true},
		{m: 64, n: 128, k: 9216, bias: true, relu: true, even: true},
		{m: 512, n: 512, k: 4096, alongM: true, alongN: true, sums: true, even: true},
		{m: 2048, n: 2048, k: 2048, alongM: true, alongN: true, sums: true, even: true},
		{m: 4096, n: 512, k: 784, bias: true, relu: true, even: true},
	}
	for range 8 {
		coin := func() bool { return rng.IntN(2) == 0 }
		c := productCase{m: 1 + rng.IntN(300), n: 1 + rng.IntN(300), k: 1 + rng.IntN(900), alongM: coin(), alongN: coin(), bias: coin(), even: coin(), mask: coin(), sums: coin()}
		c.relu = !c.mask && coin()
		cases = append(cases, c)
	}
	for _, c := range cases {
		t.Run(c.String(), func(t *testing.T) { c.test(t, rng) })
	}
}

func (c productCase) test(t *testing.T, rng *rand.Rand) {
	s := newSketch(t)
	p, in, out, sums := c.draw(s)
	var x [4][]float32
	for i, slot := range in {
		if slot == nil {
			continue
		}
		x[i] = make([]float32, slot.Shape.Size())
		for j := range x[i] {
			x[i][j] = math.Float32frombits(math.Float32bits(float32(rng.NormFloat64())) &^ (1<<13 - 1))
		}
	}
	at := func(i, row, column int, transposed bool) float64 {
		if transposed {
			row, column = column, row
		}
		return float64(x[i][row*in[i].Shape[1]+column])
	}
	want, size := make([]float64, c.m*c.n), make([]float64, c.m*c.n) // and the sum of what is added, of which errors are a part
	wantSums, sizeSums := make([]float64, c.m), make([]float64, c.m)
	rows := rng.Perm(c.m) // as many as do not take long
	rows = rows[:min(c.m, max(3, 30<<20/(c.n*c.k)))]
	for _, m := range rows {
		for k := range c.k {
			a := at(0, m, k, c.alongM)
			wantSums[m] += a
			sizeSums[m] += math.Abs(a)
			for n := range c.n {
				ab := a * at(1, k, n, !c.alongN)
				want[m*c.n+n] += ab
				size[m*c.n+n] += math.Abs(ab)
			}
		}
		for n := range c.n {
			v := &want[m*c.n+n]
			if c.bias {
				*v += float64(x[2][n])
			}
			if c.relu {
				*v = max(*v, 0)
			}
			if c.mask && x[3][m*c.n+n] <= 0 {
				*v = 0
			}
		}
	}
	check := func(t *testing.T, what string, got []float32, want, size []float64) {
		t.Helper()
		width := len(got) / c.m
		for _, row := range rows {
			for i := row * width; i < (row+1)*width; i++ {
				// Sums in float32, in any order, whose steps round to zero in the tensor cores.
				if err := math.Abs(float64(got[i]) - want[i]); !(err <= 1e-6*size[i]*math.Log2(float64(c.k)+2)+1e-6*math.Abs(want[i])+1e-30) {
					t.Errorf("%s %d is %v, want %v", what, i, got[i], want[i])
					return
				}
			}
		}
	}
	ways := waysOf(p)
	if !c.bias && !c.relu && !c.mask && len(alongWays(matricesOf(t, p))) == 0 { // not worth it, but ways
		for _, a := range []along{{0, 1, 1}, {1, 1, 1}, {0, 2, 1}, {1, 2, 1}, {0, 1, 2}, {1, 1, 2}} {
			if c.k%a.parts == 0 && c.m%a.pieces == 0 && c.n%a.pieces == 0 {
				ways = append(ways, a.way())
			}
		}
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			l := loadWith(t, p, func(e *Exec) libraries { return ourOwn{only{vendor{e, e.tools}, w}} })
			if l == nil {
				t.Skip("no way for this product")
			}
			for i, slot := range in {
				if slot != nil {
					l.write(t, slot, x[i])
				}
			}
			var first []float32
			for range 3 {
				poison := slices.Repeat([]float32{float32(math.NaN())}, c.m*c.n)
				l.write(t, out, poison)
				if sums != nil {
					l.write(t, sums, poison[:c.m])
				}
				if err := l.Run(context.Background(), &ir.Runtime{}); err != nil {
					t.Fatal(err)
				}
				got := l.read(t, out)
				check(t, "result", got, want, size)
				if sums != nil {
					s := l.read(t, sums)
					check(t, "sum", s, wantSums, sizeSums)
					got = append(got, s...)
				}
				if first == nil {
					first = got
				} else if !slices.Equal(first, got) {
					t.Error("other bits in another run")
				}
			}
		})
	}
}

// BenchmarkWays times every way of some products, as a trial does.
func BenchmarkWays(b *testing.B) {
	for _, batch := range []int{64, 4096} {
		for _, c := range []productCase{
			{m: batch, n: 512, k: 784, bias: true, relu: true, even: true},
			{m: batch, n: 512, k: 512, bias: true, relu: true, even: true},
			{m: batch, n: 10, k: 512, bias: true, even: true},
			{m: batch, n: 512, k: 10, alongN: true, mask: true, even: true},
			{m: batch, n: 512, k: 512, alongN: true, mask: true, even: true},
			{m: 512, n: 784, k: batch, alongM: true, alongN: true, sums: true, even: true},
			{m: 512, n: 512, k: batch, alongM: true, alongN: true, sums: true, even: true},
			{m: 10, n: 512, k: batch, alongM: true, alongN: true, sums: true, even: true},
			{m: batch, n: 128, k: 9216, bias: true, relu: true, even: true},
			{m: batch, n: 9216, k: 128, alongN: true, even: true},
			{m: 128, n: 9216, k: batch, alongM: true, alongN: true, sums: true, even: true},
			{m: batch, n: 8192, k: 8192, bias: true, relu: true, even: true},
			{m: batch, n: 8192, k: 8192, alongN: true, mask: true, even: true},
			{m: 8192, n: 8192, k: batch, alongM: true, alongN: true, sums: true, even: true},
		} {
			s := newSketch(b)
			p, _, _, _ := c.draw(s)
			for _, w := range waysOf(p) {
				b.Run(fmt.Sprintf("%dx%dx%d/%s", c.m, c.k, c.n, w.name), func(b *testing.B) {
					ms := timed(b, p, w)
					b.ReportMetric(2*float64(c.m)*float64(c.n)*float64(c.k)/ms/1e9, "TFLOP/s")
				})
			}
		}
	}
}

// timed measures a way to do a program's only step, as a trial does, and reports it.
func timed(b *testing.B, p *ir.Program, w way) (ms float64) {
	b.Helper()
	l := loadWith(b, p, func(e *Exec) libraries { return only{vendor{e, e.tools}, w} })
	if l == nil {
		b.Skip("no such way")
	}
	err := l.card.Do(func() (err error) {
		for range b.N {
			ms, err = choices.Measure(l.card.API, choices.Brief, func(stream cuda.Stream) error {
				l.stream = stream
				return l.put(&l.parts[0], inBranches, stream)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(ms*1e3, "us/run")
	b.ReportMetric(0, "ns/op")
	return ms
}
