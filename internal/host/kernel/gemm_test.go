package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// layout says how a test matrix lies in memory.
type layout int

const (
	plain    layout = iota // rows contiguous
	turned                 // columns contiguous
	spread                 // neither
	repeated               // one row, broadcast
	numLayouts
)

// matrix returns a random batch of rows x cols in the layout, between NaNs that must not be read.
func (l layout) matrix(r *rand.Rand, batch, rows, cols int) Matrix {
	m := Matrix{}
	switch l {
	case plain:
		m = Matrix{Row: cols + 3, Col: 1}
	case turned:
		m = Matrix{Row: 1, Col: rows + 1}
	case spread:
		m = Matrix{Row: 2 * cols, Col: 2}
	case repeated:
		m = Matrix{Row: 0, Col: 1}
	}
	m.Batch = (rows-1)*m.Row + (cols-1)*m.Col + 2
	m.Data = poison((batch-1)*m.Batch + (rows-1)*m.Row + (cols-1)*m.Col + 1)
	for b := range batch {
		for i := range rows {
			for j := range cols {
				m.Data[b*m.Batch+i*m.Row+j*m.Col] = float32(r.NormFloat64())
			}
		}
	}
	return m
}

func (m Matrix) at(b, i, j int) float64 { return float64(m.Data[b*m.Batch+i*m.Row+j*m.Col]) }

// checkGemm compares a product with float64. The tolerance is the textbook bound of a sum of K products,
// K eps sum |a||b|, which a single product left out would exceed.
func checkGemm(t *testing.T, p *Pool, r *rand.Rand, s GemmShape, la, lb layout, accumulate, rowBias, colBias, relu bool) []float32 {
	t.Helper()
	g := NewGemm(p, s)
	poisonScratch(p)
	batch := max(1, s.Batch)
	a, b := la.matrix(r, batch, s.M, max(1, s.K)), lb.matrix(r, batch, max(1, s.K), s.N)
	ldc := s.N + 2
	c := Matrix{Data: poison(batch * s.M * ldc), Row: ldc, Col: 1, Batch: s.M * ldc}
	e := Epilogue{Accumulate: accumulate, ReLU: relu}
	if rowBias {
		e.RowBias = normals(r, s.M)
	}
	if colBias {
		e.ColBias = normals(r, s.N)
	}
	if accumulate {
		for n := range batch {
			for i := range s.M {
				copy(c.Data[n*c.Batch+i*ldc:], normals(r, s.N))
			}
		}
	}
	old := append([]float32(nil), c.Data...)
	g.Run(c, a, b, e)

	name := fmt.Sprintf("%+v A %d B %d %v %v %v %v", s, la, lb, accumulate, rowBias, colBias, relu)
	for n := range batch {
		for i := range s.M {
			for j := range s.N {
				var want, size float64
				for x := range s.K {
					v := a.at(n, i, x) * b.at(n, x, j)
					want += v
					size += math.Abs(v)
				}
				for _, v := range []struct {
					on bool
					f  func() float32
				}{
					{accumulate, func() float32 { return old[n*c.Batch+i*ldc+j] }},
					{rowBias, func() float32 { return e.RowBias[i] }},
					{colBias, func() float32 { return e.ColBias[j] }},
				} {
					if v.on {
						want += float64(v.f())
						size += math.Abs(float64(v.f()))
					}
				}
				if relu {
					want = max(want, 0)
				}
				got := c.at(n, i, j)
				if tol := float64(s.K+3) * 0x1p-24 * size; !(math.Abs(got-want) <= tol) {
					t.Fatalf("%s: C[%d,%d,%d] = %v, want %v within %v", name, n, i, j, got, want, tol)
				}
			}
			for j := s.N; j < ldc; j++ {
				if v := c.at(n, i, j); v == v {
					t.Fatalf("%s: wrote beyond row %d", name, i)
				}
			}
		}
	}
	return c.Data
}

func TestGemm(t *testing.T) {
	manyShapes(t)
	shapes := []GemmShape{
		{M: 1, N: 1, K: 1}, {M: 1, N: 1, K: 0}, {M: 2, N: 3, K: 4, Batch: 3}, {M: 6, N: 16, K: 8}, {M: 14, N: 32, K: 16},
		{M: 7, N: 17, K: 9}, {M: 13, N: 31, K: 33}, {M: 64, N: 10, K: 51}, {M: 5, N: 100, K: 300}, {M: 29, N: 65, K: 70, Batch: 2},
		{M: 33, N: 9, K: 1500}, {M: 3, N: 5, K: 1100, Batch: 2}, {M: 200, N: 50, K: 20}, {M: 20, N: 1100, K: 7}, {M: 1, N: 70, K: 40}, {M: 70, N: 1, K: 40},
	}
	forPools(t, func(t *testing.T, p *Pool, r *rand.Rand) []float32 {
		var all []float32
		for i, s := range shapes {
			for l := range numLayouts * numLayouts {
				all = append(all, checkGemm(t, p, r, s, l/numLayouts, l%numLayouts, (i+int(l))%2 == 0, l%3 == 0, l%4 < 2, l%5 == 0)...)
			}
		}
		for range 30 {
			s := GemmShape{M: 1 + r.IntN(90), N: 1 + r.IntN(90), K: r.IntN(80), Batch: 1 + r.IntN(3)}
			flags := r.IntN(16)
			all = append(all, checkGemm(t, p, r, s, layout(r.IntN(int(numLayouts))), layout(r.IntN(int(numLayouts))),
				flags&1 > 0, flags&2 > 0, flags&4 > 0, flags&8 > 0)...)
		}
		return all
	})
}

