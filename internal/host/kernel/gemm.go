package kernel

import (
	"fmt"
	"math"
)

// GemmShape is the shape of Batch products [M,K] x [K,N] -> [M,N].
type GemmShape struct {
	M, N, K int
	Batch   int // 0 counts as 1
}

// Epilogue is what happens to an element of C when its sum is complete, in this order.
type Epilogue struct {
	Accumulate bool      // add what C held before
	RowBias    []float32 // add RowBias[i] to row i; length M, or nil
	ColBias    []float32 // add ColBias[j] to column j; length N, or nil
	ReLU       bool      // max(x, 0), keeping NaN
}

// Gemm is a plan for matrix products of one shape. Make it once; Run allocates nothing.
//
// The product is blocked as in BLIS: a task is a rectangle of C; for each block of K it packs panels of A that stay in
// the second-level cache and, one at a time, panels of B that stay in the first, and the micro-kernel multiplies a panel
// of each into a tile of C in registers.
type Gemm struct {
	pool  *Pool
	shape GemmShape
	block blocking
	// Tasks: a grid of gm x gn rectangles of whole tiles, for each batch item and each of splits runs of K.
	gm, gn, splits int
	body           func(worker, part int)

	// Operands of the run in progress.
	c    Matrix
	a, b Matrix
	epi  Epilogue
	ws   []gemmWorker
}

// gemmWorker is what a worker needs for itself.
type gemmWorker struct{ a, b stridedPanels }

// A product with fewer tiles than splitTiles, and K of at least 2*splitK, is also cut along K, because a few tiles
// can't occupy the cores: this is what weight gradients look like. The cuts depend on the shape only.
const (
	splitTiles = 64
	splitK     = 512
	maxSplits  = 16
)

// NewGemm plans products of the shape for the pool.
func NewGemm(pool *Pool, shape GemmShape) *Gemm {
	if shape.Batch == 0 {
		shape.Batch = 1
	}
	if shape.M < 0 || shape.N < 0 || shape.K < 0 || shape.Batch < 0 {
		panic(fmt.Sprintf("kernel: NewGemm(%+v): negative extent", shape))
	}
	k := pool.kern
	g := &Gemm{pool: pool, shape: shape, splits: 1, ws: make([]gemmWorker, pool.threads)}
	if tiles := ceilDiv(shape.M, k.mr) * ceilDiv(shape.N, k.nr) * shape.Batch; tiles < splitTiles && shape.K >= 2*splitK {
		g.splits = min(shape.K/splitK, maxSplits)
	}
	g.gm, g.gn = grid(k, pool.threads, shape.M, shape.N, ceilDiv(shape.K, g.splits), shape.Batch*g.splits, math.MaxInt)
	g.block = newBlocking(k, ceilDiv(ceilDiv(shape.M, k.mr), g.gm)*k.mr, ceilDiv(ceilDiv(shape.N, k.nr), g.gn)*k.nr, ceilDiv(shape.K, g.splits))
	partial := 0
	if g.splits > 1 {
		partial = g.splits * shape.Batch * shape.M * shape.N
	}
	pool.reserve(g.block.scratch(), partial)
	for w := range g.ws {
		g.ws[w] = gemmWorker{a: stridedPanels{kern: k}, b: stridedPanels{kern: k}}
	}
	g.body = g.task
	return g
}

// Run computes C = A B, [M,N] = [M,K] [K,N], for every item of the batch, and applies the epilogue. The rows of C are
// contiguous (Col 1) and C overlaps neither operand.
func (g *Gemm) Run(c, a, b Matrix, epi Epilogue) {
	s := g.shape
	a.check("A", s.Batch, s.M, s.K)
	b.check("B", s.Batch, s.K, s.N)
	c.check("C", s.Batch, s.M, s.N)
	if c.Col != 1 && s.N > 1 {
		panic(fmt.Sprintf("kernel: Gemm: C has column stride %d: it must be 1", c.Col))
	}
	epi.check(s.M, s.N)
	if s.M == 0 || s.N == 0 || s.Batch == 0 {
		return
	}
	g.c, g.a, g.b, g.epi = c, a, b, epi
	g.pool.Run(s.Batch*g.splits*g.gm*g.gn, g.body)
	if g.splits > 1 {
		g.combine()
	}
	g.c.Data, g.a.Data, g.b.Data, g.epi = nil, nil, nil, Epilogue{}
}

func (e *Epilogue) check(m, n int) {
	if e.RowBias != nil && len(e.RowBias) != m || e.ColBias != nil && len(e.ColBias) != n {
		panic(fmt.Sprintf("kernel: Epilogue: biases of %d rows and %d columns for a product of %d x %d", len(e.RowBias), len(e.ColBias), m, n))
	}
}

