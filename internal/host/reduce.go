package host

import (
	"math"
	"slices"

	"github.com/tandem-train/tandem/internal/ir"
)

// reduce runs a loop and combines its elements along some dimensions.
//
// The loop's dimensions are put in the order kept, reduced, last, so that row r of its space belongs to result r/fold (or row of
// results, where the last dimension is kept). Every result is summed within tiles in float32 and across tiles in float64. Where there
// are few results of many elements, each is made in a number of runs that depends on the shape, and the runs are added in order.
type reduce struct {
	*loop
	shared
	fn       ir.Reduction
	out      *operand
	keep     int // results, or rows of results
	fold     int // rows that go into each
	runs     int
	jobs     int
	byCols   bool      // runs are pieces of rows, rather than of the rows' number
	together int       // results made from one tile, where many rows share one; else 0
	sums     []float64 // a number for every run of every result
	scratch  []scratch
	finish   shared
}

// Where fewer jobs than enoughJobs would be there to share, results are cut into runs of at least runLen elements.
const (
	enoughJobs = 16
	maxRuns    = 32
	runLen     = 1 << 14
)

func (b *builder) reduce(s *ir.Step, op ir.Reduce) (step, error) {
	shape := s.Loop.Shape
	inner := len(shape) - 1
	for inner > 0 && shape[inner] == 1 {
		inner--
	}
	var perm []int
	for _, reduced := range [...]bool{false, true} {
		for d := range shape {
			if d != inner && slices.Contains(op.Axes, d) == reduced {
				perm = append(perm, d)
			}
		}
	}
	if len(shape) > 0 {
		perm = append(perm, inner)
	}
	// As the loop sees it, the result lies still along the reduced dimensions.
	out := s.Out[0]
	out.Shape, out.Strides = shape, slices.Clone(out.Strides)
	for _, d := range op.Axes {
		out.Strides[d] = 0
	}
	if shape.Size() == 0 {
		return b.reduceNothing(s, op)
	}
	l, err := b.loop(s, []ir.Operand{out}, nil, perm)
	if err != nil {
		return nil, err
	}
	r := &reduce{loop: l, fn: op.Fn, out: &l.operands[len(s.In)], keep: 1, fold: 1, runs: 1}
	for d, n := range l.ext[:len(l.ext)-1] {
		if r.out.strides[d] != 0 {
			r.keep *= n
		} else {
			r.fold *= n
		}
	}
	b.need(0, func(all []scratch) { r.scratch = all })
	r.divide(b)
	return r, nil
}

// reduceNothing fills the result of an empty loop.
func (b *builder) reduceNothing(s *ir.Step, op ir.Reduce) (step, error) {
	out, err := b.contiguous(s.Out[0])
	if err != nil {
		return nil, err
	}
	x := float32(start(op.Fn))
	return b.rowwise(len(out), len(out), 0, func(lo, hi int, _ []float32) { b.kernels.Fill(out[lo:hi], x) }), nil
}

// divide chooses the jobs.
func (r *reduce) divide(b *builder) {
	jobs := r.keep
	if r.columns() {
		jobs *= r.pieces
	}
	if r.tileRows > 1 && 2*r.fold <= r.tileRows {
		r.together = r.tileRows / r.fold
		jobs = (r.keep + r.together - 1) / r.together
	}
	if r.together == 0 && jobs < enoughJobs {
		r.runs = max(1, min(maxRuns/jobs, r.size()/runLen))
		switch {
		case r.columns() || r.fold >= r.runs:
			r.runs = min(r.runs, r.fold)
		case r.tileRows == 1:
			r.byCols = true
			r.runs = min(r.runs, r.pieces)
		default:
			r.runs = 1
		}
	}
	jobs *= r.runs
	work := r.size() * (len(r.body) + 2)
	switch {
	case r.columns() && r.together == 0:
		r.shared = shared{b.cut(jobs, work), r.columnJobs}
		if r.runs > 1 {
			r.sums = make([]float64, r.runs*r.keep*r.cols)
			r.finish = shared{b.cut(r.keep, len(r.sums)*2), r.addRuns}
		}
	case r.together > 0:
		r.shared = shared{b.cut(jobs, work), r.smallJobs}
	default:
		r.shared = shared{b.cut(jobs, work), r.rowJobs}
		if r.runs > 1 {
			r.sums = make([]float64, r.keep*r.runs)
		}
	}
	r.jobs = jobs
}