// Blocks of every dimension: several of K, of A's rows, of B's columns.
func TestGemmBlocked(t *testing.T) {
	manyShapes(t)
	forPools(t, func(t *testing.T, p *Pool, r *rand.Rand) []float32 {
		s := GemmShape{M: 2*targetMC + 5, N: targetNC + 19, K: 2*targetKC + 3}
		g := NewGemm(p, s)
		poisonScratch(p)
		a, b, c := normals(r, s.M*s.K), normals(r, s.K*s.N), poison(s.M*s.N)
		g.Run(RowMajor(c, s.M, s.N), RowMajor(a, s.M, s.K), RowMajor(b, s.K, s.N), Epilogue{})
		for range 2000 {
			i, j := r.IntN(s.M), r.IntN(s.N)
			var want, size float64
			for x := range s.K {
				v := float64(a[i*s.K+x]) * float64(b[x*s.N+j])
				want += v
				size += math.Abs(v)
			}
			if got := float64(c[i*s.N+j]); !(math.Abs(got-want) <= float64(s.K)*0x1p-24*size) {
				t.Fatalf("C[%d,%d] = %v, want %v", i, j, got, want)
			}
		}
		return c
	})
}

func TestGemmKeepsNaN(t *testing.T) {
	nan := float32(math.NaN())
	for _, l := range Levels() {
		p := NewPoolLevel(1, l)
		g := NewGemm(p, GemmShape{M: 8, N: 33, K: 2})
		a, b, c := make([]float32, 16), make([]float32, 66), poison(8*33)
		a[3*2] = nan
		g.Run(RowMajor(c, 8, 33), RowMajor(a, 8, 2), RowMajor(b, 2, 33), Epilogue{ReLU: true})
		for i, x := range c {
			if isNaN := x != x; isNaN != (i/33 == 3) {
				t.Errorf("%v: C[%d,%d] = %v", l, i/33, i%33, x)
			}
		}
	}
}

func TestGemmAllocatesNothing(t *testing.T) {
	for _, l := range Levels() {
		p := NewPoolLevel(2, l)
		for _, s := range []GemmShape{{M: 64, N: 50, K: 60}, {M: 3, N: 20, K: 3000}, {M: 40, N: 70, K: 30, Batch: 3}} {
			g := NewGemm(p, s)
			batch := max(1, s.Batch)
			a, b, c := make([]float32, batch*s.M*s.K), make([]float32, batch*s.K*s.N), make([]float32, batch*s.M*s.N)
			bias := make([]float32, s.N)
			noAllocs(t, func() {
				g.Run(RowMajor(c, s.M, s.N), RowMajor(a, s.M, s.K), RowMajor(b, s.N, s.K).T(), Epilogue{ColBias: bias, ReLU: true})
			})
		}
		p.Close()
	}
}

// measurePeak returns floating-point operations per second of one core.
func measurePeak(l Level) float64 {
	best := 0.0
	for range 5 {
		start := time.Now()
		n := PeakFMA(l, 1e9)
		best = max(best, float64(n)/time.Since(start).Seconds())
	}
	return best
}

func BenchmarkGemm(b *testing.B) {
	shapes := []GemmShape{
		{M: 256, N: 256, K: 256}, {M: 512, N: 512, K: 512}, {M: 1024, N: 1024, K: 1024}, {M: 2048, N: 2048, K: 2048},
		{M: 64, N: 512, K: 784}, {M: 784, N: 512, K: 64}, {M: 64, N: 10, K: 512}, {M: 64, N: 512, K: 10},
	}
	for _, l := range Levels()[1:] {
		peak := measurePeak(l)
		for _, threads := range threadCounts() {
			p := NewPoolLevel(threads, l)
			for _, s := range shapes {
				b.Run(fmt.Sprintf("%v/threads=%d/%dx%dx%d", l, threads, s.M, s.N, s.K), func(b *testing.B) {
					g := NewGemm(p, s)
					x, y, c := make([]float32, s.M*s.K), make([]float32, s.K*s.N), make([]float32, s.M*s.N)
					for b.Loop() {
						g.Run(RowMajor(c, s.M, s.N), RowMajor(x, s.M, s.K), RowMajor(y, s.K, s.N), Epilogue{})
					}
					rate := 2 * float64(s.M*s.N*s.K) * float64(b.N) / b.Elapsed().Seconds()
					b.ReportMetric(rate/1e9, "GFLOP/s")
					b.ReportMetric(100*rate/peak, "%peak")
					b.ReportMetric(0, "ns/op")
				})
			}
			p.Close()
		}
	}
}