// task computes one rectangle of C, or of a partial sum of it.
func (g *Gemm) task(worker, part int) {
	s, k := g.shape, g.pool.kern
	gj := part % g.gn
	gi := part / g.gn % g.gm
	split := part / (g.gn * g.gm) % g.splits
	item := part / (g.gn * g.gm * g.splits)

	w := &g.ws[worker]
	w.a.data, w.a.across, w.a.along = g.a.Data[item*g.a.Batch:], g.a.Row, g.a.Col
	w.b.data, w.b.across, w.b.along = g.b.Data[item*g.b.Batch:], g.b.Col, g.b.Row
	r := rect{}
	r.m0, r.m1 = share(s.M, k.mr, g.gm, gi)
	r.n0, r.n1 = share(s.N, k.nr, g.gn, gj)
	r.k0, r.k1 = share(s.K, 1, g.splits, split)
	if r.m0 == r.m1 || r.n0 == r.n1 {
		return
	}
	if g.splits > 1 {
		size := s.M * s.N
		c := g.pool.shared[(item*g.splits+split)*size:][:size]
		g.block.run(g.pool.scratch[worker], r, &w.a, &w.b, nil, c, s.N, &Epilogue{})
	} else {
		g.block.run(g.pool.scratch[worker], r, &w.a, &w.b, nil, g.c.Data[item*g.c.Batch:], g.c.Row, &g.epi)
	}
	w.a.data, w.b.data = nil, nil
}

// combine adds the partial sums up, in order, and applies the epilogue.
func (g *Gemm) combine() {
	s, add := g.shape, g.pool.kern.vector.Add.VV
	size := s.M * s.N
	for item := range s.Batch {
		sums := g.pool.shared[item*g.splits*size:][:g.splits*size]
		total := sums[:size]
		for i := 1; i < g.splits; i++ {
			add(total, total, sums[i*size:])
		}
		c := g.c.Data[item*g.c.Batch:]
		for i := range s.M {
			g.epi.apply(c[i*g.c.Row:], total[i*s.N:][:s.N], i, 0, g.epi.Accumulate)
		}
	}
}

// apply finishes a row of sums: row i, columns j.. of C. It rounds as the micro-kernels do.
func (e *Epilogue) apply(c, sums []float32, i, j int, accumulate bool) {
	c = c[:len(sums)]
	for x, v := range sums {
		if accumulate {
			v += c[x]
		}
		if e.RowBias != nil {
			v += e.RowBias[i]
		}
		if e.ColBias != nil {
			v += e.ColBias[j+x]
		}
		if e.ReLU {
			v = max(v, 0)
		}
		c[x] = v
	}
}

// rect is rows m0..m1, columns n0..n1 of C, and the run k0..k1 of products that are summed for it.
type rect struct{ m0, m1, n0, n1, k0, k1 int }

// blocking is the sizes of the blocks of a product.
type blocking struct {
	kern       *kernels
	mc, nc, kc int // rows of A, columns of B, run of K in one block
}

// Targets for the blocks. A panel of B (kc x nr) and one of A (kc x mr) share the first-level cache, the packed block
// of A (mc x kc) half of the second-level one.
const (
	targetMC = 192
	targetNC = 1024
	targetKC = 256
)

// newBlocking sizes the blocks for tasks of m x n x k.
func newBlocking(kern *kernels, m, n, k int) blocking {
	return blocking{
		kern: kern,
		mc:   evenly(m, targetMC, kern.mr),
		nc:   evenly(n, targetNC, kern.nr),
		kc:   evenly(k, targetKC, 1),
	}
}

// evenly cuts n into equal blocks of about target, multiples of unit, and returns their size.
func evenly(n, target, unit int) int {
	blocks := max(1, ceilDiv(n, target))
	return max(unit, ceilDiv(ceilDiv(n, blocks), unit)*unit)
}

// scratch returns how many floats run needs.
func (b blocking) scratch() int {
	return b.sizeA() + b.sizeB() + b.kern.mr*b.kern.nr
}

// sizeA and sizeB are the floats of the packed blocks, with slack, in whole cache lines.
func (b blocking) sizeA() int { return ceilDiv(b.mc*b.kc+packSlack, 16) * 16 }
func (b blocking) sizeB() int { return ceilDiv(b.nc*b.kc+packSlack, 16) * 16 }

// packedSize returns how many floats packAll needs for one of the blocks of K of m rows.
func (b blocking) packedSize(m int) int {
	return ceilDiv(ceilDiv(m, b.kern.mr)*b.kern.mr*b.kc+packSlack, 16) * 16
}

// packAll packs the rows 0..m of A for block number i of 0..k, so that several runs can use them.
func (b blocking) packAll(dst []float32, m, k, i int, pa panels) {
	k0 := i * b.kc
	kn := min(b.kc, k-k0)
	dst = dst[i*b.packedSize(m):]
	for row := 0; row < m; row += b.mc {
		b.packRows(dst[row*kn:], row, min(row+b.mc, m), k0, kn, pa)
	}
}

// packRows packs the rows i0..i1 of A, one block, as panels: the one that begins at row i stands at (i-i0)*kn.
func (b blocking) packRows(dst []float32, i0, i1, k0, kn int, pa panels) {
	full := i0 + b.kern.fullRows(i1-i0)
	for i := i0; i < i1; {
		width, _ := b.kern.panel(i, full)
		pa.pack(dst[(i-i0)*kn:], width, i, min(width, i1-i), k0, kn)
		i += width
	}
}

