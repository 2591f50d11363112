package kernel

import (
	"fmt"
	"math"
)

// Conv2dShape is the shape of a 2-d cross-correlation: x [N,C,H,W], w [Out,C/Groups,Kernel[0],Kernel[1]] ->
// y [N,Out,OH,OW]. Pairs are height, then width.
type Conv2dShape struct {
	N, C, H, W                        int
	Out                               int
	Kernel, Stride, Padding, Dilation [2]int
	Groups                            int
}

// OutHW returns OH and OW: floor((in + 2 padding - dilation (kernel-1) - 1) / stride) + 1.
func (s Conv2dShape) OutHW() (oh, ow int) {
	return windows(s.H, s.Kernel[0], s.Stride[0], s.Padding[0], s.Dilation[0]), windows(s.W, s.Kernel[1], s.Stride[1], s.Padding[1], s.Dilation[1])
}

// windows returns how many windows fit along one dimension, 0 if none does.
func windows(in, kernel, stride, padding, dilation int) int {
	n := in + 2*padding - dilation*(kernel-1) - 1
	if n < 0 {
		return 0
	}
	return n/stride + 1
}

func (s Conv2dShape) check() {
	ok := s.N >= 0 && s.C > 0 && s.Out > 0 && s.Groups > 0 && s.C%s.Groups == 0 && s.Out%s.Groups == 0
	for d := range 2 {
		ok = ok && s.Kernel[d] > 0 && s.Stride[d] > 0 && s.Padding[d] >= 0 && s.Dilation[d] > 0
	}
	if ok {
		oh, ow := s.OutHW()
		// Offsets inside an image are kept in 32 bits.
		ok = oh > 0 && ow > 0 && s.C*(s.H+2*s.Padding[0])*(s.W+2*s.Padding[1]) <= math.MaxInt32
	}
	if !ok {
		panic(fmt.Sprintf("kernel: convolution %+v is not possible", s))
	}
}

// convGeometry is a shape with what is derived from it.
type convGeometry struct {
	Conv2dShape
	oh, ow         int
	ck, ok         int // channels of x and y in a group
	taps, places   int // elements of a patch (ck*KH*KW), patches of an image (oh*ow)
	ph, pw         int // height and width of a padded image
	inSize, ySize  int // floats of one group of one image
	padded         bool
	tapAt, placeAt []int32 // offsets in a padded image of each tap and each place; zeros at the end for a last panel
	tapAtInt       []int
}

// tableSlack is the widest panel: tables of offsets are that much longer than their content.
const tableSlack = 32

func newGeometry(s Conv2dShape) *convGeometry {
	s.check()
	g := &convGeometry{Conv2dShape: s, ck: s.C / s.Groups, ok: s.Out / s.Groups}
	g.oh, g.ow = s.OutHW()
	g.taps, g.places = g.ck*s.Kernel[0]*s.Kernel[1], g.oh*g.ow
	g.ph, g.pw = s.H+2*s.Padding[0], s.W+2*s.Padding[1]
	g.inSize, g.ySize = g.ck*s.H*s.W, g.ok*g.places
	g.padded = s.Padding != [2]int{}
	g.tapAt = make([]int32, g.taps+tableSlack)
	g.tapAtInt = make([]int, g.taps+tableSlack)
	i := 0
	for c := range g.ck {
		for y := range s.Kernel[0] {
			for x := range s.Kernel[1] {
				g.tapAtInt[i] = (c*g.ph+y*s.Dilation[0])*g.pw + x*s.Dilation[1]
				g.tapAt[i] = int32(g.tapAtInt[i])
				i++
			}
		}
	}
	g.placeAt = make([]int32, g.places+tableSlack)
	for y := range g.oh {
		for x := range g.ow {
			g.placeAt[y*g.ow+x] = int32(y*s.Stride[0]*g.pw + x*s.Stride[1])
		}
	}
	return g
}

// paddedSize returns how many floats image needs as its buffer.
func (g *convGeometry) paddedSize() int {
	if !g.padded {
		return 0
	}
	return g.ck * g.ph * g.pw
}

// image returns group number i of x, counted over all images, with zeros around every plane: in buf, or x itself
// when there is no padding.
func (g *convGeometry) image(buf, x []float32, i int) []float32 {
	x = x[i*g.inSize:][:g.inSize]
	if !g.padded {
		return x
	}
	top, left := g.Padding[0], g.Padding[1]
	buf = buf[:g.ck*g.ph*g.pw]
	clear(buf)
	for c := range g.ck {
		for y := range g.H {
			copy(buf[(c*g.ph+top+y)*g.pw+left:], x[(c*g.H+y)*g.W:][:g.W])
		}
	}
	return buf
}

func checkLen(what string, x []float32, n int) {
	if len(x) != n {
		panic(fmt.Sprintf("kernel: %s has %d elements, want %d", what, len(x), n))
	}
}

// Conv2d is a plan for convolutions of one shape: per image and group, the weights times the matrix of patches, which
// is packed panel by panel from the image and never written out as a whole.
type Conv2d struct {
	pool    *Pool
	g       *convGeometry
	block   blocking
	kBlocks int
	gn      int // the places of an image are cut into that many tasks
	ws      []convWorker
	weights func(group, block int) panels // of the run in progress

	packBody, body func(worker, part int)

	y, x, bias []float32
	relu       bool
	strided    []stridedPanels // of the weights, one a group and block of K: they are packed at the same time
}

