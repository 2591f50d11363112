package kernel

import "fmt"

// StridedCopy is a plan for copying between strided views of one shape: transposes, slices, broadcasts, concatenation.
// Dimensions that continue each other are merged when the plan is made, and the best inner loop is chosen.
type StridedCopy struct {
	pool *Pool
	// outer are the dimensions around the inner loops, outermost first; rows and cols the two inner ones (cols innermost).
	outer      []copyDim
	rows, cols copyDim
	items      int // product of outer
	split      int // tasks that the rows of one item are cut into
	offs       [][8]int
	dstMax     int // largest offsets
	srcMax     int
	body       func(worker, part int)
	dst, src   []float32
}

// copyDim is a dimension: its extent, and its strides in both views.
type copyDim struct{ n, dst, src int }

// copyPart is about how many elements a task copies.
const copyPart = 32768

// NewStridedCopy plans copies of dst[sum i_d dstStride[d]] = src[sum i_d srcStride[d]]. Strides of src may be 0
// (broadcast); no element of dst may be written twice.
func NewStridedCopy(pool *Pool, shape, dstStride, srcStride []int) *StridedCopy {
	if len(dstStride) != len(shape) || len(srcStride) != len(shape) {
		panic(fmt.Sprintf("kernel: copy of shape %v with strides %v and %v", shape, dstStride, srcStride))
	}
	c := &StridedCopy{pool: pool, items: 1, split: 1, offs: make([][8]int, pool.threads)}
	var dims []copyDim
	empty := false
	for d, n := range shape {
		if n < 0 || dstStride[d] < 0 || srcStride[d] < 0 {
			panic(fmt.Sprintf("kernel: copy of shape %v with strides %v and %v", shape, dstStride, srcStride))
		}
		empty = empty || n == 0
		c.dstMax += (n - 1) * dstStride[d]
		c.srcMax += (n - 1) * srcStride[d]
		dim := copyDim{n, dstStride[d], srcStride[d]}
		if last := len(dims) - 1; n == 1 {
			continue
		} else if last >= 0 && dims[last].dst == n*dim.dst && dims[last].src == n*dim.src {
			dims[last] = copyDim{n * dims[last].n, dim.dst, dim.src}
		} else {
			dims = append(dims, dim)
		}
	}
	if empty {
		c.items, c.dstMax, c.srcMax = 0, -1, -1
	}
	// Innermost the dimension along which dst is densest; around it the one along which src is.
	c.cols, dims = takeDim(dims, func(d copyDim) int { return d.dst })
	c.rows, dims = takeDim(dims, func(d copyDim) int { return d.src })
	c.outer = dims
	for _, d := range dims {
		c.items *= d.n
	}
	c.split = max(1, min(c.rows.n, c.rows.n*c.cols.n/copyPart))
	c.body = c.task
	return c
}

// takeDim removes the dimension with the smallest positive stride; without any, it is one of extent 1.
func takeDim(dims []copyDim, stride func(copyDim) int) (copyDim, []copyDim) {
	best := -1
	for i, d := range dims {
		if stride(d) > 0 && (best < 0 || stride(d) <= stride(dims[best])) {
			best = i
		}
	}
	if best < 0 {
		if len(dims) == 0 {
			return copyDim{n: 1}, nil
		}
		best = len(dims) - 1
	}
	d := dims[best]
	return d, append(dims[:best:best], dims[best+1:]...)
}

// Run copies src to dst, which do not overlap.
func (c *StridedCopy) Run(dst, src []float32) {
	if c.dstMax >= len(dst) || c.srcMax >= len(src) {
		panic(fmt.Sprintf("kernel: copy to offset %d of %d elements, from offset %d of %d", c.dstMax, len(dst), c.srcMax, len(src)))
	}
	c.dst, c.src = dst, src
	parts := c.items * c.split
	if size := parts * c.rows.n / c.split * c.cols.n; size <= copyPart { // not worth waking anybody
		for i := range parts {
			c.task(0, i)
		}
	} else {
		c.pool.Run(parts, c.body)
	}
	c.dst, c.src = nil, nil
}

func (c *StridedCopy) task(worker, part int) {
	lo, hi := share(c.rows.n, 8, c.split, part%c.split)
	if lo == hi {
		return
	}
	item := part / c.split
	dst, src := lo*c.rows.dst, lo*c.rows.src
	for d := len(c.outer) - 1; d >= 0; d-- {
		dim := c.outer[d]
		dst += item % dim.n * dim.dst
		src += item % dim.n * dim.src
		item /= dim.n
	}
	c.plane(worker, hi-lo, c.dst[dst:], c.src[src:])
}

// plane copies n rows.
func (c *StridedCopy) plane(worker, n int, dst, src []float32) {
	rows, cols := c.rows, c.cols
	switch {
	case cols.dst == 1 && cols.src == 1:
		for i := range n {
			copy(dst[i*rows.dst:][:cols.n], src[i*rows.src:])
		}
	case cols.dst == 1 && cols.src == 0:
		for i := range n {
			c.pool.kern.vector.Fill(dst[i*rows.dst:][:cols.n], src[i*rows.src])
		}
	case cols.dst == 1 && rows.src == 1 && c.pool.kern.transpose8 != nil:
		c.transpose(&c.offs[worker], n, dst, src)
	default:
		for i := range n {
			copyStrided(dst[i*rows.dst:], src[i*rows.src:], cols)
		}
	}
}

func copyStrided(dst, src []float32, d copyDim) {
	to, from := 0, 0
	for range d.n {
		dst[to] = src[from]
		to += d.dst
		from += d.src
	}
}

// transpose copies n rows of dst, which are columns of src, in blocks of 8 x 8.
func (c *StridedCopy) transpose(offs *[8]int, n int, dst, src []float32) {
	rows, cols := c.rows, c.cols
	wide, high := cols.n&^7, n&^7
	for j := 0; j < wide; j += 8 {
		for i := range offs {
			offs[i] = (j + i) * cols.src
		}
		if high > 0 {
			c.pool.kern.transpose8(&dst[j], rows.dst, &src[0], &offs[0], high/8)
		}
	}
	for i := range n {
		from := wide
		if i >= high {
			from = 0
		}
		if from < cols.n {
			copyStrided(dst[i*rows.dst+from:], src[i+from*cols.src:], copyDim{cols.n - from, 1, cols.src})
		}
	}
}