// columns reports whether the last dimension is kept, so that rows are combined with rows.
func (r *reduce) columns() bool { return r.out.step != 0 }

func (r *reduce) run(e *Exec) error {
	r.start(e.rt)
	if err := r.shared.run(e); err != nil {
		return err
	}
	switch {
	case r.runs == 1:
	case r.columns():
		return r.finish.run(e)
	default:
		for o := range r.keep {
			acc := start(r.fn)
			for _, x := range r.sums[o*r.runs : (o+1)*r.runs] {
				acc = combine(r.fn, acc, x)
			}
			r.set(o, acc)
		}
	}
	return nil
}

// set writes result o.
func (r *reduce) set(o int, x float64) { r.out.f[r.out.offset(r.ext, o*r.fold)] = float32(x) }

// start is what a reduction begins with.
func start(f ir.Reduction) float64 {
	switch f {
	case ir.MaxOf:
		return math.Inf(-1)
	case ir.MinOf:
		return math.Inf(1)
	}
	return 0
}

func combine(f ir.Reduction, a, b float64) float64 {
	switch f {
	case ir.MaxOf:
		return max(a, b)
	case ir.MinOf:
		return min(a, b)
	}
	return a + b
}

// all combines x.
func (r *reduce) all(x []float32) float64 {
	switch r.fn {
	case ir.MaxOf:
		return float64(r.kernels.MaxOf(x))
	case ir.MinOf:
		return float64(r.kernels.MinOf(x))
	}
	return r.kernels.Sum(x)
}

// pairwise combines two vectors.
func (r *reduce) pairwise(dst, a, b []float32) {
	switch r.fn {
	case ir.MaxOf:
		r.kernels.Max.VV(dst, a, b)
	case ir.MinOf:
		r.kernels.Min.VV(dst, a, b)
	default:
		r.kernels.Add.VV(dst, a, b)
	}
}

// widen combines x into acc.
func (r *reduce) widen(acc []float64, x []float32) {
	x = x[:len(acc)]
	switch r.fn {
	case ir.MaxOf:
		for i, v := range x {
			acc[i] = max(acc[i], float64(v))
		}
	case ir.MinOf:
		for i, v := range x {
			acc[i] = min(acc[i], float64(v))
		}
	default:
		for i, v := range x {
			acc[i] += float64(v)
		}
	}
}

// rowJobs makes single numbers: job j is run j%runs of result j/runs.
func (r *reduce) rowJobs(worker, part int) {
	f := &r.frames[worker]
	r.begin(f)
	lo, hi := share(r.jobs, part, r.parts)
	for j := lo; j < hi; j++ {
		o, k := j/r.runs, j%r.runs
		q0, q1, c0, c1 := 0, r.fold, 0, r.cols
		if r.byCols {
			p0, p1 := share(r.pieces, k, r.runs)
			c0, c1 = p0*r.tileCols, min(p1*r.tileCols, r.cols)
		} else {
			q0, q1 = share(r.fold, k, r.runs)
		}
		acc := start(r.fn)
		for row := o*r.fold + q0; row < o*r.fold+q1; row += r.tileRows {
			n := min(r.tileRows, o*r.fold+q1-row)
			for c := c0; c < c1; c += r.tileCols {
				tile := tile{row, n, c, min(r.tileCols, c1-c)}
				acc = combine(r.fn, acc, r.all(r.value(f, tile)))
			}
		}
		if r.runs == 1 {
			r.set(o, acc)
		} else {
			r.sums[j] = acc
		}
	}
}

// smallJobs makes several results from every tile.
func (r *reduce) smallJobs(worker, part int) {
	f := &r.frames[worker]
	r.begin(f)
	lo, hi := share(r.jobs, part, r.parts)
	n := r.fold * r.cols
	for j := lo; j < hi; j++ {
		o0, o1 := j*r.together, min((j+1)*r.together, r.keep)
		x := r.value(f, tile{o0 * r.fold, (o1 - o0) * r.fold, 0, r.cols})
		for o := o0; o < o1; o++ {
			y := x[(o-o0)*n:][:n]
			if !r.columns() {
				r.set(o, r.all(y))
				continue
			}
			at := r.out.offset(r.ext, o*r.fold)
			for c := range r.cols {
				acc := start(r.fn)
				for i := c; i < n; i += r.cols {
					acc = combine(r.fn, acc, float64(y[i]))
				}
				r.out.f[at+c*r.out.step] = float32(acc)
			}
		}
	}
}

