package cublas

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-train/tandem/cudaops/internal/cache"
	"github.com/tandem-train/tandem/cudaops/internal/cublas/cardtest"
	"github.com/tandem-train/tandem/cudaops/internal/cublas/choices"
	"github.com/tandem-train/tandem/cudaops/internal/cuda"
	"github.com/tandem-train/tandem/internal/ir"
)

const workspaceBytes = 32 << 20

// bench is a card with the library on it.
type bench struct {
	*cardtest.Bench
	handle *Handle
}

func openCard(t testing.TB) *bench {
	t.Helper()
	b := &bench{Bench: cardtest.Open(t)}
	lib, err := Open()
	if err != nil {
		t.Skipf("no cuBLASLt: %v", err)
	}
	b.handle, err = lib.Handle(b.Card, b.Alloc(workspaceBytes), workspaceBytes)
	must(t, err)
	t.Cleanup(func() { must(t, b.handle.Close()) })
	return b
}

// sub is the bench for a subtest.
func (b *bench) sub(t testing.TB) *bench {
	t.Helper()
	return &bench{Bench: b.For(t), handle: b.handle}
}

var must, random = cardtest.Must, cardtest.Random

// extent is how many elements a matrix spans.
func extent(m Matrix, batch, rows, cols int) int {
	return (batch-1)*m.Batch + (rows-1)*m.Row + (cols-1)*m.Col + 1
}

// operands are a product's buffers, with off elements before each.
type operands struct {
	p              Product
	off            int
	a, b, c, bias  []float32
	at             [4]cuda.Ptr // of a, b, c and bias
	wantC, wantSum []float64
	scaleC         []float64 // sums of absolute values, which rounding is measured by
}

// fill makes operands with random numbers, a poisoned result, and what is to come out of them by float64.
func (b *bench) fill(p Product, off int) *operands {
	b.Helper()
	n := max(p.Batch, 1)
	o := &operands{p: p, off: off, a: random(extent(p.A, n, p.M, p.K)), b: random(extent(p.B, n, p.K, p.N)), c: cardtest.Poison(extent(p.C, n, p.M, p.N)), bias: random(max(p.M, p.N))}
	if p.BiasGrad != NoBiasGrad {
		o.bias = cardtest.Poison(len(o.bias))
	}
	for i, x := range [][]float32{o.a, o.b, o.c, o.bias} {
		o.at[i] = b.New(x, off)
	}
	o.wantC, o.scaleC = make([]float64, len(o.c)), make([]float64, len(o.c))
	o.wantSum = make([]float64, len(o.bias))
	for g := range n {
		for i := range p.M {
			for j := range p.N {
				sum, scale := 0.0, 0.0
				for k := range p.K {
					x := float64(o.a[g*p.A.Batch+i*p.A.Row+k*p.A.Col]) * float64(o.b[g*p.B.Batch+k*p.B.Row+j*p.B.Col])
					sum += x
					scale += math.Abs(x)
				}
				if p.Bias {
					sum += float64(o.bias[j])
					scale += math.Abs(float64(o.bias[j]))
				}
				if p.Relu {
					sum = max(sum, 0)
				}
				at := g*p.C.Batch + i*p.C.Row + j*p.C.Col
				o.wantC[at], o.scaleC[at] = sum, scale
			}
		}
	}
	for k := range p.K {
		switch p.BiasGrad {
		case SumA:
			for i := range p.M {
				o.wantSum[i] += float64(o.a[i*p.A.Row+k*p.A.Col])
			}
		case SumB:
			for j := range p.N {
				o.wantSum[j] += float64(o.b[k*p.B.Row+j*p.B.Col])
			}
		}
	}
	return o
}

// check compares what is on the card with what was to come out, and sees that nothing lies between the elements of the result.
func (b *bench) check(o *operands) []float32 {
	b.Helper()
	limit := 2e-6 // of the sum of absolute values
	if o.p.TF32 {
		limit = 1e-3
	}
	got := b.Get(o.at[2], len(o.c))
	worst := 0.0
	for i, x := range got {
		if o.scaleC[i] == 0 {
			if !math.IsNaN(float64(x)) {
				b.Fatalf("element %d, which is not of the result, was written: %v", i, x)
			}
			continue
		}
		if e := math.Abs(float64(x)-o.wantC[i]) / o.scaleC[i]; !(e <= worst) {
			worst = e
		}
	}
	b.Logf("off by %.2g", worst)
	if !(worst <= limit) {
		b.Errorf("%+v off %d: off by %g of the sum of absolute values", o.p, o.off, worst)
	}
	n := map[BiasGrad]int{SumA: o.p.M, SumB: o.p.N}[o.p.BiasGrad]
	for i, x := range b.Get(o.at[3], len(o.bias))[:n] {
		if e := math.Abs(float64(x)-o.wantSum[i]) / float64(o.p.K); !(e <= limit) {
			b.Errorf("%+v: sum %d is %v, want %v", o.p, i, x, o.wantSum[i])
			break
		}
	}
	return got
}

