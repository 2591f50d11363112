package kernel

import (
	"fmt"
	"math"
)

// Pool2dShape is the shape of a 2-d pooling: planes [Planes,H,W] -> [Planes,OH,OW]; Planes is batch times channels.
// Pairs are height, then width.
type Pool2dShape struct {
	Planes, H, W                      int
	Kernel, Stride, Padding, Dilation [2]int
}

// OutHW returns OH and OW, as for convolutions.
func (s Pool2dShape) OutHW() (oh, ow int) {
	return windows(s.H, s.Kernel[0], s.Stride[0], s.Padding[0], s.Dilation[0]), windows(s.W, s.Kernel[1], s.Stride[1], s.Padding[1], s.Dilation[1])
}

func (s Pool2dShape) check() {
	ok := s.Planes >= 0
	for d := range 2 {
		ok = ok && s.Kernel[d] > 0 && s.Stride[d] > 0 && s.Padding[d] >= 0 && s.Dilation[d] > 0
	}
	if ok {
		oh, ow := s.OutHW()
		ok = oh > 0 && ow > 0
	}
	if !ok {
		panic(fmt.Sprintf("kernel: pooling %+v is not possible", s))
	}
}

// span is the input positions from, from+step, ... below to, of a window along one dimension.
type span struct{ from, to, step int }

func (s span) len() int { return max(0, ceilDiv(s.to-s.from, s.step)) }

// spans returns the windows along dimension d, cut to the input.
func (s Pool2dShape) spans(d int) []span {
	in := [2]int{s.H, s.W}[d]
	dilation := s.Dilation[d]
	all := make([]span, windows(in, s.Kernel[d], s.Stride[d], s.Padding[d], dilation))
	for i := range all {
		from := i*s.Stride[d] - s.Padding[d]
		to := min(from+(s.Kernel[d]-1)*dilation+1, in)
		if from < 0 {
			from += ceilDiv(-from, dilation) * dilation
		}
		all[i] = span{from, to, dilation}
	}
	return all
}

// planes shares the planes of a pooling out in tasks of some ten thousand elements.
type planes struct {
	pool          *Pool
	n, each       int
	inSize, outSz int
}

func newPlanes(pool *Pool, n, inSize, outSize int) planes {
	return planes{pool: pool, n: n, each: max(1, 16384/max(1, inSize)), inSize: inSize, outSz: outSize}
}

func (p planes) check(in, out []float32) {
	checkLen("input of a pooling", in, p.n*p.inSize)
	checkLen("output of a pooling", out, p.n*p.outSz)
}

func (p planes) run(body func(worker, part int)) { p.pool.Run(ceilDiv(p.n, p.each), body) }

// of returns the planes lo..hi of a task.
func (p planes) of(part int) (lo, hi int) { return part * p.each, min((part+1)*p.each, p.n) }

func (p planes) in(x []float32, i int) []float32  { return x[i*p.inSize:][:p.inSize] }
func (p planes) out(y []float32, i int) []float32 { return y[i*p.outSz:][:p.outSz] }

// MaxPool2d is a plan for max pooling and its gradient. Padding counts as -Inf. The first largest element in row-major
// order wins, and the first NaN wins over everything.
type MaxPool2d struct {
	planes
	shape         Pool2dShape
	rows, cols    []span
	forward, grad func(worker, part int)

	// Of the run in progress: x and y are inputs or gradients.
	x, dx, y []float32
}

// NewMaxPool2d plans poolings of the shape.
func NewMaxPool2d(pool *Pool, shape Pool2dShape) *MaxPool2d {
	shape.check()
	m := &MaxPool2d{shape: shape, rows: shape.spans(0), cols: shape.spans(1)}
	m.planes = newPlanes(pool, shape.Planes, shape.H*shape.W, len(m.rows)*len(m.cols))
	m.forward, m.grad = m.forwardTask, m.gradTask
	if shape.Kernel == [2]int{2, 2} && shape.Stride == [2]int{2, 2} && shape.Padding == [2]int{} && shape.Dilation == [2]int{1, 1} && pool.kern.maxPairs != nil {
		m.forward, m.grad = m.pairsTask, m.pairsGradTask
	}
	return m
}

// Run computes y [Planes,OH,OW] from x [Planes,H,W].
func (m *MaxPool2d) Run(y, x []float32) {
	m.check(x, y)
	m.x, m.y = x, y
	m.run(m.forward)
	m.x, m.y = nil, nil
}

// Grad computes dx from x and dy, finding the places again.
func (m *MaxPool2d) Grad(dx, x, dy []float32) {
	m.check(x, dy)
	m.check(dx, dy)
	m.dx, m.x, m.y = dx, x, dy
	m.run(m.grad)
	m.dx, m.x, m.y = nil, nil, nil
}

// find returns the index of the element that a window takes, or -1.
func (m *MaxPool2d) find(x []float32, rows, cols span) int {
	at, best := -1, float32(0)
	for r := rows.from; r < rows.to; r += rows.step {
		for c := cols.from; c < cols.to; c += cols.step {
			i := r*m.shape.W + c
			if v := x[i]; at < 0 || v > best || v != v {
				if at, best = i, v; v != v {
					return at
				}
			}
		}
	}
	return at
}

func (m *MaxPool2d) forwardTask(_, part int) {
	lo, hi := m.of(part)
	for i := lo; i < hi; i++ {
		m.plane(m.out(m.y, i), m.in(m.x, i))
	}
}

func (m *MaxPool2d) plane(y, x []float32) {
	o := 0
	for _, rows := range m.rows {
		for _, cols := range m.cols {
			at := m.find(x, rows, cols)
			if at < 0 {
				y[o] = float32(math.Inf(-1))
			} else {
				y[o] = x[at]
			}
			o++
		}
	}
}