// columnJobs makes rows of numbers: job j is piece j%pieces of run j/pieces%runs of row j/pieces/runs.
func (r *reduce) columnJobs(worker, part int) {
	f := &r.frames[worker]
	r.begin(f)
	lo, hi := share(r.jobs, part, r.parts)
	for j := lo; j < hi; j++ {
		piece, k, o := j%r.pieces, j/r.pieces%r.runs, j/r.pieces/r.runs
		c := piece * r.tileCols
		n := min(r.tileCols, r.cols-c)
		acc := r.scratch[worker].wide[:n]
		for i := range acc {
			acc[i] = start(r.fn)
		}
		q0, q1 := share(r.fold, k, r.runs)
		if r.tileRows > 1 {
			r.foldShort(f, acc, o*r.fold+q0, o*r.fold+q1)
		} else {
			r.foldLong(f, acc, o*r.fold+q0, o*r.fold+q1, c)
		}
		if r.runs > 1 {
			copy(r.sums[(k*r.keep+o)*r.cols+c:], acc)
			continue
		}
		r.setRow(o, c, acc)
	}
}

func (r *reduce) setRow(o, c int, acc []float64) {
	at := r.out.offset(r.ext, o*r.fold) + c*r.out.step
	for _, x := range acc {
		r.out.f[at] = float32(x)
		at += r.out.step
	}
}

// value runs the loop on a tile and returns its elements.
func (r *reduce) value(f *frame, t tile) []float32 {
	r.eval(f, t)
	return f.vec[r.result][:t.rows*t.cols]
}

// narrow is how many rows, or tiles of rows, are added in float32 before they go to float64.
const narrow = 16

// foldLong combines columns c.. of rows [from, to) into acc.
func (r *reduce) foldLong(f *frame, acc []float64, from, to, c int) {
	sum := f.spare[:len(acc)]
	for row := from; row < to; row += narrow {
		last := min(row+narrow, to)
		copy(sum, r.value(f, tile{row, 1, c, len(acc)}))
		for i := row + 1; i < last; i++ {
			r.pairwise(sum, sum, r.value(f, tile{i, 1, c, len(acc)}))
		}
		r.widen(acc, sum)
	}
}

// foldShort combines whole rows [from, to) into acc: those of a tile by halves, then tiles.
func (r *reduce) foldShort(f *frame, acc []float64, from, to int) {
	sum := f.spare[tileLen:][:r.cols]
	for row, tiles := from, 0; row < to; row += r.tileRows {
		m := min(r.tileRows, to-row)
		x := r.value(f, tile{row, m, 0, r.cols})
		for m > 1 {
			half := m / 2
			n := half * r.cols
			y := f.spare[:n]
			r.pairwise(y, x[:n], x[n:2*n])
			if m%2 == 1 {
				r.pairwise(y[:r.cols], y[:r.cols], x[2*n:2*n+r.cols])
			}
			x, m = y, half
		}
		if tiles == 0 {
			copy(sum, x)
		} else {
			r.pairwise(sum, sum, x)
		}
		if tiles++; tiles == narrow || row+r.tileRows >= to {
			r.widen(acc, sum)
			tiles = 0
		}
	}
}

// addRuns adds the runs of rows of results up, in order.
func (r *reduce) addRuns(worker, part int) {
	lo, hi := share(r.keep, part, r.finish.parts)
	for o := lo; o < hi; o++ {
		for c := 0; c < r.cols; c += tileLen {
			n := min(tileLen, r.cols-c)
			acc := r.scratch[worker].wide[:n]
			copy(acc, r.sums[o*r.cols+c:])
			for k := 1; k < r.runs; k++ {
				for i, x := range r.sums[(k*r.keep+o)*r.cols+c:][:n] {
					acc[i] = combine(r.fn, acc[i], x)
				}
			}
			r.setRow(o, c, acc)
		}
	}
}