func (b *bench) run(plan *Plan, o *operands) {
	b.Helper()
	must(b, plan.Run(o.at[0], o.at[1], o.at[2], o.at[3]))
}

// rowMajor and columnMajor are packed matrices of a batch.
func rowMajor(rows, cols int) Matrix    { return Matrix{Row: cols, Col: 1, Batch: rows * cols} }
func columnMajor(rows, cols int) Matrix { return Matrix{Row: 1, Col: rows, Batch: rows * cols} }

// products are shapes with every layout.
func products() []Product {
	var all []Product
	for _, s := range [][4]int{
		{1, 1, 1, 1}, {1, 64, 512, 784}, {1, 64, 10, 512}, {1, 3, 5, 7}, {1, 1, 33, 17}, {1, 33, 1, 17}, {1, 17, 33, 1}, {1, 128, 128, 128},
		{1, 257, 129, 65}, {1, 784, 512, 64}, {1, 32, 32, 20000}, {5, 8, 12, 16}, {3, 31, 7, 65}, {12, 64, 64, 32},
	} {
		batch, m, n, k := s[0], s[1], s[2], s[3]
		for _, a := range []Matrix{rowMajor(m, k), columnMajor(m, k), {Row: k + 3, Col: 1, Batch: m * (k + 3)}} {
			for _, b := range []Matrix{rowMajor(k, n), columnMajor(k, n)} {
				p := Product{Batch: batch, M: m, N: n, K: k, A: a, B: b, C: rowMajor(m, n)}
				all = append(all, p)
				p.C = Matrix{Row: batch * (n + 1), Col: 1, Batch: n + 1} // the batch between the rows
				p.Bias, p.Relu = true, true
				all = append(all, p)
			}
		}
		p := Product{Batch: batch, M: m, N: n, K: k, A: rowMajor(m, k), B: rowMajor(k, n), C: rowMajor(m, n), Bias: true}
		p.B.Batch = 0
		all = append(all, p)
	}
	return all
}

// TestProducts: every product is right with the first algorithm and with the fastest, for buffers of any alignment, and the same bits again.
func TestProducts(t *testing.T) {
	t.Setenv(cache.Variable, t.TempDir())
	b := openCard(t)
	b.handle.lib.remembers = choices.Open("cublaslt")
	for _, p := range products() {
		for _, tf32 := range []bool{false, true} {
			for _, off := range []int{0, 1} {
				p.TF32 = tf32
				t.Run(fmt.Sprintf("%dx%dx%dx%d", p.Batch, p.M, p.N, p.K), func(t *testing.T) {
					b := b.sub(t)
					o := b.fill(p, off)
					plan, err := b.handle.Plan(p)
					must(t, err)
					defer func() { must(t, plan.Close()) }()
					b.run(plan, o)
					b.check(o)
					must(t, plan.Tune(o.at[0], o.at[1], o.at[2], o.at[3]))
					b.Put(o.at[2], o.c)
					b.run(plan, o)
					first := b.check(o)
					for range 3 {
						b.run(plan, o)
					}
					b.Same(plan, o.at[2], first)
					again, err := b.handle.Plan(p)
					must(t, err)
					defer func() { must(t, again.Close()) }()
					if got, want := *again.chosen(o.at[0], o.at[1], o.at[2], o.at[3]).algo, *plan.chosen(o.at[0], o.at[1], o.at[2], o.at[3]).algo; got != want {
						t.Errorf("%v: algorithm %v is planned again, %v was chosen", plan, got, want)
					}
				})
			}
		}
	}
}