func (m *MaxPool2d) gradTask(_, part int) {
	lo, hi := m.of(part)
	for i := lo; i < hi; i++ {
		dx, x, dy := m.in(m.dx, i), m.in(m.x, i), m.out(m.y, i)
		clear(dx)
		o := 0
		for _, rows := range m.rows {
			for _, cols := range m.cols {
				if at := m.find(x, rows, cols); at >= 0 {
					dx[at] += dy[o]
				}
				o++
			}
		}
	}
}

// pairsTask is forwardTask for windows of 2 x 2 side by side.
func (m *MaxPool2d) pairsTask(_, part int) {
	w, ow := m.shape.W, len(m.cols)
	lo, hi := m.of(part)
	for i := lo; i < hi; i++ {
		x, y := m.in(m.x, i), m.out(m.y, i)
		for r := range m.rows {
			m.pool.kern.maxPairs(y[r*ow:][:ow], x[2*r*w:][:w], x[(2*r+1)*w:][:w])
		}
	}
}

// pairsGradTask is gradTask for windows of 2 x 2 side by side.
func (m *MaxPool2d) pairsGradTask(_, part int) {
	w, ow := m.shape.W, len(m.cols)
	lo, hi := m.of(part)
	for i := lo; i < hi; i++ {
		dx, x, dy := m.in(m.dx, i), m.in(m.x, i), m.out(m.y, i)
		for r := range m.rows {
			upper, lower := dx[2*r*w:][:w], dx[(2*r+1)*w:][:w]
			m.pool.kern.maxPairsGrad(upper, lower, x[2*r*w:][:w], x[(2*r+1)*w:][:w], dy[r*ow:][:ow])
			clear(upper[2*ow:])
			clear(lower[2*ow:])
		}
		clear(dx[2*len(m.rows)*w:])
	}
}

// AvgPool2d is a plan for average pooling, adaptive or not, and its gradient.
type AvgPool2d struct {
	planes
	w             int
	rows, cols    []span
	divisor       float32 // 0: the number of elements of the window that are not padding
	forward, back func(worker, part int)
	x, y          []float32
}

// NewAvgPool2d plans average poolings of the shape. With countPadding, padding counts as zeros in the sum and in the
// divisor; else not at all.
func NewAvgPool2d(pool *Pool, shape Pool2dShape, countPadding bool) *AvgPool2d {
	shape.check()
	a := newAvgPool(pool, shape.Planes, shape.H, shape.W, shape.spans(0), shape.spans(1))
	if countPadding {
		a.divisor = float32(shape.Kernel[0] * shape.Kernel[1])
	}
	return a
}

// NewAdaptiveAvgPool2d plans poolings of [planes,h,w] to [planes,oh,ow]: window i along a dimension is
// floor(i*in/out) .. ceil((i+1)*in/out)-1.
func NewAdaptiveAvgPool2d(pool *Pool, planes, h, w, oh, ow int) *AvgPool2d {
	if planes < 0 || h < 1 || w < 1 || oh < 1 || ow < 1 {
		panic(fmt.Sprintf("kernel: adaptive pooling of %d x %d x %d to %d x %d is not possible", planes, h, w, oh, ow))
	}
	adaptive := func(in, out int) []span {
		all := make([]span, out)
		for i := range all {
			all[i] = span{i * in / out, ceilDiv((i+1)*in, out), 1}
		}
		return all
	}
	return newAvgPool(pool, planes, h, w, adaptive(h, oh), adaptive(w, ow))
}

func newAvgPool(pool *Pool, planes, h, w int, rows, cols []span) *AvgPool2d {
	a := &AvgPool2d{planes: newPlanes(pool, planes, h*w, len(rows)*len(cols)), w: w, rows: rows, cols: cols}
	a.forward, a.back = a.forwardTask, a.gradTask
	return a
}

// Run computes y from x.
func (a *AvgPool2d) Run(y, x []float32) {
	a.check(x, y)
	a.x, a.y = x, y
	a.run(a.forward)
	a.x, a.y = nil, nil
}

// Grad computes dx from dy.
func (a *AvgPool2d) Grad(dx, dy []float32) {
	a.check(dx, dy)
	a.x, a.y = dx, dy
	a.run(a.back)
	a.x, a.y = nil, nil
}

// scale is what a window's sum is multiplied with; 0 for a window without elements.
func (a *AvgPool2d) scale(rows, cols span) float32 {
	if a.divisor > 0 {
		return 1 / a.divisor
	}
	if n := rows.len() * cols.len(); n > 0 {
		return 1 / float32(n)
	}
	return 0
}

func (a *AvgPool2d) forwardTask(_, part int) {
	lo, hi := a.of(part)
	for i := lo; i < hi; i++ {
		x, y := a.in(a.x, i), a.out(a.y, i)
		o := 0
		for _, rows := range a.rows {
			for _, cols := range a.cols {
				sum := float32(0)
				for r := rows.from; r < rows.to; r += rows.step {
					for c := cols.from; c < cols.to; c += cols.step {
						sum += x[r*a.w+c]
					}
				}
				y[o] = sum * a.scale(rows, cols)
				o++
			}
		}
	}
}

func (a *AvgPool2d) gradTask(_, part int) {
	lo, hi := a.of(part)
	for i := lo; i < hi; i++ {
		dx, dy := a.in(a.x, i), a.out(a.y, i)
		clear(dx)
		o := 0
		for _, rows := range a.rows {
			for _, cols := range a.cols {
				v := dy[o] * a.scale(rows, cols)
				for r := rows.from; r < rows.to; r += rows.step {
					for c := cols.from; c < cols.to; c += cols.step {
						dx[r*a.w+c] += v
					}
				}
				o++
			}
		}
	}
}