type convWorker struct {
	patches patchPanels
	epi     Epilogue
}

// NewConv2d plans convolutions of the shape for the pool.
func NewConv2d(pool *Pool, shape Conv2dShape) *Conv2d {
	g := newGeometry(shape)
	k := pool.kern
	c := &Conv2d{pool: pool, g: g, ws: make([]convWorker, pool.threads)}
	_, c.gn = grid(k, pool.threads, g.ok, g.places, g.taps, g.N*g.Groups, 1)
	c.block = newBlocking(k, g.ok, ceilDiv(ceilDiv(g.places, k.nr), c.gn)*k.nr, g.taps)
	c.kBlocks = ceilDiv(g.taps, c.block.kc)
	pool.reserve(c.block.scratch()+g.paddedSize(), g.Groups*c.kBlocks*c.block.packedSize(g.ok))
	c.strided = make([]stridedPanels, g.Groups*c.kBlocks)
	for i := range c.strided {
		c.strided[i] = stridedPanels{kern: k, across: g.taps, along: 1}
	}
	for i := range c.ws {
		c.ws[i].patches = patchPanels{kern: k, g: g}
	}
	c.weights = func(group, block int) panels { return &c.strided[group*c.kBlocks+block] }
	c.packBody, c.body = c.pack, c.task
	return c
}

// Run computes y = x * w + bias, and max(y, 0) if relu. bias [Out] may be nil. y overlaps nothing.
func (c *Conv2d) Run(y, x, w, bias []float32, relu bool) {
	checkLen("weights of a convolution", w, c.g.Out*c.g.taps)
	if bias != nil {
		checkLen("bias of a convolution", bias, c.g.Out)
	}
	for i := range c.strided {
		c.strided[i].data = w[i/c.kBlocks*c.g.ok*c.g.taps:]
	}
	c.run(y, x, bias, relu)
	for i := range c.strided {
		c.strided[i].data = nil
	}
}

func (c *Conv2d) run(y, x, bias []float32, relu bool) {
	g := c.g
	checkLen("input of a convolution", x, g.N*g.Groups*g.inSize)
	checkLen("output of a convolution", y, g.N*g.Groups*g.ySize)
	c.y, c.x, c.bias, c.relu = y, x, bias, relu
	c.pool.Run(g.Groups*c.kBlocks, c.packBody)
	c.pool.Run(g.N*g.Groups*c.gn, c.body)
	c.y, c.x, c.bias = nil, nil, nil
}

// packed returns the place of a group's packed weights.
func (c *Conv2d) packed(group int) []float32 {
	size := c.kBlocks * c.block.packedSize(c.g.ok)
	return c.pool.shared[group*size:][:size]
}

func (c *Conv2d) pack(_, part int) {
	group, block := part/c.kBlocks, part%c.kBlocks
	c.block.packAll(c.packed(group), c.g.ok, c.g.taps, block, c.weights(group, block))
}

func (c *Conv2d) task(worker, part int) {
	g, w := c.g, &c.ws[worker]
	i := part / c.gn // group, counted over all images
	group := i % g.Groups
	r := rect{m1: g.ok, k1: g.taps}
	r.n0, r.n1 = share(g.places, c.pool.kern.nr, c.gn, part%c.gn)
	scratch := c.pool.scratch[worker]
	own := c.block.scratch()
	w.patches.image = g.image(scratch[own:], c.x, i)
	w.epi = Epilogue{ReLU: c.relu}
	if c.bias != nil {
		w.epi.RowBias = c.bias[group*g.ok:][:g.ok]
	}
	c.block.run(scratch[:own], r, nil, &w.patches, c.packed(group), c.y[i*g.ySize:][:g.ySize], g.places, &w.epi)
	w.patches.image = nil
}

// patchPanels are the panels of the matrix of patches, taps x places, for the product with the weights.
type patchPanels struct {
	kern          *kernels
	g             *convGeometry
	image         []float32
	first, second [tableSlack]int32 // masks
}

func (p *patchPanels) pack(dst []float32, width, first, count, k0, kn int) {
	g := p.g
	at := g.placeAt[first:]
	inRow := min(count, g.ow-first%g.ow) // places of the panel in the output row where it begins
	switch {
	case p.kern.segmentRows != nil && g.Stride[1] == 1 && count-inRow <= g.ow:
		shift := 0
		if inRow < count {
			shift = int(at[inRow]-at[0]) - inRow
		}
		for i := range width {
			p.first[i], p.second[i] = mask(i < inRow), mask(inRow <= i && i < count)
		}
		p.kern.segmentRows(&dst[0], &p.image[at[0]], &g.tapAt[k0], kn, shift, &p.first[0], &p.second[0])
	case p.kern.gatherRows != nil:
		p.kern.gatherRows(&dst[0], &p.image[0], &g.tapAt[k0], kn, &at[0])
	default:
		for k, tap := range g.tapAt[k0:][:kn] {
			out := dst[k*width:][:count]
			for i := range out {
				out[i] = p.image[tap+at[i]]
			}
		}
	}
}

func mask(on bool) int32 {
	if on {
		return -1
	}
	return 0
}