// TestBiasGradients are of the library's epilogues, which it may not have for every type.
func TestBiasGradients(t *testing.T) {
	b := openCard(t)
	for _, tf32 := range []bool{false, true} {
		for _, sum := range []BiasGrad{SumA, SumB} {
			for _, a := range []Matrix{rowMajor(48, 64), columnMajor(48, 64)} {
				p := Product{M: 48, N: 80, K: 64, A: a, B: rowMajor(64, 80), C: rowMajor(48, 80), BiasGrad: sum, TF32: tf32}
				t.Run(fmt.Sprintf("sums %d tf32 %t row stride %d", sum, tf32, a.Row), func(t *testing.T) {
					plan, err := b.handle.Plan(p)
					if Unsupported(err) {
						t.Skipf("not in this library: %v", err)
					}
					must(t, err)
					defer func() { must(t, plan.Close()) }()
					b := b.sub(t)
					o := b.fill(p, 0)
					b.run(plan, o)
					b.check(o)
				})
			}
		}
	}
}

// TestHalves: products of bf16 and f16 elements, which are made by cutting float32 ones that halves hold exactly.
func TestHalves(t *testing.T) {
	b := openCard(t)
	const m, n, k = 64, 96, 128
	for _, in := range []ir.DType{ir.BF16, ir.F16} {
		p := Product{M: m, N: n, K: k, A: rowMajor(m, k), B: rowMajor(k, n), C: rowMajor(m, n), In: in, Bias: true}
		plan, err := b.handle.Plan(p)
		must(t, err)
		a, w, bias := small(m*k), small(k*n), random(n)
		var at [4]cuda.Ptr
		for i, x := range [][]float32{halves(in, a), halves(in, w), make([]float32, m*n), bias} {
			at[i] = b.Alloc(4 * len(x))
			b.Put(at[i], x)
		}
		must(t, plan.Run(at[0], at[1], at[2], at[3]))
		got := b.Get(at[2], m*n)
		for i := range m {
			for j := range n {
				want := float64(bias[j])
				for l := range k {
					want += float64(a[i*k+l]) * float64(w[l*n+j])
				}
				if e := math.Abs(float64(got[i*n+j]) - want); !(e <= 1e-4) {
					t.Fatalf("%s: element %d,%d is %v, want %v", in, i, j, got[i*n+j], want)
				}
			}
		}
		must(t, plan.Close())
	}
}

// small are random eighths between -1 and 1.
func small(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rand.IntN(17)-8) / 8
	}
	return x
}

// halves packs what small made, two a word.
func halves(t ir.DType, x []float32) []float32 {
	words := make([]float32, len(x)/2)
	for i := range words {
		words[i] = math.Float32frombits(cardtest.Half(t, x[2*i]) | cardtest.Half(t, x[2*i+1])<<16)
	}
	return words
}

// TestCapture: a captured product runs again with what its operands hold then.
func TestCapture(t *testing.T) {
	b := openCard(t)
	p := Product{M: 64, N: 512, K: 784, A: rowMajor(64, 784), B: columnMajor(784, 512), C: rowMajor(64, 512), Bias: true, Relu: true}
	plan, err := b.handle.Plan(p)
	must(t, err)
	defer func() { must(t, plan.Close()) }()
	first, second := b.fill(p, 0), b.fill(p, 0)
	launch := b.Capture(func(s cuda.Stream) {
		b.handle.SetStream(s)
		b.run(plan, first)
	})
	if got := b.Get(first.at[2], 1)[0]; !math.IsNaN(float64(got)) {
		t.Errorf("the product was made while it was captured: %v", got)
	}
	launch()
	b.check(first)
	second.at = first.at
	for i, x := range [][]float32{second.a, second.b, second.c, second.bias} {
		b.Put(second.at[i], x)
	}
	launch()
	b.check(second)
}

// BenchmarkProduct reports what the card does, by the library's first guess and by the fastest; ns/op is what a call of Run costs the host.
func BenchmarkProduct(bm *testing.B) {
	bm.Setenv(cache.Variable, bm.TempDir())
	for _, s := range [][3]int{{8192, 8192, 8192}, {2048, 2048, 2048}, {64, 512, 784}} {
		for _, tf32 := range []bool{false, true} {
			m, n, k := s[0], s[1], s[2]
			bm.Run(fmt.Sprintf("%dx%dx%d/tf32=%t", m, k, n, tf32), func(bm *testing.B) {
				b := openCard(bm)
				b.handle.lib.remembers = choices.Open("cublaslt")
				product := Product{M: m, N: n, K: k, A: rowMajor(m, k), B: rowMajor(k, n), C: rowMajor(m, n), TF32: tf32}
				first, err := b.handle.Plan(product)
				must(bm, err)
				defer func() { must(bm, first.Close()) }()
				plan, err := b.handle.Plan(product)
				must(bm, err)
				defer func() { must(bm, plan.Close()) }()
				a, w, c := b.New(random(m*k), 0), b.New(random(k*n), 0), b.Alloc(4*m*n)
				must(bm, plan.Tune(a, w, c, 0))
				run := func() error { return plan.Run(a, w, c, 0) }
				rates := b.Rates(2*float64(m)*float64(n)*float64(k), func(run func() error) (float64, error) { return b.handle.time(choices.Brief, run) }, func() error { return first.Run(a, w, c, 0) }, run)
				for bm.Loop() {
					must(bm, run())
				}
				must(bm, b.Card.StreamSynchronize(b.Card.Stream))
				bm.ReportMetric(rates[0], "TFLOP/s")
				bm.ReportMetric(rates[1], "TFLOP/s-tuned")
			})
		}
	}
}