// run computes a rectangle of C, whose rows lie ldc apart, from the panels of A (by row) and B (by column). If packed is
// not nil, it holds what packAll made of all rows below r.m1 for all blocks of K, and pa is not used.
func (b blocking) run(scratch []float32, r rect, pa, pb panels, packed []float32, c []float32, ldc int, epi *Epilogue) {
	mr, nr := b.kern.mr, b.kern.nr
	bufA, bufB := scratch[:b.sizeA()], scratch[b.sizeA():][:b.sizeB()]
	tile := scratch[b.sizeA()+b.sizeB():][:mr*nr]
	reuseB := r.m1-r.m0 > b.mc // several blocks of A meet the same panels of B

	for j0 := r.n0; j0 < r.n1; j0 += b.nc {
		j1 := min(j0+b.nc, r.n1)
		for k0 := r.k0; ; k0 += b.kc {
			kn := min(b.kc, r.k1-k0)
			add, last := k0 > r.k0 || epi.Accumulate, k0+kn == r.k1
			for i0 := r.m0; i0 < r.m1; i0 += b.mc {
				i1 := min(i0+b.mc, r.m1)
				if packed != nil {
					bufA = packed[k0/b.kc*b.packedSize(r.m1)+i0*kn:]
				} else {
					b.packRows(bufA, i0, i1, k0, kn, pa)
				}
				for j := j0; j < j1; j += nr {
					panelB := bufB
					if reuseB {
						panelB = bufB[(j-j0)*kn:]
					}
					cols := min(nr, j1-j)
					if i0 == r.m0 {
						pb.pack(panelB, nr, j, cols, k0, kn)
					}
					b.column(kn, bufA, panelB, tile, c, ldc, i0, i1, j, cols, epi, add, last)
				}
			}
			if last {
				break
			}
		}
	}
}

// column multiplies the packed rows i0..i1 of A by one panel of B.
func (b blocking) column(kn int, bufA, panelB, tile, c []float32, ldc, i0, i1, j, cols int, epi *Epilogue, add, last bool) {
	nr := b.kern.nr
	full := i0 + b.kern.fullRows(i1-i0)
	flags := 0
	if add {
		flags = flagAdd
	}
	var rowBias, colBias *float32
	if last {
		if epi.ReLU {
			flags |= flagReLU
		}
		if epi.ColBias != nil && cols == nr {
			colBias = &epi.ColBias[j]
		}
	}
	for i := i0; i < i1; {
		width, gemm := b.kern.panel(i, full)
		rows := min(width, i1-i)
		a := &bufA[(i-i0)*kn]
		if cols == nr {
			if last && epi.RowBias != nil {
				rowBias = &epi.RowBias[i]
			}
			out := c[i*ldc+j : (i+rows-1)*ldc+j+nr]
			gemm(kn, a, &panelB[0], &out[0], ldc, rows, flags, rowBias, colBias)
			i += width
			continue
		}
		// The edge of C: a whole tile aside, of which the valid columns are used.
		gemm(kn, a, &panelB[0], &tile[0], nr, rows, 0, nil, nil)
		for y := range rows {
			out, sums := c[(i+y)*ldc+j:], tile[y*nr:][:cols]
			if last {
				epi.apply(out, sums, i+y, j, add)
			} else {
				(&Epilogue{}).apply(out, sums, 0, 0, add)
			}
		}
		i += width
	}
}

// grid chooses how many rows (at most maxRows) and columns of tasks to cut [m,n] into, for the given number of such products.
func grid(k *kernels, threads, m, n, kk, products, maxRows int) (gm, gn int) {
	gm, gn = 1, 1
	if threads == 1 {
		return gm, gn
	}
	// Estimated times in nanoseconds: a multiply-add, moving an element into a panel, waking another thread.
	const madd, move, wake = 0.02, 0.2, 10000
	p := float64(threads)
	tm, tn := ceilDiv(m, k.mr), ceilDiv(n, k.nr)
	best := math.Inf(1)
	for y := 1; y <= min(tm, 4*threads, maxRows); y++ {
		for x := 1; x <= min(tn, 4*threads); x++ {
			rows, cols := float64(ceilDiv(tm, y)*k.mr), float64(ceilDiv(tn, x)*k.nr)
			one := (rows*cols*madd + (rows+cols)*move) * float64(kk)
			tasks := x * y * products
			cost := one
			if tasks > 1 {
				// Either the threads go in step, or they begin late and end with half a task's difference on average.
				cost = max(one*float64(ceilDiv(tasks, threads)), (one*float64(tasks)+(p-1)*wake)/p+one*(p-1)/(2*p))
			}
			if cost < best {
				best, gm, gn = cost, y, x
			}
		}
	}
	return gm, gn
}

// share returns the run of 0..n that part i of parts gets, in whole units; the first parts get one unit more.
func share(n, unit, parts, i int) (lo, hi int) {
	units := ceilDiv(n, unit)
	each, more := units/parts, units%parts
	first := i*each + min(i, more)
	last := first + each
	if i < more {
		last++
	}
	return min(first*unit, n), min(last*unit, n)
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