// TestSwizzledTiles: an algorithm gives the same bits whatever the order of its tiles.
func TestSwizzledTiles(t *testing.T) {
	b := openCard(t)
	const n = 4096
	p, err := b.handle.Plan(Product{M: n, N: n, K: n, A: Matrix{n, 1, 0}, B: Matrix{n, 1, 0}, C: Matrix{n, 1, 0}, In: ir.BF16, Out: ir.BF16, Aligned: true})
	must(t, err)
	defer func() { must(t, p.Close()) }()
	if p.choice[0].offers == nil {
		t.Skip("a choice is remembered: TANDEM_CACHE=off")
	}
	halves := func() []float32 {
		x := make([]float32, n*n/2)
		for i := range x {
			x[i] = math.Float32frombits(math.Float32bits(float32(rand.NormFloat64()))&^0xffff | math.Float32bits(float32(rand.NormFloat64()))>>16)
		}
		return x
	}
	x, y, out := b.New(halves(), 0), b.New(halves(), 0), b.Alloc(2*n*n)
	run := func(o *heuristic) []float32 {
		b.Put(out, cardtest.Poison(n*n/2))
		must(t, p.run(&choice{algo: &o.algo, bytes: o.workspace}, x, y, out, 0, p.space()))
		return b.Get(out, n*n/2)
	}
	pairs := 0
	for i, o := range p.choice[0].offers {
		if two := p.swizzled([]heuristic{o}); len(two) == 2 {
			pairs++
			run(&two[0])
			b.Same(fmt.Sprintf("offer %d, swizzled", i), out, run(&o))
		}
	}
	if pairs == 0 {
		t.Error("nothing is offered that can be swizzled")
	}
}

// TestPairs: whatever an algorithm's clusters are, its numbers are right, and the same every time.
func TestPairs(t *testing.T) {
	b := openCard(t)
	pairs := 0
	for _, p := range []Product{
		{M: 256, N: 192, K: 264, A: rowMajor(256, 264), B: columnMajor(264, 192), C: rowMajor(256, 192), Bias: true, Relu: true, TF32: true, Aligned: true},
		{M: 512, N: 64, K: 256, A: rowMajor(512, 256), B: rowMajor(256, 64), C: rowMajor(512, 64), TF32: true, Aligned: true},
		{Batch: 4, M: 128, N: 196, K: 96, A: Matrix{4 * 96, 1, 96}, B: Matrix{196, 1, 96 * 196}, C: Matrix{196, 1, 128 * 196}, TF32: true, Aligned: true},
	} {
		plan, err := b.handle.Plan(p)
		must(t, err)
		defer func() { must(t, plan.Close()) }()
		offers := plan.choice[0].offers
		if offers == nil {
			t.Skip("a choice is remembered: TANDEM_CACHE=off")
		}
		o := b.fill(p, 0)
		for i, offer := range offers {
			var shape, size uint64
			if b.handle.lib.algoGet(&offer.algo, algoCluster, &shape, 2, &size) == 0 && shape > 0 {
				pairs++
			}
			run := func() []float32 {
				b.Put(o.at[2], o.c)
				must(t, plan.run(&choice{algo: &offer.algo, bytes: offer.workspace}, o.at[0], o.at[1], o.at[2], o.at[3], plan.space()))
				return b.check(o)
			}
			first := run()
			run()
			b.Same(fmt.Sprintf("%v, offer %d", plan, i), o.at[2], first)
		}
	}
	if pairs == 0 {
		t.Error("nothing is offered that has clusters")
	}
}
